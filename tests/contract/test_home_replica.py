"""The replica of a home: what a machine that takes over finds agrees with itself, whatever was going on."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.backends import Backend, BatchOrder
from orchestrator.core.atomic import durable
from orchestrator.core.clock import now
from orchestrator.core.errors import BackendError, NotReplicated, NotSent, StorageError, UsageError
from orchestrator.core.replica.contents import Cut
from orchestrator.core.replica.manifest import Manifest, ReplicaPiece, digest
from orchestrator.core.replica.restore import FolderCopy
from orchestrator.core.replica.storage import open_storage
from orchestrator.core.replica.takeover import Replica, take_turn
from orchestrator.core.replica.who_is_active import HeadLog, Superseded
from orchestrator.daemon.lock import daemon_lock
from orchestrator.daemon.loop import Daemon
from orchestrator.daemon.notices import Notices
from orchestrator.daemon.replica import home_contents
from orchestrator.daemon.replica.home_contents import LAYOUT, HomeContents
from orchestrator.daemon.replica.home_replica import HomeReplica
from orchestrator.daemon.replica.paid_calls import behind_replica
from orchestrator.daemon.replica.status_file import read_status, require_active, wait_until_sent
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.store import Store, database_images
from orchestrator.store.database_images import WatchedDatabase, has_rows, reading_at_once


def turn(url: str, root: Path, lapse: float = 0.0) -> Replica:
    root.mkdir(exist_ok=True)
    found = take_turn(url, root, LAYOUT, lambda: False, [].append, lapse)
    assert found is not None
    return found


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'replica'}"


class Churn:
    """A home in which everything happens at once, as a daemon and its server do it: a file is durable before the
    database names it, a batch is at the server before the home knows it, and is gone there after the home has its
    results.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self._dice = random.Random(seed)
        self._files: dict[str, int] = {}
        self._removed: set[str] = set()
        self._batches: list[int] = []
        self._number = 0
        self.home = sqlite3.connect(root / "orch.db", isolation_level=None, check_same_thread=False)
        self.home.executescript(
            "PRAGMA journal_mode=WAL; CREATE TABLE named (path PRIMARY KEY, size); CREATE TABLE batches (id, is_over)"
        )
        (root / "servers" / "local").mkdir(parents=True)
        self.server = ServerDatabase(root / "servers" / "local" / FILE_NAME)
        (root / "home.id").write_text("abc")

    def close(self) -> None:
        self.home.close()
        self.server.close()

    def step(self) -> None:
        self._number += 1
        time.sleep(0.001 * self._dice.randrange(4))
        self._dice.choice((self._append, self._append, self._replace, self._remove, self._create, self._collect))()

    def _append(self) -> None:
        path = self._dice.choice([*self._files, self._new("shards/001.output.jsonl")])
        if not path.endswith("output.jsonl"):
            return
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / path).open("ab") as file:
            file.write(line(path, file.tell()))
            file.flush()
            os.fsync(file.fileno())
            self._name(path, file.tell())

    def _replace(self) -> None:
        path = self._new("results.jsonl")
        if self._files and self._dice.random() < 0.5:
            path = self._dice.choice([one for one in self._files if one.endswith("results.jsonl")] or [path])
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        self._number += 1
        with durable(self.root / path) as file:
            for _ in range(self._dice.randint(1, 50)):
                file.write(line(path, file.tell(), self._number))
        self._name(path, 0)  # what takes the place of a file may be shorter

    def _remove(self) -> None:
        if self._files:
            path = self._dice.choice([*self._files])
            self.home.execute("DELETE FROM named WHERE path = ?", (path,))
            del self._files[path]
            self._removed.add(path)
            (self.root / path).unlink()

    def _create(self) -> None:
        self._number += 1
        path = f"files/in-{self._number}"
        (self.root / "servers" / "local" / path).parent.mkdir(exist_ok=True)
        (self.root / "servers" / "local" / path).write_bytes(line(path, 0))
        self.server.execute(
            "INSERT INTO files (id, serial, purpose, path, object) VALUES (?, ?, '', ?, '')",
            (str(self._number), self._number, path),
        )
        self.home.execute("INSERT INTO batches VALUES (?, 0)", (self._number,))
        self._batches.append(self._number)

    def _collect(self) -> None:
        if self._batches:
            number = self._batches.pop(self._dice.randrange(len(self._batches)))
            self.home.execute("UPDATE batches SET is_over = 1 WHERE id = ?", (number,))
            self.server.execute("DELETE FROM files WHERE id = ?", (str(number),))
            (self.root / "servers" / "local" / "files" / f"in-{number}").unlink()

    def _new(self, name: str) -> str:
        path = f"jobs/job-{self._dice.randrange(30)}/{name}"
        # No file comes back once it is removed: numbers of jobs and shards are given once.
        return path if path not in self._removed else f"jobs/job-{100 + self._number}/{name}"

    def _name(self, path: str, size: int) -> None:
        self._files[path] = size
        self.home.execute("INSERT OR REPLACE INTO named VALUES (?, ?)", (path, size))


