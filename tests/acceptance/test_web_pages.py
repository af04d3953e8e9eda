"""The pages of a home in a real browser, and who may see them: one browser and one home for all of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from orchestrator.cli import run
from orchestrator.cli.pages import PagesOptions, serve_pages
from orchestrator.core.clock import night_of
from orchestrator.core.listening import bound
from orchestrator.library.context import opened
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import KeyRight, Keys
from orchestrator.store import Store
from orchestrator.store.rows_by_document import RowFilter
from orchestrator.web.figures import tokens
from orchestrator.web.views.rows import PLACES
from tests.support.chromium import NO_BROWSER, Chromium, Tab, installed
from tests.support.figures import figures
from tests.support.readable import BROKEN_CODES, UNREADABLE
from tests.support.webhome import EVIL, WebHome, add_schedules, web_home

pytestmark = pytest.mark.together
PATIENCE = 60.0
"""Seconds for an answer on a busy machine."""
NEXT = "document.querySelector('a[rel=next]') !== null"
"""The rest of a page that is loading may come later than its first rows."""
DAEMON = "document.querySelector('#daemon')?.innerText.trim()"


@dataclass
class Shown:
    """A process that shows the pages, and the links that it prints."""

    process: subprocess.Popen[str]
    links: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.links[0].partition("/enter")[0].rstrip("/")

    def link(self) -> str:
        """The next link that it prints."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if (found := re.search(r"http://\S+", line)) is not None:
                self.links.append(found[0])
                return found[0]
        raise AssertionError(f"it ended: {self.process.wait()}")


def shown(*command: str) -> Shown:
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", *command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    found = Shown(process)
    found.link()
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebHome]:
    root = tmp_path_factory.mktemp("web")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ORCH_CONFIG": root / "orch.toml", "ORCH_HOME": root}.items():
            patch.setenv(name, str(value))
        patch.delenv("ORCH_DATABASE_URL", raising=False)
        patch.chdir(root)
        # The clock stands still: what is foreseen and what is left are the same whenever they are asked for.
        moment = {"at": datetime.now(UTC).isoformat(), "since": 0, "speed": 0}
        (root / "clock.json").write_text(json.dumps(moment))
        patch.setenv("ORCH_CLOCK", str(root / "clock.json"))
        made = web_home(root, big=20_000)
        add_schedules(made)
        yield made


