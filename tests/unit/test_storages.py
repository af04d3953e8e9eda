"""Storages whose calls block: each thread has one of its own, and each night a new one; what refuses tells keys."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any, ClassVar

import fsspec
import pytest
from aiohttp import ClientResponseError, RequestInfo
from fsspec.implementations.memory import MemoryFileSystem
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from orchestrator.core import storages
from orchestrator.core.errors import InputError, JobFilesError, OutputFault
from orchestrator.documents import DocumentProblem, remote
from orchestrator.documents.downloads import Downloads
from orchestrator.documents.globs import Globs
from orchestrator.documents.ignored import IgnoredReason
from orchestrator.documents.walk import FoundFile, Skipped, Unlisted
from orchestrator.pipeline.finish.outputs.faults import fault_of


class OneThread(MemoryFileSystem):  # type: ignore[misc]
    """A storage with one connection, as SFTP's is; like it, it says of a link only that it is one."""

    protocol = "onethread"
    threads: ClassVar[set[tuple[int, int]]] = set()
    links: ClassVar[dict[str, str]] = {}
    kinds: ClassVar[dict[str, str]] = {}

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self.thread = get_ident()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return f"/{path.removeprefix('onethread://').strip('/')}"

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        self.threads.add((id(self), get_ident()))
        assert self.thread == get_ident(), "another thread reads this one's answers"
        AT_ONCE.wait(20)
        super().get_file(rpath, lpath, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = super().ls(path, detail=True, **options)
        kinds = {**dict.fromkeys(self.links, "link"), **self.kinds}
        return [{**info, "type": kinds.get(info["name"], info["type"])} for info in found]

    def info(self, path: str, **options: Any) -> Any:
        return super().info(self.links.get(self._strip_protocol(path), path), **options)


AT_ONCE = Barrier(4)


@pytest.fixture
def files() -> Iterator[MemoryFileSystem]:
    fsspec.register_implementation("onethread", OneThread, clobber=True)
    OneThread.threads.clear()
    found = OneThread()
    yield found
    found.store.clear()
    found.pseudo_dirs[:] = [""]
    OneThread.links.clear()
    OneThread.kinds.clear()


def walked(**options: bool) -> list[FoundFile | Unlisted | Skipped]:
    place = remote.located("onethread://docs")
    include, exclude = Globs(("**",), field="include"), Globs((), field="exclude")
    return list(remote.RemoteWalk(place, include, exclude, lambda name: name.endswith(".txt"), **options))


def test_threads_that_download_do_not_share_a_connection(files: MemoryFileSystem) -> None:
    for number in range(AT_ONCE.parties):
        files.pipe_file(f"/docs/{number}.txt", b"x" * (number + 1))
    found = [item for item in walked() if isinstance(item, FoundFile)]
    assert len(found) == AT_ONCE.parties
    downloads = Downloads(lambda: None)
    try:
        paths = [
            path for _, path in downloads.ahead(found, lambda item: (item.remote, None) if item.remote else None)
        ]
        assert [len(Path(str(path)).read_bytes()) for path in paths] == [1, 2, 3, 4]
    finally:
        downloads.close()
    assert len(OneThread.threads) == AT_ONCE.parties


def test_a_blocking_storage_is_opened_anew_and_another_is_kept(files: MemoryFileSystem) -> None:
    assert storages.opened("onethread://docs")[0] is not storages.opened("onethread://docs")[0]
    web = storages.opened("http://127.0.0.1/a.txt")[0]
    own = storages.PerThread()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(own.here, web).result() is own.here(web) is web
        here = own.here(files)
        assert pool.submit(own.here, files).result() is not here is own.here(files)


def test_links_of_a_server_are_followed_only_where_asked(files: MemoryFileSystem) -> None:
    for name in ("docs/a.txt", "docs/link.txt", "docs/lost.txt", "docs/pipe.txt", "elsewhere.txt"):
        files.pipe_file(f"/{name}", name.encode())
    OneThread.links.update({"/docs/link.txt": "/elsewhere.txt", "/docs/lost.txt": "/none"})
    OneThread.kinds["/docs/pipe.txt"] = "other"
    pipe = Skipped("pipe.txt", IgnoredReason.SPECIAL)
    first, *others = walked()
    assert first.relative == "a.txt"
    assert others == [*(Skipped(name, IgnoredReason.LINK) for name in ("link.txt", "lost.txt")), pipe]

    _, followed, lost, special = walked(follow_links=True)
    assert isinstance(followed, FoundFile)
    assert followed.remote is not None
    assert (followed.path, followed.remote.size) == ("/docs/link.txt", len("elsewhere.txt")), "the size of its target"
    assert isinstance(lost, Unlisted)
    assert lost.error.code is DocumentProblem.UNREADABLE
    assert special == pipe


class HttpResponseError(Exception):
    """As azure-core's."""

    def __init__(self, status_code: int) -> None:
        super().__init__("Server failed to authenticate the request.\nmore")
        self.status_code = status_code


@pytest.mark.parametrize("status", [401, 403])
def test_a_storage_that_refuses_the_keys_is_not_asked_again(status: int) -> None:
    asked = []

    def ask() -> None:
        asked.append(1)
        raise HttpResponseError(status)

    with pytest.raises(InputError, match=r"az://c may not be read: Server failed to authenticate") as refused:
        remote.asked("az://c", ask)
    assert refused.value.hint == storages.KEYS
    assert len(asked) == 1
    assert fault_of(HttpResponseError(status)) is OutputFault.NO_PERMISSION


@pytest.mark.parametrize(("status", "is_one"), [(403, True), (503, False)])
def test_what_a_web_server_refuses(status: int, is_one: bool) -> None:
    asked = RequestInfo(URL("http://127.0.0.1/list.txt"), "GET", CIMultiDictProxy(CIMultiDict()))
    assert storages.is_refusal(ClientResponseError(asked, (), status=status)) is is_one


@pytest.mark.parametrize(("long", "times"), [(20.0, 3), (-1.0, 1)])
def test_a_storage_that_tried_for_long_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, long: float, times: int
) -> None:
    monkeypatch.setattr(remote, "LONG_SECONDS", long)
    monkeypatch.setattr(remote, "PAUSES", (0, 0))
    asked = []

    def ask() -> None:
        asked.append(1)
        raise ConnectionResetError

    with pytest.raises(JobFilesError, match=r"az://c cannot be listed"):
        remote.asked("az://c", ask)
    assert len(asked) == times


def test_settings_that_a_storage_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *parts: Any, **options: Any) -> None:
        raise ValueError("Must provide either a connection_string or account_name")

    fsspec.register_implementation("onethread", OneThread, clobber=True)
    monkeypatch.setattr(OneThread, "__init__", refuse)
    with pytest.raises(InputError, match="may not be read: Must provide") as refused:
        remote.located("onethread://docs")
    assert refused.value.hint == storages.KEYS


def test_what_libraries_log_of_their_tries_stays_off_stderr(files: MemoryFileSystem) -> None:
    for _ in range(2):
        storages.opened("onethread://docs")
    handlers = logging.getLogger("gcsfs").handlers
    assert [type(one) for one in handlers] == [logging.NullHandler]