def line(path: str, start: int, version: int = 0) -> bytes:
    """What stands in a file from a place on."""
    return f'{{"path": "{path}", "at": {start}, "version": {version}}}\n'.encode()


def check(root: Path) -> int:
    """How many things a home names; each of them is there."""
    with closing(sqlite3.connect(root / "orch.db")) as home:
        named = home.execute("SELECT path, size FROM named").fetchall()
        open_batches = {number for (number,) in home.execute("SELECT id FROM batches WHERE NOT is_over")}
        known = {number for (number,) in home.execute("SELECT id FROM batches")}
    for path, size in named:
        data = (root / path).read_bytes()
        assert len(data) >= size, path
        at, version = 0, int(data.split(b'"version": ')[1].split(b"}")[0])
        while at < len(data):
            expected = line(path, at, version)
            assert data[at : at + len(expected)] == expected, (path, at)
            at += len(expected)
    with closing(ServerDatabase(root / "servers" / "local" / FILE_NAME)) as server:
        files = {int(number): path for number, path in server.query("SELECT id, path FROM files")}
    assert open_batches <= files.keys(), "what the home waits for is at the server"
    assert known >= files.keys() - {max(known | files.keys(), default=0)}, "of the others, one was just made"
    for path in files.values():
        assert (root / "servers" / "local" / path).read_bytes() == line(path, 0)
    return len(named) + len(files)


