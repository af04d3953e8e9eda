"""Documents in a bucket and at a web server: not downloaded again while unchanged, and what fails in between."""

from __future__ import annotations

import logging
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest

from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.documents import claimed_folder, downloads, remote
from orchestrator.documents.globs import Globs
from orchestrator.documents.redirects import is_elsewhere
from orchestrator.documents.walk import FoundFile
from orchestrator.pipeline.build.submission import How
from tests.integration.test_limited_runs import Desk, opened
from tests.support.databases import new_sqlite
from tests.support.s3 import empty_bucket, s3_environment, s3_server


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    (tmp_path / "desk").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with opened(tmp_path / "desk", new_sqlite(tmp_path / "orch.db"), monkeypatch) as desk:
        yield desk
    assert not list((tmp_path / "tmp").iterdir()), "downloads are removed"


@dataclass
class Bucket:
    """Objects of an S3 server in this process, and which of them were downloaded."""

    api: Any
    log: pytest.LogCaptureFixture

    def put(self, **objects: str | bytes) -> None:
        for name, body in objects.items():
            key = name.replace("__", "/").replace("_", ".")
            self.api.put_object(Bucket="bucket", Key=key, Body=body)

    def downloads(self) -> Counter[str]:
        """The objects that were downloaded since this was last asked."""
        told = [record.getMessage() for record in self.log.records if record.name == "werkzeug"]
        self.log.clear()
        found = (re.search(r'"(?:\x1b\S+?m)?GET /bucket/(\S*) HTTP', re.sub(r"\x1b\[\d+m", "", one)) for one in told)
        return Counter(one[1] for one in found if one is not None and not one[1].startswith("?") and one[1])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Bucket]:
    for name, value in s3_environment(server).items():
        monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO, "werkzeug")
    with empty_bucket() as api:
        yield Bucket(api, caplog)


@pytest.mark.long
def test_objects_are_documents_and_unchanged_ones_are_not_downloaded(desk: Desk, bucket: Bucket) -> None:
    table = "id,text\n" + "".join(f"{number},row {number}\n" for number in range(3))
    bucket.put(docs__a_txt="letter a", docs__sub__b_txt="letter b", docs__sub__rows_csv=table, docs__sub__c_txt="c")
    bucket.put(docs__logo_svg="<svg/>", docs__private__x_txt="not this", docs__="")
    desk.spec["documents"] = {
        "path": "s3://bucket/docs", "exclude": "private", "text_column": "text", "id_column": "id",
    }  # fmt: skip
    job = desk.answered()
    rows = [f"s3://bucket/docs/sub/rows.csv#{number}" for number in range(3)]
    texts = [f"s3://bucket/docs/{name}" for name in ("a.txt", "sub/b.txt", "sub/c.txt")]
    assert desk.sent(job) == [*texts, *rows]
    assert job.ignored is not None
    assert job.ignored["kinds"] == {".svg": 1}
    assert set(bucket.downloads()) == {"docs/a.txt", "docs/sub/b.txt", "docs/sub/c.txt", "docs/sub/rows.csv"}

    assert desk.submit().how is How.UNCHANGED
    assert not bucket.downloads()

    bucket.put(docs__sub__b_txt="another letter b", docs__sub__d_txt="letter d")
    bucket.api.delete_object(Bucket="bucket", Key="docs/a.txt")
    changed = desk.submit()
    assert changed.report is not None
    assert (changed.report.carried, changed.report.removed) == (2 * 4, 1)
    assert bucket.downloads() == {"docs/sub/b.txt": 1, "docs/sub/d.txt": 1}


@pytest.mark.long
def test_one_object_and_a_sample(desk: Desk, bucket: Bucket) -> None:
    bucket.put(rows_csv="id,text\n1,one\n2,two\n", docs__a_txt="a", docs__b_txt="b", docs__c_txt="c")
    desk.spec["documents"] = [
        {"path": "s3://bucket/rows.csv", "text_column": "text"},
        {"path": "s3://bucket/docs/", "sample": 2},
    ]
    keys = desk.sent(desk.answered())
    assert keys[:2] == ["s3://bucket/rows.csv#1", "s3://bucket/rows.csv#2"]
    assert len(keys) == 4