@pytest.fixture(scope="module")
def view(home: WebHome) -> Iterator[Shown]:
    found = shown("view", "127.0.0.1:0", "--web-actions")
    yield found
    found.process.terminate()
    found.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def client(view: Shown) -> Iterator[httpx2.Client]:
    """Somebody who came by the link."""
    with httpx2.Client(base_url=view.url, timeout=PATIENCE) as made:
        assert made.get(view.links[-1]).status_code == 200
        view.link()
        yield made


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if (command := installed()) is None:
        pytest.skip(NO_BROWSER)
    browser = Chromium(command, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def tab(chromium: Chromium, view: Shown, client: httpx2.Client) -> Tab:
    """A page of somebody who came by the link."""
    found = chromium.new_page()
    found.open(view.links[-1])
    found.until("location.pathname === '/' && document.querySelector('h1') !== null")
    view.link()
    return found


def pages(home: WebHome) -> list[str]:
    job = f"/jobs/{home.letters.id}"
    night = f"/nights/{night_of(home.new.created_at).isoformat()}"
    return [
        "/", "/jobs", "/jobs?q=vertrag", "/jobs?q=letter", "/schedules",
        f"/jobs/{home.running.id}", f"/jobs/{home.new.id}", job, f"{job}/rows", f"{job}/rows/0",
        f"{job}/rows/1", f"{job}/rows/2", "/nights", night, f"/diff?before={home.old.id}&after={home.new.id}",
        f"/jobs/{home.long.id}", f"/jobs/{home.long.id}/rows", f"/jobs/{home.long.id}/rows/0",
        "/money", "/money?by=job", "/money?by=tag&since=all", "/backends", "/quarantine",
        f"/jobs/{home.running.id}/terms?deadline=06:00&budget=9",
    ]  # fmt: skip


@pytest.mark.long
def test_every_figure_is_what_the_json_of_its_command_says(
    home: WebHome, client: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    said: dict[str, Any] = {}
    number = 0
    for page in [path for path in pages(home) if not path.startswith("/nights/")]:
        for figure in figures(client.get(page).text):
            if figure.command not in said:
                run([*figure.words, "--json"])
                said[figure.command] = json.loads(capsys.readouterr().out)
            assert figure.is_in(said[figure.command]), (page, figure)
            number += 1
    assert number > 250
    assert {command.split(" ")[0] for command in said} == {
        "status", "report", "show", "budget", "diff", "quarantine", "schedule"
    }  # fmt: skip


def test_a_page_needs_a_cookie_our_name_and_our_own_origin(view: Shown, client: httpx2.Client) -> None:
    with httpx2.Client(base_url=view.url, timeout=PATIENCE) as stranger:
        for path in ("/", "/jobs/x", "/live?page=/", "/metrics", "/jobs/x/rows/0/picture/0"):
            assert stranger.get(path).status_code == 401, path
        assert stranger.get("/enter", params={"token": "x" * 43}).status_code == 401
        used = view.links[0].partition(view.url)[2]
        assert stranger.get(used).status_code == 401, "a link holds once"
        assert stranger.post("/sign-in", data={"key": "orch-nothing"}).status_code == 401
        forged = "; ".join(f"{name}={value[:-1]}x" for name, value in client.cookies.items())
        assert stranger.get("/", headers={"cookie": forged}).status_code == 401
        assert "set-cookie" not in stranger.get("/").headers
    port = view.url.rpartition(":")[2]
    for name in ("evil.example", f"evil.example:{port}", "", "127.0.0.1", f"127.0.0.1:{int(port) + 1}"):
        assert client.get("/", headers={"host": name}).status_code == 421, name
    assert client.get("/", headers={"host": f"localhost:{port}"}).status_code in (200, 401)
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{int(port) + 1}"):
        assert client.get("/", headers={"origin": origin}).status_code == 403, origin
    assert client.get("/", headers={"origin": view.url}).status_code == 200
    assert client.post("/jobs/x").status_code == 403, "no form of ours"


def test_what_every_answer_carries(client: httpx2.Client, view: Shown, home: WebHome) -> None:
    with httpx2.Client(base_url=view.url, timeout=PATIENCE) as other:
        entered = other.get(view.links[-1])
    view.link()
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    for path in ("/", "/nothing", "/static/orch.css", f"/enter?token={'x' * 43}"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';"), path
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/").headers["cache-control"] == "no-store"
    for path, status in (
        ("/jobs/none", 404),
        ("/jobs/none/rows/1", 404),
        (f"/jobs/{home.letters.id}/rows/{2**63}", 404),
        (f"/jobs/{home.letters.id}/rows/{'9' * 5000}", 404),
        ("/nights/soon", 404),
        ("/jobs?page=9", 404),
        ("/money?by=week", 404),
        ("/cost.html?since=2d", 404),
        (f"/jobs/{home.letters.id}/rows?state=good", 404),
        (f"/jobs/{home.letters.id}/rows.csv?state=good", 404),
        ("/quarantine?page=9", 404),
        (f"/jobs/{home.letters.id}/rows?after=99", 404),
        (f"/jobs/{home.letters.id}/rows?sort=answer.answer&page=9", 404),
        ("/nothing", 404),
    ):
        assert client.get(path).status_code == status, path
    assert "<h1>Not found</h1>" in client.get("/nothing").text
    assert "in the night of Wed 01 Jan 2020 " in client.get("/nights/2020-01-01").text
    assert client.get("/schedules").text.count("as in the job file") == 2, "the deadline and the budget"
    assert client.get("/static/../orch.toml").status_code == 404
    assert client.get("/static/%2e%2e/templates/layout.html").status_code == 404


def test_beyond_loopback_only_keys_open_the_pages(home: WebHome, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["view", "0.0.0.0:0"]) == 2
    assert "orch keys add NAME --right view" in capsys.readouterr().err
    folder = home.root / "serve"
    folder.mkdir()
    database = ServerDatabase(folder / FILE_NAME)
    keys = Keys(database)
    batch = keys.add("nightly")[1]
    _, looking = keys.add("eva", right=KeyRight.VIEW)
    with (
        opened() as context,
        serve_pages(bound("0.0.0.0", 0), context, PagesOptions("0.0.0.0", ("orch.example",)), lambda: context) as url,
        httpx2.Client(
            base_url=f"http://127.0.0.1:{url.rpartition(':')[2]}", headers={"host": "orch.example"}, timeout=PATIENCE
        ) as reader,
    ):
        assert "token" not in capsys.readouterr().err
        assert "open the link" not in reader.get("/").text, "there is none"
        assert reader.post("/sign-in", data={"key": batch}).status_code == 401
        told = reader.post("/sign-in", data={"key": looking}, headers={"x-forwarded-proto": "https"})
        assert told.status_code == 303
        assert "; secure" in told.headers["set-cookie"].lower()
        cookie = {"cookie": told.headers["set-cookie"].partition(";")[0]}
        assert reader.get("/", headers=cookie).status_code == 200
        keys.revoke(keys.all()[-1].id)
        assert reader.get("/", headers=cookie).status_code == 401
    database.close()


@pytest.mark.long
def test_an_open_page_ends_with_its_key(home: WebHome, chromium: Chromium) -> None:
    folder = home.root / "serve"
    folder.mkdir(exist_ok=True)
    database = ServerDatabase(folder / FILE_NAME)
    keys = Keys(database)
    key, secret = keys.add("ida", right=KeyRight.VIEW)
    with (
        opened() as context,
        serve_pages(bound("0.0.0.0", 0), context, PagesOptions("0.0.0.0", ("127.0.0.1",)), lambda: context) as url,
    ):
        page = chromium.new_page()
        page.open(f"http://127.0.0.1:{url.rpartition(':')[2]}/")
        page.js(f"key.value = {json.dumps(secret)}, key.form.submit()")
        page.until(f"location.pathname === '/' && {DAEMON} === 'daemon down'")
        keys.revoke(key.id)
        page.until("document.querySelector('input#key') !== null")
    database.close()


@pytest.mark.long
@pytest.mark.parametrize("widths", [(360, 1024, 1440), pytest.param((390, 768, 1180, 1920), marks=pytest.mark.soak)])
def test_pages_are_readable_on_a_phone_and_at_a_desk_and_ask_no_other_place(
    home: WebHome, tab: Tab, view: Shown, widths: tuple[int, ...]
) -> None:
    tab.asked.clear()
    tab.complaints.clear()
    for path in pages(home):
        assert tab.open(view.url + path) == 200, path
        for width in widths:
            tab.size(width)
            assert tab.js(UNREADABLE) == [], (path, width)
            assert tab.js(BROKEN_CODES) == [], (path, width)
        assert tab.js("document.querySelectorAll('h1').length") == 1, path
        assert "owned" not in tab.js("document.title").replace(EVIL, "").replace("title='owned", ""), path
        assert tab.js("document.querySelectorAll('main script, main [onerror]').length") == 0, path
    assert {address.partition("//")[2].partition("/")[0] for address in tab.asked} == {view.url.partition("//")[2]}
    assert tab.complaints == []
    tab.size(1280)


@pytest.mark.long
def test_reports_as_files_are_readable_on_a_phone_and_at_a_desk(
    home: WebHome, tab: Tab, capsys: pytest.CaptureFixture[str]
) -> None:
    night = night_of(home.new.created_at).isoformat()
    for number, words in enumerate((["cost"], ["cost", "--by", "day"], ["cost", "--by", "tag"], ["night", night])):
        path = home.root / f"report-{number}.html"
        assert run(["report", *words, "--html", str(path)]) == 0
        tab.open(path.as_uri())
        for width in (390, 768, 1024, 1440):
            tab.size(width)
            assert tab.js(UNREADABLE) == [], (words, width)
    capsys.readouterr()
    tab.size(1280)


@pytest.mark.long
def test_pages_write_their_dates_alike(home: WebHome, tab: Tab, view: Shown) -> None:
    night = f"/nights/{night_of(home.new.created_at).isoformat()}"
    for path in ("/", "/jobs", f"/jobs/{home.new.id}", "/nights", "/schedules", "/money", "/backends"):
        tab.open(view.url + path)
        assert re.findall(r"\d{4}-\d\d-\d\d", tab.text()) == [], path
    tab.open(view.url + night)
    told = tab.js("[...document.querySelectorAll('h1, h2, p.soft')].map((one) => one.innerText).join('\\n')")
    assert "the deadline of" in told
    assert re.findall(r"\d{4}-\d\d-\d\d", told) == []


@pytest.mark.long
def test_what_a_document_or_an_answer_holds_stays_text(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(f"{view.url}/jobs/{home.letters.id}/rows/0")
    assert tab.text().count(EVIL) == 2
    assert tab.js("document.title") != "owned"
    tab.open(f"{view.url}/jobs/{home.letters.id}/rows/1")
    tab.until("document.querySelector('main img').naturalWidth === 320")


@pytest.mark.long
def test_what_an_answer_quotes_is_marked_in_the_text_and_a_link_leads_there(
    home: WebHome, tab: Tab, view: Shown
) -> None:
    tab.open(f"{view.url}/jobs/{home.letters.id}/rows/0")
    marks = tab.js("[...document.querySelectorAll('pre mark')].map(one => one.innerText)")
    assert marks == ["Dear sirs, " + EVIL, *["the contract. we herewith"] * 39]
    links = tab.js("[...document.querySelectorAll('a[href^=\"#quote-\"]')].map(one => one.innerText)")
    assert links[0] == f"page 1, characters 0-{len('Dear sirs, ' + EVIL)}"
    assert len(links) == 1 + PLACES
    tab.js("[...document.querySelectorAll('a[href^=\"#quote-\"]')].at(-1).click()")
    tab.until("document.querySelector('pre mark:has(:target)').innerText === 'the contract. we herewith'")
    is_seen = (
        "(mark => mark.top < innerHeight && mark.bottom > 0)"
        "(document.querySelector('mark:has(:target)').getBoundingClientRect())"
    )
    tab.until(is_seen)
    assert "unverifiable" in tab.text()


@pytest.mark.long
def test_a_large_job_is_paged_and_searched(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(f"{view.url}/jobs/{home.big.id}/rows")
    assert tab.js("document.querySelectorAll('#rows tbody tr').length") == 50
    tab.js("document.querySelector('a[rel=next]').click()")
    tab.until("document.querySelector('#rows td a').textContent === 'archive/50/scan-50.pdf'")
    assert "after=49" in tab.js("location.search")
    tab.js("document.querySelector('a[rel=prev]').click()")
    tab.until("document.querySelector('#rows td a').textContent === 'd0'")
    tab.js("q.value = 'scan-19999', q.dispatchEvent(new Event('input', {bubbles: true}))")
    tab.until("document.querySelectorAll('#rows tbody tr').length === 1")
    tab.open(f"{view.url}/jobs/{home.big.id}/rows?state=failed&code=truncated&q=scan-1")
    assert tab.js("document.querySelectorAll('#rows tbody tr').length") > 2


@pytest.mark.long
def test_jobs_are_listed_and_searched(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(f"{view.url}/jobs")
    assert tab.js("document.querySelectorAll('tbody tr').length") == 7
    # At once: an update of the page that comes in between would empty a field that nobody types in.
    tab.js("(form => { form.q.value = 'VERTRAG'; form.requestSubmit(); })(document.querySelector('form.filter'))")
    tab.until("document.querySelectorAll('main > .frame tbody tr').length === 2")
    tab.js("document.querySelector('tbody a').click()")
    tab.until(f"location.pathname === '/jobs/{home.long.id}' && document.querySelector('h1') !== null")
    tab.open(f"{view.url}/jobs?q=%25")
    assert "No job has “%”" in tab.text()
    assert "No document in the newest runs has “%”" in tab.text()
    tab.open(f"{view.url}/jobs?q=PAGE-2.pdf")
    rows = "[...document.querySelectorAll('#documents ~ div tbody tr')]"
    assert tab.js(f"{rows}.map(one => one.innerText.split(/\\s+/).slice(0, 4))") == [
        ["scans/page-2.pdf", "contracts", "t", "failed"]
    ]
    tab.js("document.querySelector('#documents ~ div tbody a').click()")
    tab.until("document.querySelector('h1').innerText.startsWith('scans/page-2.pdf')")


@pytest.mark.long
def test_rows_show_their_answers_by_field_and_lead_to_each_other(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(f"{view.url}/jobs/{home.new.id}/rows?state=succeeded")
    names = tab.js("[...document.querySelectorAll('#rows th')].map(one => one.innerText)")
    assert names[:4] == ["document", "state", "party", "end"]
    first = tab.js("[...document.querySelectorAll('#rows tbody tr:first-child td')].map(one => one.innerText)")
    assert first[:4] == ["letters/2026/letter-000.txt", "succeeded", "Party 0 & Sons", '"2027-01-01"']
    assert first[names.index("attempt")] == "1"
    tab.open(f"{view.url}/jobs/{home.new.id}/rows?state=failed")
    tab.js("document.querySelector('#rows tbody a').click()")
    for page in ("scans/page-0.pdf", "scans/page-1.pdf", "scans/page-2.pdf", "scans/page-3.pdf"):
        tab.until(f"document.querySelector('h1').innerText.startsWith('{page}')")
        tab.js("document.querySelector('a[rel=next]')?.click()")
    assert tab.js("document.querySelector('a[rel=next]')") is None
    tab.js("document.querySelector('a[rel=prev]').click()")
    tab.until("document.querySelector('h1').innerText.startsWith('scans/page-2.pdf')")


def test_a_row_that_no_model_was_asked_names_none(home: WebHome, client: httpx2.Client) -> None:
    with Store.open(home.url) as store:
        [never] = store.rows_by_document.page(home.long.id, RowFilter(code="encrypted"), 2)
    for job, seq, label, name in (
        (home.long.id, never.row.seq, "sent to", "—"),
        (home.letters.id, 2, "sent to", "gpu"),
        (home.letters.id, 0, "answered by", "m"),
    ):
        told = client.get(f"/jobs/{job}/rows/{seq}").text
        assert f'{label}</dt><dd><span class="small">{name}</span>' in told


def test_a_document_that_cannot_be_read_has_its_cure_once(home: WebHome, client: httpx2.Client) -> None:
    with Store.open(home.url) as store:
        [never] = store.rows_by_document.page(home.long.id, RowFilter(code="encrypted"), 2)
    for page in (f"/jobs/{home.long.id}", f"/jobs/{home.long.id}/rows/{never.row.seq}"):
        told = client.get(page).text
        assert "encrypted" in told
        assert "save it without a password" not in told, "its message ends with a cure"


def test_tonight_writes_all_its_dates_alike(home: WebHome, client: httpx2.Client) -> None:
    told = client.get("/").text
    assert re.search(r'next: vertrag\S+ <span class="whole">[A-Z][a-z]{2} \d\d [A-Z][a-z]{2} \d\d:\d\d<', told)


def test_downloaded_rows_are_those_of_fetch(
    home: WebHome, client: httpx2.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("csv", "jsonl"):
        path = tmp_path / f"rows.{form}"
        assert run(["fetch", home.new.id, "-o", str(path), "--format", form]) == 0
        told = client.get(f"/jobs/{home.new.id}/rows.{form}")
        assert told.content == path.read_bytes()
        assert told.headers["content-disposition"] == f"attachment; filename*=UTF-8''{home.new.id}.{form}"
    capsys.readouterr()
    some = client.get(f"/jobs/{home.new.id}/rows.jsonl?state=failed&q=page-2").text.splitlines()
    assert [json.loads(line)["document"] for line in some] == ["scans/page-2.pdf"]
    assert client.get("/jobs/none/rows.csv").status_code == 404
    assert client.get(f"/jobs/{home.new.id}/rows.xml").status_code == 404


@pytest.mark.long
def test_rows_are_sorted_by_their_columns_and_lead_on_in_that_order(home: WebHome, tab: Tab, view: Shown) -> None:
    shown = "[...document.querySelectorAll('#rows tbody td.name a')].map(one => one.innerText)"
    tab.open(f"{view.url}/jobs/{home.new.id}/rows")
    assert tab.js("document.querySelector('#rows th[aria-sort]')") is None
    for order, first in (("ascending", "letters/2026/letter-000.txt"), ("descending", "scans/page-3.pdf")):
        tab.js("[...document.querySelectorAll('#rows th a')].find(one => one.innerText === 'document').click()")
        tab.until(f"document.querySelector('#rows th')?.ariaSort === '{order}'")
        assert tab.js(shown)[0] == first
    tab.until(NEXT)
    tab.js("document.querySelector('a[rel=next]').click()")
    tab.until("document.querySelectorAll('#rows tbody tr').length === 14")
    assert tab.js(shown)[-1] == "letters/2026/letter-000.txt"
    tab.js("document.querySelector('#rows tbody a').click()")
    tab.until("document.querySelector('h1').innerText.startsWith('letters/2026/letter-013.txt')")
    tab.until(NEXT)
    tab.js("document.querySelector('a[rel=next]').click()")
    tab.until("document.querySelector('h1').innerText.startsWith('letters/2026/letter-012.txt')")
    ends = "[...document.querySelectorAll('#rows td[data-name=end]')].map(one => one.innerText)"
    tab.open(f"{view.url}/jobs/{home.new.id}/rows")
    for order, first in (("ascending", '"2027-01-01"'), ("descending", '"2027-12-01"')):
        tab.js("[...document.querySelectorAll('#rows th a')].find(one => one.innerText === 'end').click()")
        sorted_by = f"document.querySelector('#rows th[aria-sort={order}]')?.innerText === 'end'"
        tab.until(f"document.readyState === 'complete' && {sorted_by}")
        shown_ends = tab.js(ends)
        assert shown_ends == sorted(shown_ends, reverse=order == "descending")
        assert shown_ends[0] == first
    tab.until(NEXT)
    tab.js("document.querySelector('a[rel=next]').click()")
    tab.until("document.querySelectorAll('#rows tbody tr').length === 14")
    assert tab.js(ends)[-4:] == ["—"] * 4, "rows without an answer come last"
    tab.open(f"{view.url}/jobs/{home.big.id}/rows?sort=answer.answer")
    assert "Only lists of up to 2,000 rows" in tab.text()
    assert tab.js("document.querySelector('#rows th[aria-sort]')") is None, "they are in the order of the input"
    tab.open(f"{view.url}/jobs/{home.new.id}/rows?sort=nonsense&state=failed")
    assert len(tab.js(shown)) == 4


@pytest.mark.long
def test_a_page_that_is_not_there_says_so_and_goes_on_saying_it(home: WebHome, tab: Tab, view: Shown) -> None:
    for path in ("/nope", f"/jobs/{home.new.id}/nope", f"/jobs/{home.new.id}/rows.xml"):
        assert tab.open(view.url + path) == 404
        assert tab.text("h1") == "Not found"
        assert tab.js("document.body.dataset.live") == "", "an update would empty the page"


def test_a_missed_deadline_shows_on_every_page_that_names_it(home: WebHome, client: httpx2.Client) -> None:
    night = night_of(home.new.created_at)
    cell = re.search(rf'class="night (\w+)[^>]*href="/nights/{night}".*?</a>', client.get("/nights").text, re.DOTALL)
    assert cell is not None
    assert cell[1] == "bad"
    assert "deadline missed" in cell[0]
    assert re.search(r'missed by <span class="whole">\d+ h<', client.get(f"/jobs/{home.new.id}").text)
    assert 'title="missed"' in client.get(f"/jobs?q={home.new.id}").text
    assert 'title="missed"' not in client.get(f"/jobs?q={home.running.id}").text


def test_the_calendar_counts_what_running_batches_have_finished_as_tonight_does(
    home: WebHome, client: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    night = night_of(home.running.created_at)
    nights = client.get("/nights").text
    run(["status", "--json"])
    every = json.loads(capsys.readouterr().out)
    cell = re.search(rf'<a [^>]*href="/nights/{night}".*?</a>', nights, re.DOTALL)
    assert cell is not None
    assert 'class="night warn' in cell[0], "no daemon works on its jobs"
    assert ">stopped<" in cell[0]
    found = re.search(r'class="sum">([\d.]+k?)<.*?([\d,]+) failed', cell[0], re.DOTALL)
    assert found is not None, cell[0]
    told = [one["requests"] for one in every if night_of(datetime.fromisoformat(one["created_at"])) == night]
    failed = sum(one["failed_so_far"] for one in told)
    assert int(found[2]) == failed
    assert found[1] == tokens(sum(one["done"] for one in told) - failed)


def test_the_money_page_has_a_chart_and_is_downloaded_as_a_file_to_send(
    home: WebHome, client: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = client.get("/money?by=job&since=all").text
    chart = shown[shown.index("<svg xmlns") : shown.index("</svg>", shown.index("<svg xmlns")) + 6]
    told = client.get("/cost.html?by=job&since=all")
    assert told.headers["content-disposition"] == "attachment; filename=cost.html"
    assert chart in told.text
    assert run(["report", "cost", "--by", "job", "--html", str(home.root / "cost.html")]) == 0
    capsys.readouterr()
    assert told.text == (home.root / "cost.html").read_text(encoding="utf-8")
    assert client.get("/cost.html?by=nonsense&since=ever").status_code == 404


@pytest.mark.long
def test_two_runs_of_one_job_are_compared_unless_others_are_chosen(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(f"{view.url}/nights")
    assert tab.js("[...document.querySelectorAll('select')].map(one => one.value)") == [home.old.id, home.new.id]


@pytest.mark.long
def test_a_phone_shows_captions_in_one_line_whole_forecasts_and_when_a_run_began(
    home: WebHome, tab: Tab, view: Shown
) -> None:
    tab.size(390)
    tab.open(f"{view.url}/backends")
    heights = tab.js("[...document.querySelectorAll('caption')].map(one => one.getBoundingClientRect().height)")
    assert heights
    assert max(heights) < 40, "a caption breaks into several lines"
    tab.open(f"{view.url}/jobs/{home.new.id}")
    frame = "[...document.querySelectorAll('[aria-labelledby=forecasts] .frame')]"
    frames = tab.js(f"{frame}.map(one => one.scrollWidth - one.clientWidth)")
    assert [max(0, beyond) for beyond in frames] == [0], "the table has to be pushed to and fro"
    tab.open(f"{view.url}/nights")
    options = tab.js("[...document.querySelectorAll('option')].map(one => one.textContent)")
    assert options
    assert [one for one in options if not re.match(r"\d\d \w{3} \d\d:\d\d ", one)] == []
    tab.size(1280)


@pytest.mark.long
def test_what_changes_shows_without_a_reload_and_nothing_jumps(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(f"{view.url}/jobs/{home.running.id}")
    tab.until("document.querySelector('main a') !== null")
    tab.js("window.mark = document.querySelector('h1'), document.querySelector('main a').focus()")
    before = tab.js("[...document.querySelectorAll('h2')].map(h => h.getBoundingClientRect().top).join()")
    with Store.open(home.url) as store:
        [shard] = store.shards.of_job(home.running.id)
        store.shards.note(shard, provider_completed=shard.provider_completed + 1)
    tab.until("document.querySelector('[data-at=\"requests.done\"]').value === '143'")
    assert tab.js("window.mark.isConnected"), "the page was changed, not made anew"
    assert tab.js("document.activeElement.matches('main a')")
    assert tab.js("[...document.querySelectorAll('h2')].map(h => h.getBoundingClientRect().top).join()") == before


FOCUSED = """(() => {
  const e = document.activeElement, at = e.getBoundingClientRect(), how = getComputedStyle(e);
  return {name: (e.ariaLabel || e.textContent).trim().replace(/\\s+/g, ' '), top: at.top + scrollY, left: at.left,
    shown: at.width > 0 && at.right > 0 && at.top >= 0 && at.bottom <= innerHeight + 1,
    ring: how.outlineStyle !== 'none' && parseFloat(how.outlineWidth) >= 1, main: e.closest('main') !== null,
    body: e === document.body};
})()"""


def walked(tab: Tab) -> list[dict[str, Any]]:
    """Where the Tab key leads, from the top of a page to its end."""
    found: list[dict[str, Any]] = []
    for _ in range(120):
        tab.press("Tab")
        at = tab.js(FOCUSED)
        if at["body"] or (found and at["name"] == found[0]["name"]):
            return found
        found.append(at)
    raise AssertionError("Tab does not come to an end")


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/jobs/{home.running.id}",
        "/jobs/{home.letters.id}/rows/0",
        *(
            pytest.param(page, marks=pytest.mark.soak)
            for page in ("/jobs", "/jobs?q=vertrag", "/schedules", "/nights", "/quarantine")
        ),
    ],
)
def test_tab_goes_through_a_page_as_it_is_read_and_the_focus_shows(
    home: WebHome, tab: Tab, view: Shown, page: str
) -> None:
    tab.open(view.url + page.format(home=home))
    tab.until("document.querySelector('h1') !== null")
    stops = walked(tab)
    pages = ["Tonight", "Jobs", "Nights", "Schedules", "Money", "Backends", "Quarantine"]
    assert [one["name"] for one in stops[:9]] == ["Skip to the content", "orch, tonight", *pages]
    assert stops[9]["name"] == "Light or dark"
    assert all(one["shown"] and one["ring"] for one in stops), stops
    body = [one for one in stops if one["main"]]
    # In a row of a table, what is further right may stand a little higher.
    assert all(one["top"] <= then["top"] + 40 or one["left"] < then["left"] for one, then in pairwise(body))


@pytest.mark.long
def test_a_keyboard_is_enough(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.open(view.url)
    tab.until("document.querySelector('main a') !== null")
    tab.press("Tab")
    tab.press("Enter")
    assert tab.js("document.activeElement.id") == "main", "the first stop leads past the menu"
    tab.press("Tab")
    wanted = tab.js("document.activeElement.href")
    tab.press("Enter")
    tab.until(f"location.href === {json.dumps(wanted)} && document.readyState === 'complete'")
    before = tab.js("document.documentElement.dataset.theme ?? ''")
    tab.js("document.querySelector('#theme').focus()")
    tab.press("Enter")
    assert tab.js("document.documentElement.dataset.theme") != before
    tab.js("localStorage.removeItem('orch-theme')")
    tab.open(f"{view.url}/jobs/{home.letters.id}/rows/0")
    tab.until("document.querySelector('details summary') !== null")
    tab.js("document.querySelector('details summary').focus()")
    tab.press("Enter")
    assert tab.js("document.querySelector('details').open")
    tab.open(f"{view.url}/jobs/{home.big.id}/rows")
    tab.until("document.querySelector('input[type=search]') !== null")
    tab.press("/")
    assert tab.js("document.activeElement.matches('input[type=search]')")
    tab.press("7")
    assert tab.js("document.activeElement.value") == "7"


@pytest.mark.long
def test_times_are_the_readers_and_name_the_zone_of_the_jobs(home: WebHome, tab: Tab, view: Shown) -> None:
    tab.zone("Asia/Tokyo")
    tab.open(f"{view.url}/jobs/{home.running.id}")
    assert tab.text("#zone") == "times in Asia/Tokyo"
    shown_at, at, title = tab.js("(t => [t.textContent, t.dateTime, t.title])(document.querySelector('.facts time'))")
    expected = "new Intl.DateTimeFormat('en-GB', {hour: '2-digit', minute: '2-digit', timeZone: 'Asia/Tokyo'})"
    assert shown_at.endswith(tab.js(f"{expected}.format(new Date('{at}'))"))
    assert "where the jobs run" in title
    tab.zone("")


@pytest.mark.long
def test_the_end_of_the_daemon_and_its_return_show_by_themselves(
    home: WebHome, tab: Tab, view: Shown, chromium: Chromium
) -> None:
    """On the pages beside it, and on its own, which end with its process; their cookie outlives it."""
    tab.open(f"{view.url}/money")
    tab.until(f"{DAEMON} === 'daemon down'")
    daemons = [shown("up", "-q", "--web", "127.0.0.1:0")]
    try:
        own = chromium.new_page()
        own.open(daemons[0].links[0])
        own.until(f"location.pathname === '/' && {DAEMON} === 'daemon up'")
        tab.until(f"{DAEMON} === 'daemon up'")
        daemons[0].process.kill()
        daemons[0].process.communicate()
        for each in (own, tab):
            each.until(f"{DAEMON} === 'daemon down'")
        daemons.append(shown("up", "-q", "--web", daemons[0].url.partition("//")[2]))
        for each in (own, tab):
            each.until(f"{DAEMON} === 'daemon up'")
        assert not own.js("document.body.classList.contains('lost')")
    finally:
        for daemon in daemons:
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.communicate()