@contextmanager
def replicated(url: str, root: Path) -> Iterator[HomeReplica]:
    with HomeReplica(Home(root), turn(url, root), is_shared=False) as sent:
        yield sent


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3, 4))])
def test_what_a_take_over_finds_agrees_with_itself(
    seed: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed == 1:
        monkeypatch.setattr(database_images, "LARGEST_IN_MEMORY", 0)  # as if the databases were large
    # A busy machine finds no moment without a write in a second, and then lets a file go that was there for a moment.
    monkeypatch.setattr(home_contents, "QUIET_SECONDS", home_contents.LONGEST_SECONDS)
    (tmp_path / "a").mkdir()
    churn, is_over, found = Churn(tmp_path / "a", seed), threading.Event(), list[int]()
    storage, copies = open_storage(url), dict[Path, FolderCopy]()

    def work() -> None:
        while not is_over.is_set():
            churn.step()

    worker = threading.Thread(target=work)
    with suppress(Superseded), replicated(url, tmp_path / "a") as sent:
        worker.start()
        try:
            for number in range(8):
                time.sleep(random.Random(number).uniform(0, 0.3))  # a kill comes at any moment
                with suppress(NotReplicated):  # a busy machine may write faster than it copies
                    sent.settled()
                # As a machine that would take over now, and one that has fetched ahead all the time.
                for copied in (tmp_path / f"copy-{number}", tmp_path / "ahead"):
                    copied.mkdir(exist_ok=True)
                    copy = copies.setdefault(copied, FolderCopy(storage, copied, LAYOUT))
                    head = HeadLog(storage).latest()
                    assert head is not None
                    try:
                        copy.fetch(copy.read(head.manifest), lambda: None)
                        if copied.name == "ahead" and number % 3:
                            continue
                        copy.finish(copy.read(head.manifest), lambda: None)
                    except StorageError:
                        continue  # replaced meanwhile by a newer one
                    found.append(check(copied))
        finally:
            is_over.set()
            worker.join()
    churn.close()
    assert len(found) >= 3
    assert max(found) > 5
    turn(url, tmp_path / "b")
    assert check(tmp_path / "b") > 0


def cut_of(contents: HomeContents) -> Cut:
    """The home as it would be sent now."""
    contents.version()
    return asyncio.run(contents.cut(is_new=True))


def named(cut: Cut) -> set[str]:
    """What the database of a cut names."""
    assert cut.images is not None
    image = cut.images["orch.db"]
    assert isinstance(image, bytes)
    with closing(sqlite3.connect(":memory:")) as database:
        # Its header says that it has a log beside it, which a database in memory has not.
        database.deserialize(image[:18] + b"\1\1" + image[20:])
        return {path for (path,) in database.execute("SELECT path FROM named")}


class Named:
    """A home of one file; `removed` removes it as the program does."""

    path = "jobs/job-1/shards/001.output.jsonl"

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / self.path).parent.mkdir(parents=True)
        (root / self.path).write_bytes(b"{}\n")
        self.database = sqlite3.connect(root / "orch.db", isolation_level=None, check_same_thread=False)
        self.database.executescript("PRAGMA journal_mode=WAL; CREATE TABLE named (path)")
        self.database.execute("INSERT INTO named VALUES (?)", (self.path,))
        self.contents = HomeContents(Home(root), {}, is_shared=False, as_of=0)

    def removed(self) -> dict[str, int | None]:
        self.database.execute("DELETE FROM named")
        (self.root / self.path).unlink(missing_ok=True)
        return {}

    def close(self) -> None:
        self.contents.close()
        self.database.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Named]:
    made = Named(tmp_path)
    yield made
    made.close()