@pytest.mark.long
def test_too_large_objects_are_told_and_not_downloaded(desk: Desk, bucket: Bucket) -> None:
    bucket.put(docs__a_txt="a", docs__big_txt="b" * 5000)
    desk.spec["documents"] = {"path": "s3://bucket/docs", "max_bytes": 1000}
    report = desk.submit().report
    assert report is not None
    assert [(key, code) for key, code, _ in report.problems] == [("s3://bucket/docs/big.txt", "too_large")]
    assert bucket.downloads() == {"docs/a.txt": 1}


@pytest.mark.long
def test_what_is_not_there_and_what_may_not_be_read(desk: Desk, bucket: Bucket) -> None:
    for path, told in (
        ("s3://no-such-bucket/docs", "There is nothing at"),
        ("s3://bucket/none", "There is nothing at"),
        ("s3://bucket/docs?key=secret", "may carry no password and no query"),
        ("xyz://bucket/docs", "not a storage that fsspec supports"),
        ("sftp://host/docs", "the library for sftp:// is not installed"),
    ):
        desk.spec["documents"] = {"path": path}
        with pytest.raises(InputError, match=re.escape(told)):
            desk.submit()
    assert not desk.store.jobs.newest(), "nothing is left of them"


@dataclass
class Site:
    """A web server with pages by path; `cuts` says how often a page's answer breaks off in its middle."""

    pages: dict[str, bytes] = field(default_factory=dict)
    cuts: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    leads: dict[str, str] = field(default_factory=dict)
    url: str = ""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                site.seen[self.path] += 1
                self._answer(with_body=True)

            def _answer(self, *, with_body: bool) -> None:
                if (to := site.leads.get(self.path)) is not None:
                    self.send_response(302)
                    self.send_header("Location", to)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = site.pages.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", f'"{sha256(body).hexdigest()[:8]}"')
                self.end_headers()
                if with_body and site.cuts[self.path] > 0:
                    site.cuts[self.path] -= 1
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                elif with_body:
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    with ThreadingHTTPServer(("127.0.0.1", 0), site.handler()) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        yield site


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between tries."""
    for module in (downloads, remote):
        monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))


NAMES = [f"/in/{name}.txt" for name in "abcdefgh"]


def listing(site: Site, *more: str) -> None:
    site.pages |= {name: f"text of {name}".encode() for name in NAMES}
    lines = ["# the letters", *(name.removeprefix("/in/") for name in NAMES), "", *more]
    site.pages["/in/list.txt"] = "\n".join(lines).encode()


def test_a_list_of_addresses(desk: Desk, site: Site) -> None:
    listing(site, "/elsewhere/x.txt", "logo.svg", "gone.txt")
    site.pages["/elsewhere/x.txt"] = b"text of x"
    desk.spec["documents"] = {"path": f"{site.url}/in/list.txt"}
    job = desk.answered()
    documents = list(dict.fromkeys(row.document for row in desk.store.rows.finished(job.id)))
    host = site.url.removeprefix("http://")
    there = [f"{site.url}{name}" for name in NAMES]
    assert documents == [*there, f"{site.url}/in/{host}/elsewhere/x.txt", f"{site.url}/in/gone.txt"]
    ends = {row.document: row.error_code for row in desk.store.rows.finished(job.id)}
    assert ends[f"{site.url}/in/gone.txt"] == "vanished"

    site.seen.clear()
    site.pages["/in/b.txt"] = b"another text"
    assert desk.sent(desk.answered())[0] == f"{site.url}/in/b.txt"
    assert {name for name in site.seen if name in NAMES} == {"/in/b.txt"}


@pytest.mark.usefixtures("quick")
def test_a_download_that_breaks_off_is_tried_again_and_then_reported(desk: Desk, site: Site) -> None:
    listing(site)
    site.cuts.update({"/in/b.txt": 2, "/in/d.txt": 99})
    desk.spec["documents"] = {"path": f"{site.url}/in/list.txt"}
    report = desk.submit().report
    assert report is not None
    [(key, code, message)] = report.problems
    assert (key, code) == (f"{site.url}/in/d.txt", "unreadable")
    assert message.startswith("The download failed:")
    assert site.seen["/in/b.txt"] == 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fail", ["every download", "the list"])
def test_a_storage_that_fails_leaves_nothing_half_done(desk: Desk, site: Site, fail: str) -> None:
    listing(site)
    broken = NAMES if fail == "every download" else ["/in/list.txt"]
    site.cuts.update(dict.fromkeys(broken, 99))
    desk.spec["documents"] = {"path": f"{site.url}/in/list.txt"}
    with pytest.raises(JobFilesError, match=r"downloads in a row failed|cannot be listed"):
        desk.submit()
    assert not desk.store.jobs.newest()
    site.cuts.clear()
    report = desk.submit().report
    assert report is not None
    assert (report.documents, report.problems) == (8, [])


@pytest.mark.long
def test_a_list_does_not_lead_to_other_hosts(desk: Desk, site: Site) -> None:
    with serving(Site({"/x.txt": b"text"})) as other:
        listing(site, f"{other.url}/x.txt")
        for source, told in (
            ({"path": f"{site.url}/in/list.txt"}, "`follow_links: true` follows it"),
            ({"path": f"{site.url}/in/list.txt", "follow_links": True}, None),
        ):
            desk.spec["documents"] = source
            if told is None:
                assert len(desk.sent(desk.answered())) == 9
                continue
            with pytest.raises(InputError, match=told) as caught:
                desk.submit()
            assert caught.value.line == 11
    listing(site, "secret.txt?token=1")
    with pytest.raises(InputError, match="no query"):
        desk.submit()


@pytest.mark.usefixtures("quick")
def test_a_server_does_not_lead_to_other_hosts(desk: Desk, site: Site) -> None:
    """A redirect to another host is not followed, whether from a document, the list itself, or a lone file."""
    with serving(Site({"/x.txt": b"secret", "/in/list.txt": b"x.txt"})) as other:
        listing(site)
        site.leads = {"/lone.pdf": f"{other.url}/x.txt", "/in/list.txt": f"{other.url}/in/list.txt"}
        for source in ("lone.pdf", "in/list.txt"):
            desk.spec["documents"] = {"path": f"{site.url}/{source}"}
            with pytest.raises(InputError, match="which is another host; `follow_links: true` follows it"):
                desk.submit()
        site.leads = {"/in/b.txt": f"{other.url}/x.txt", "/in/c.txt": "/in/d.txt"}
        report = desk.submit().report
        assert report is not None
        [(key, code, message)] = report.problems
        assert (key, code) == (f"{site.url}/in/b.txt", "unreadable")
        assert message.startswith(f"{site.url}/in/b.txt leads to {other.url}/x.txt, which is another host")
        assert not other.seen, "nobody asked there"
        desk.spec["documents"] = {"path": f"{site.url}/in/list.txt", "follow_links": True}
        report = desk.submit().report
        assert report is not None
        assert (report.problems, other.seen["/x.txt"]) == ([], 1)


ELSEWHERE = {
    "another path": ("https://a/x", "https://a/y", False),
    "another port": ("https://a/x", "https://a:8443/x", True),
    "another name": ("https://a/x", "https://b/x", True),
    "a name below": ("https://a/x", "https://b.a/x", True),
    "to https": ("http://a/x", "https://a/x", False),
    "to https at another port": ("http://a:8080/x", "https://a/x", True),
    "from https": ("https://a/x", "http://a/x", True),
    "a user in front": ("https://a/x", "https://a@b/x", True),
    "another scheme": ("https://a/x", "file:///etc/passwd", True),
}


@pytest.mark.parametrize(("address", "to", "elsewhere"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_another_host(address: str, to: str, elsewhere: bool) -> None:
    assert is_elsewhere(address, to) is elsewhere


@pytest.mark.parametrize(("address", "line", "elsewhere"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_list_may_name_what_a_redirect_may_lead_to(address: str, line: str, elsewhere: bool) -> None:
    storage = fsspec.filesystem("memory")
    storage.pipe_file("/list.txt", line.encode())
    place = remote.RemoteRoot(address + "/list.txt", storage, "/list.txt", is_file=False, is_list=True)
    names = remote.AddressList(place, Globs(["**"], field="include"), Globs([], field="exclude"), lambda name: True)
    if not elsewhere:
        assert [found.path for found in names if isinstance(found, FoundFile)] == [line]
        return
    with pytest.raises(InputError):
        list(names)


def test_what_a_kill_has_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here: Callable[[], list[str]] = lambda: sorted(one.name for one in tmp_path.iterdir())  # noqa: E731
    first = downloads.Downloads(lambda: None)
    left = tmp_path / f"{claimed_folder.PREFIX}left"
    left.mkdir()
    (left / claimed_folder.LOCK).touch()
    [kept] = (name for name in here() if name != left.name)
    second = downloads.Downloads(lambda: None)
    assert kept in here()
    assert left.name not in here()
    second.close()
    first.close()
    assert not here()