def test_what_is_removed_while_it_is_looked_at_stays_for_what_names_it(
    home: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a home that is never quiet."""
    monkeypatch.setattr(home_contents, "QUIET_SECONDS", -1.0)
    contents = home.contents
    contents.sent(cut_of(contents))
    contents.durable = home.removed
    cut = cut_of(contents)
    assert named(cut) == {home.path}
    assert cut.files[home.path] is None, "as it was sent"
    contents.sent(cut)
    cut = cut_of(contents)
    assert (named(cut), home.path in cut.files) == (set(), False)


@pytest.mark.slow
def test_what_was_never_sent_and_is_removed_meanwhile_is_not_named(home: Named) -> None:
    home.contents.durable = home.removed
    cut = cut_of(home.contents)
    assert (named(cut), home.path in cut.files) == (set(), False)


def test_bytes_that_are_not_durable_are_not_sent(home: Named) -> None:
    home.contents.durable = lambda: {home.path: 1}
    assert cut_of(home.contents).files[home.path] == 1
    home.contents.durable = lambda: {home.path: None}
    assert cut_of(home.contents).files[home.path] is None


def test_a_file_that_took_the_place_of_another_is_compared(home: Named) -> None:
    contents, path = home.contents, home.root / home.path
    contents.sent(cut_of(contents))
    assert not cut_of(contents).unsure
    with path.open("ab") as file:
        file.write(b"{}\n")
    cut = cut_of(contents)
    assert (cut.files[home.path], cut.unsure) == (6, set()), "it has grown"
    contents.sent(cut)
    path.unlink()
    path.write_bytes(b"[]\n[]\n[]\n")
    assert cut_of(contents).unsure == {home.path}, "whatever number the file has"


def test_after_a_start_what_nobody_touched_is_not_read_again(home: Named) -> None:
    stat = (home.root / home.path).stat()
    known = {home.path: stat.st_size}
    later = HomeContents(Home(home.root), known, is_shared=False, as_of=stat.st_ctime + 1)
    assert cut_of(later).unsure == set()
    later.close()
    later = HomeContents(Home(home.root), known, is_shared=False, as_of=stat.st_ctime - 1)
    assert cut_of(later).unsure == {home.path}
    later.close()


def test_databases_agree_where_the_first_one_did_not_change(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        with closing(sqlite3.connect(path)) as database:
            database.executescript("PRAGMA journal_mode=WAL; CREATE TABLE one (x)")
    first, second = (WatchedDatabase(path) for path in paths)

    def written() -> Iterator[WatchedDatabase]:
        with closing(sqlite3.connect(paths[0])) as database:
            database.execute("INSERT INTO one VALUES (1)")
            database.commit()
        yield second

    with reading_at_once(first, [second]) as agree:
        assert agree
    with reading_at_once(first, written()) as agree:
        assert not agree
    assert has_rows(paths[0], ["none", "one"])
    assert not has_rows(paths[1], ["none", "one"])
    assert not has_rows(tmp_path / "none", ["one"])
    for watched in (first, second):
        watched.close()


def test_who_waits_in_another_process_is_told(url: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    home = Home(tmp_path / "a")
    with replicated(url, tmp_path / "a") as sent:
        sent.settled()
        status = read_status(home)
        assert status is not None
        assert (status.generation, status.url) == (1, url)
        with daemon_lock(home):
            require_active(home)
            wait_until_sent(home)
        with pytest.raises(UsageError, match="no daemon of it is running"):
            require_active(home)
    later = read_status(home)
    assert later is not None
    assert later.as_of > status.as_of, "the next start knows what is on the replica"


def test_a_home_with_jobs_is_not_replaced(url: str, tmp_path: Path) -> None:
    turn(url, tmp_path / "a").generation.write(is_released=True)
    (tmp_path / "b" / "jobs" / "job-1").mkdir(parents=True)
    (tmp_path / "b" / "home.id").write_text("other")
    with pytest.raises(UsageError, match="of its own"):
        turn(url, tmp_path / "b")
    assert (tmp_path / "b" / "home.id").read_text() == "other"


def test_what_comes_back_to_a_former_content_is_fetched_again(url: str, tmp_path: Path) -> None:
    """A database's page that is written, and written back; a file that another one takes the place of for a while."""
    storage, copy = open_storage(url), FolderCopy(open_storage(url), tmp_path / "b", LAYOUT)
    (tmp_path / "b").mkdir()

    def holding(text: bytes) -> Manifest:
        name = f"objects/{os.urandom(4).hex()}"
        storage.put(name, text)
        pieces = [ReplicaPiece(name, len(text), digest(text))]
        return Manifest(images={"orch.db": pieces}, files={"jobs/j/results.jsonl": pieces})

    for text in (b"first", b"other", b"first", b"short"[:2], b"first"):
        copy.fetch(holding(text), lambda: None)
        assert (tmp_path / "b/jobs/j/results.jsonl").read_bytes() == text
    for text in (b"first", b"other"):
        copy.finish(holding(text), lambda: None)
        copy.finish(holding(text), lambda: None)
        assert (tmp_path / "b/orch.db").read_bytes() == text


def test_what_may_differ_stays_so_until_it_was_sent(home: Named) -> None:
    contents, path = home.contents, home.root / home.path
    contents.sent(cut_of(contents))
    path.unlink()
    path.write_bytes(b"[]\n[]\n[]\n")
    assert cut_of(contents).unsure == {home.path}, "and the round that sends it fails"
    with path.open("ab") as file:
        file.write(b"[]\n")
    cut = cut_of(contents)
    assert cut.unsure == {home.path}
    contents.sent(cut)
    assert cut_of(contents).unsure == set()


def test_nobody_waits_for_a_long_look(home: Named) -> None:
    """A generation is renewed on the loop that asks for the version."""

    def asked() -> dict[str, int | None]:
        asking = threading.Thread(target=home.contents.version)
        asking.start()
        asking.join(10)
        assert not asking.is_alive()
        return {}

    home.contents.durable = asked
    cut_of(home.contents)


@pytest.mark.slow
def test_a_change_in_the_moment_of_a_look_is_seen(home: Named) -> None:
    contents = home.contents
    contents.sent(cut_of(contents))
    contents.durable = home.removed
    contents.version()
    cut = asyncio.run(contents.cut(is_new=False))
    assert (named(cut), cut.files.get(home.path)) == (set(), None)


def test_a_home_on_two_disks_is_refused(tmp_path: Path) -> None:
    elsewhere = next(
        path for path in (Path("/dev/shm"), Path("/proc")) if path.stat().st_dev != tmp_path.stat().st_dev
    )
    (tmp_path / "jobs").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="on a different disk"):
        HomeContents(Home(tmp_path), {}, is_shared=False, as_of=0)


class Provider:
    """A Batch API that notes what it is asked."""

    appear_seconds = 5.0

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.asked.append(name)


def test_a_provider_is_asked_for_what_cannot_be_undone_once_the_replica_knows() -> None:
    provider, order = Provider(), BatchOrder("s", "f", "/v1/chat/completions", 60, 1)

    def away() -> None:
        raise NotReplicated("the replica is away")

    api = behind_replica(cast("Backend", provider), away)
    with pytest.raises(NotSent, match="the replica is away"):
        api.create(order)
    for act in (api.cancel, api.forget_file):
        with pytest.raises(BackendError, match="the replica is away"):
            act("x")
    api.retrieve("x")
    assert (provider.asked, api.appear_seconds) == (["retrieve"], 5.0)
    api = behind_replica(cast("Backend", provider), lambda: None)
    api.create(order)
    api.cancel("x")
    api.forget_file("x")
    assert provider.asked == ["retrieve", "create", "cancel", "forget_file"]


LOOKS = frozenset(
    "account batches check close download files find input_ids input_lines listed lists_model partial read_on "
    "retrieve sent_line size_of tagged batches_since upload".split()
)
"""Verbs that neither cost money nor take anything away."""


def test_every_verb_of_a_backend_is_fenced_or_known_to_need_no_fence() -> None:
    """A verb that is added to `Backend` fails here until it is one or the other."""
    verbs = {name for name, value in vars(Backend).items() if callable(value) and not name.startswith("_")}

    def away() -> None:
        raise NotReplicated("the replica is away")

    asked: list[str] = []
    api = behind_replica(cast("Backend", Recorder(asked)), away)
    assert "__getattr__" not in dir(type(api))
    for verb in verbs - LOOKS:
        act = getattr(api, verb)
        with pytest.raises(BackendError, match="the replica is away"):
            act(*(None for _ in inspect.signature(act).parameters))
    assert asked == []
    assert verbs - LOOKS == {"create", "ask", "cancel", "forget_file"}


class Recorder:
    """Has every verb, and notes each call."""

    appear_seconds = 1.0

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self._asked.append(name)


def test_a_daemon_without_its_replica_does_not_begin(url: str, tmp_path: Path) -> None:
    turn(url, tmp_path / "a")
    place = Place(tmp_path / "orch.toml", tmp_path / "a", f"sqlite:///{tmp_path / 'a' / 'orch.db'}", 1.0)
    (tmp_path / "orch.toml").write_text("")
    with Store.open(place.database_url) as store, pytest.raises(UsageError, match="only `orch up --replica URL`"):
        Daemon(load(place), store)


def test_what_is_not_on_the_replica_yet_ends_no_daemon() -> None:
    notices = Notices(now)
    with notices.apart("schedules"):
        raise NotReplicated("the replica is away")
    assert len(notices.taken()) == 1
    with pytest.raises(StorageError), notices.apart("schedules"):
        raise StorageError("the disk is full")
