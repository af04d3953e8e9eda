"""The replica of a server, in a folder and in a bucket: who is active, what is committed, and what comes back."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import NotReplicated, StorageError, UsageError
from orchestrator.core.replica import storage as storages
from orchestrator.core.replica.contents import MARK
from orchestrator.core.replica.manifest import first_to_send, read_manifest
from orchestrator.core.replica.replicator import Replicator
from orchestrator.core.replica.storage import FolderStorage, Missing, Storage, open_storage
from orchestrator.core.replica.takeover import Replica, take_turn
from orchestrator.core.replica.who_is_active import (
    HOLD_SECONDS,
    Generation,
    HeadLog,
    ReplicaHead,
    Superseded,
    seconds,
)
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.replicated_folder import LAYOUT, ServerContents
from tests.support.s3 import empty_bucket, s3_environment, s3_server

T = TypeVar("T")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield f"file://{tmp_path / 'replica'}"
        return
    for name, value in s3_environment(request.getfixturevalue("server")).items():
        monkeypatch.setenv(name, value)
    with empty_bucket():
        yield "s3://bucket/replica"


@pytest.fixture
def storage(url: str) -> Storage:
    return open_storage(url)


def first_head(folder: str, *, number: int = 1, generation: int = 1) -> ReplicaHead:
    return ReplicaHead(number=number, generation=generation, replica="r", folder=folder, holder=folder, manifest="")


def taken(storage: Storage, folder: str, clock: Callable[[], float] = lambda: 0.0) -> Generation:
    """A generation that a server takes now, whoever is active."""
    heads = HeadLog(storage)
    last = heads.latest()
    head = first_head(folder)
    if last is not None:
        next_one = {"number": last.number + 1, "generation": last.generation + 1, "manifest": last.manifest}
        head = msgspec.structs.replace(head, **next_one)
    return Generation(heads, heads.write(head), clock(), clock)


@pytest.mark.long
def test_an_object_is_created_once(storage: Storage) -> None:
    assert storage.names("heads") == []
    with pytest.raises(Missing):
        storage.get("heads/1")
    with ThreadPoolExecutor(8) as pool:
        there = list(pool.map(lambda number: storage.create("heads/1", b"by %d" % number), range(8)))
    assert set(there) == {storage.get("heads/1")}
    storage.put("objects/a", b"\0" * 100_000)
    assert (storage.names("heads"), storage.names("objects")) == (["1"], ["a"])
    storage.remove(["objects/a", "objects/never"])
    assert storage.names("objects") == []


@pytest.mark.long
def test_of_many_that_take_over_one_is_active(storage: Storage) -> None:
    heads = HeadLog(storage)
    heads.write(first_head("old"))

    def take(number: int) -> bool:
        try:
            heads.write(first_head(f"new-{number}", number=2, generation=2))
        except Superseded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(8))) == 1


@pytest.mark.long
def test_who_comes_late_is_superseded_though_its_number_is_free_again(storage: Storage) -> None:
    late = taken(storage, "late")
    later = taken(storage, "later")
    for _ in range(8):
        later.write("manifests/of-later")
    numbers = [int(name) for name in storage.names("heads")]
    assert late.head.number + 1 not in numbers
    assert len(numbers) <= 7
    with pytest.raises(Superseded) as caught:
        late.write("manifests/of-late")
    assert caught.value.exit_code == 4
    newest = HeadLog(storage).latest()
    assert newest is not None
    assert (newest.folder, newest.manifest) == ("later", "manifests/of-later")
    later.write()


@dataclass
class Faulty(FolderStorage):
    """A folder whose answers get lost: before a head is there, or behind that."""

    root: Path
    losses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.root)

    def create(self, name: str, data: bytes) -> bytes:
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            raise StorageError("lost before")
        there = super().create(name, data)
        if loss == "behind":
            raise StorageError("lost behind")
        return there


def test_a_lost_answer_is_found_out_by_the_next_write(tmp_path: Path) -> None:
    storage = Faulty(tmp_path)
    times = [0.0]
    active = taken(storage, "a", lambda: times[0])
    storage.losses = ["behind", "before", "behind"]
    for number in range(3):
        times[0] += 1.0
        with pytest.raises(StorageError):
            active.write(f"manifests/{number}")
        assert active.age == times[0], "what is not known to be written holds nobody"
    active.write("manifests/last")
    newest = HeadLog(storage).latest()
    assert newest == active.head
    assert newest.manifest == "manifests/last"
    assert active.age == 0.0


def test_a_generation_is_held_from_the_beginning_of_its_last_write(tmp_path: Path) -> None:
    times = [100.0]
    active = taken(FolderStorage(tmp_path), "a", lambda: times[0])
    times[0] += HOLD_SECONDS - 0.1
    assert active.is_held
    active.renew(HOLD_SECONDS)
    times[0] += 0.2
    assert not active.is_held
    active.renew(HOLD_SECONDS)
    assert active.is_held


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["take", "write", "lose"])), max_size=40))
def test_only_the_newest_generation_commits(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    """Three servers in any order: what one is told is committed is what the next one finds."""
    storage = Faulty(tmp_path_factory.mktemp("replica"))
    servers: dict[int, Generation] = {}
    newest, possible = 0, {""}
    for step, (server, what) in enumerate(steps):
        if what == "take":
            servers[server] = taken(storage, str(server))
            newest = servers[server].number
            possible = {servers[server].head.manifest}
        elif server in servers:
            name, storage.losses = f"manifests/{step}", ["behind"] if what == "lose" else []
            try:
                servers[server].write(name)
            except Superseded:
                assert servers[server].number < newest
            except StorageError:
                assert what == "lose"
                # Nobody knows; of a server that is superseded, it changes nothing.
                possible |= {name} if servers[server].number == newest else set()
            else:
                assert servers[server].number == newest
                possible = {name}
            storage.losses = []
        head = HeadLog(storage).latest()
        assert head is None or (head.generation == newest and head.manifest in possible)


@given(st.lists(st.integers(1, 3_000_000), min_size=1, max_size=300))
def test_a_file_that_grows_has_few_pieces(growth: list[int]) -> None:
    sizes: list[int] = []
    sent = 0
    for more in growth:
        first = first_to_send(sizes, more)
        grown = sum(sizes[first:]) + more
        sizes[first:] = [grown]
        sent += grown
    assert sum(sizes) == sum(growth)
    assert len(sizes) <= 24 + sum(growth) // 4_000_000
    assert sent <= 12 * sum(growth) + 12


class Desk:
    """A server's folder, its database and its replicator; files are recorded by hand."""

    def __init__(self, url: str, root: Path, lapse: float = 10.0) -> None:
        self.root = root
        self.said: list[str] = []
        root.mkdir(exist_ok=True)
        found = take_turn(url, root, LAYOUT, lambda: False, self.said.append, lapse)
        assert found is not None
        self.replica: Replica = found
        self.database = ServerDatabase(root / FILE_NAME)
        self.growing: dict[str, int | None] = {}

    def add(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)
        self.database.execute(
            "INSERT INTO files (id, serial, purpose, path, object, bytes) VALUES (?, 1, 'batch', ?, '', ?)",
            (path, path, len(data)),
        )

    def append(self, path: str, data: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / path).open("ab") as file:
            file.write(data)
        self.growing[path] = (self.root / path).stat().st_size

    def remove(self, path: str) -> None:
        self.database.execute("DELETE FROM files WHERE path = ?", (path,))
        (self.root / path).unlink()

    def replicator(self) -> Replicator:
        def recorded() -> dict[str, int]:
            return dict(self.database.query("SELECT path, bytes FROM files"))

        contents = ServerContents(self.root, self.database, recorded, lambda: self.growing)
        return Replicator(self.replica, contents, lambda: None)

    def replicate(self, *steps: Callable[[], None], release: bool = False) -> Replicator:
        """Do these steps, each replicated before the next; what they leave is as after a kill, or after an end."""

        async def run() -> Replicator:
            replicator = self.replicator()
            replicator.start()
            try:
                for step in steps:
                    step()
                    await replicator.settled()
            finally:
                if release:
                    await replicator.close()
                else:
                    await _kill(replicator)
            return replicator

        return asyncio.run(run())


async def _kill(replicator: Replicator) -> None:
    for task in replicator._tasks:
        task.cancel()
    await asyncio.gather(*replicator._tasks, return_exceptions=True)


def files_of(root: Path) -> dict[str, bytes]:
    paths = [path for name in ("files", "batches") for path in (root / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def recorded(root: Path) -> list[str]:
    with closing(ServerDatabase(root / FILE_NAME)) as database:
        return [row[0] for row in database.query("SELECT path FROM files ORDER BY path")]


@pytest.mark.long
def test_another_folder_gets_all_of_it(url: str, storage: Storage, tmp_path: Path) -> None:
    active = Desk(url, tmp_path / "a")
    large = bytes(range(256)) * 70_000
    result = b'{"custom_id": "r"}\n'

    def grow() -> None:
        active.append("batches/b1/output.jsonl", result * 1000)
        active.database.execute("INSERT OR REPLACE INTO learned VALUES (?, 1)", (str(len(active.growing)),))

    active.replicate(
        lambda: active.add("files/large", large), lambda: active.add("files/small", b"{}\n"),
        grow, grow, grow, lambda: active.remove("files/small"), lambda: active.append("batches/b1/error.jsonl", b""),
        grow, release=True,
    )  # fmt: skip
    active.append("batches/b1/output.jsonl", b"not replicated\n")
    other = Desk(url, tmp_path / "b")
    assert other.said == [f"active, generation 2, from {url}"]
    assert recorded(tmp_path / "b") == ["files/large"]
    assert files_of(tmp_path / "b") == {
        "files/large": large, "batches/b1/output.jsonl": result * 4000, "batches/b1/error.jsonl": b"",
    }  # fmt: skip
    manifest = read_manifest(storage, other.replica.generation.head.manifest, LAYOUT)
    needed = {name.removeprefix("objects/") for name in manifest.names()}
    assert set(storage.names("objects")) == needed, "nothing is kept that nobody needs"
    assert len(storage.names("manifests")) == 1


def test_the_same_folder_goes_on_with_what_it_has(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'replica'}"
    active = Desk(url, tmp_path / "a")
    active.replicate(lambda: active.add("files/one", b"1\n"))
    active.add("files/two", b"2\n")
    again = Desk(url, tmp_path / "a")
    assert again.said == ["active, generation 2, from this folder"]
    assert recorded(tmp_path / "a") == ["files/one", "files/two"]
    again.replicate(lambda: None, release=True)
    Desk(url, tmp_path / "b").replicate(lambda: None, release=True)
    assert files_of(tmp_path / "b") == {"files/one": b"1\n", "files/two": b"2\n"}
    (tmp_path / "a" / "files" / "stray").write_bytes(b"of a generation that is over")
    third = Desk(url, tmp_path / "a")
    assert third.said == [f"active, generation 4, from {url}"]
    assert files_of(tmp_path / "a") == {"files/one": b"1\n", "files/two": b"2\n"}


def test_what_a_damaged_disk_changed_is_sent_again(tmp_path: Path) -> None:
    url, path = f"file://{tmp_path / 'replica'}", "batches/b/output.jsonl"
    active = Desk(url, tmp_path / "a")
    for text in (b"first\n" * 5000, b"second\n" * 100, b"third\n"):
        active.append(path, text)
        active.add(f"files/{len(text)}", text)
        active.replicate(lambda: None)
    whole = (tmp_path / "a" / path).read_bytes()
    (tmp_path / "a" / path).write_bytes(whole.replace(b"second\n", b"", 1))
    again = Desk(url, tmp_path / "a")
    again.growing[path] = (tmp_path / "a" / path).stat().st_size
    again.replicate(lambda: again.append(path, b"fourth\n"), lambda: again.add("files/y", b""), release=True)
    Desk(url, tmp_path / "b")
    assert (tmp_path / "b" / path).read_bytes() == whole.replace(b"second\n", b"", 1) + b"fourth\n"


def test_a_folder_that_was_rolled_back_is_not_ahead(tmp_path: Path) -> None:
    """A disk's snapshot is put back: what it has is older than the replica, though nobody else was active."""
    url = f"file://{tmp_path / 'replica'}"
    active = Desk(url, tmp_path / "a")
    active.replicate(lambda: active.add("files/one", b"1\n"))
    shutil.copytree(tmp_path / "a", tmp_path / "snapshot")
    active.replicate(lambda: active.add("files/two", b"2\n"))
    active.database.close()
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "snapshot").rename(tmp_path / "a")
    again = Desk(url, tmp_path / "a")
    assert again.said == [f"active, generation 2, from {url}"]
    assert recorded(tmp_path / "a") == ["files/one", "files/two"]


def test_a_machine_that_was_copied_waits_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path / 'replica'}"
    active = Desk(url, tmp_path / "a")
    active.replicate(lambda: active.add("files/one", b"1\n"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    said: list[str] = []
    assert take_turn(url, tmp_path / "b", LAYOUT, lambda: bool(said), said.append) is None
    assert said[0].startswith("standing by")


def test_a_replica_that_is_not_there_is_not_begun_anew(tmp_path: Path) -> None:
    """Its disk is not mounted, or the URL has a slip: another machine may be the active one."""
    url, replica = f"file://{tmp_path / 'replica'}", tmp_path / "replica"
    active = Desk(url, tmp_path / "a")
    active.replicate(lambda: active.add("files/one", b"1\n"))
    replica.rename(tmp_path / "unmounted")
    with pytest.raises(UsageError, match="is empty"):
        Desk(url, tmp_path / "a")
    with pytest.raises(StorageError, match="does not hold what was written"):
        active.replica.generation.write()
    shutil.rmtree(replica)
    (tmp_path / "unmounted").rename(replica)
    assert Desk(url, tmp_path / "a").said == ["active, generation 2, from this folder"]


class Slow(FolderStorage):
    """A folder that has taken a head, and is so long about saying it that the process was paused meanwhile."""

    def __init__(self, root: Path, times: list[float]) -> None:
        super().__init__(root)
        self.times = times

    def create(self, name: str, data: bytes) -> bytes:
        there = super().create(name, data)
        self.times[0] += 100.0 * name.startswith("heads/")
        return there


def test_who_was_paused_behind_a_commit_is_not_told_that_all_is_well(tmp_path: Path) -> None:
    active, times = Desk(f"file://{tmp_path / 'replica'}", tmp_path / "a"), [0.0]
    storage, head = Slow(tmp_path / "replica", times), active.replica.generation.head
    generation = Generation(HeadLog(storage), head, 0.0, lambda: times[0])
    active.replica = Replica(storage, generation, active.replica.manifest, active.replica.folder)

    async def run() -> None:
        replicator = active.replicator()
        active.add("files/one", b"1\n")
        sending = asyncio.create_task(replicator.send())
        with pytest.raises(NotReplicated):
            await replicator.settled()
        assert await sending

    asyncio.run(run())


def test_nobody_waits_for_what_fails_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica takes heads, but the folder cannot be read."""
    monkeypatch.setattr("orchestrator.core.replica.replicator.HOLD_SECONDS", 0.5)
    active = Desk(f"file://{tmp_path / 'replica'}", tmp_path / "a")
    active.growing["batches/b/output.jsonl"] = 5

    async def run() -> None:
        replicator = active.replicator()
        replicator.start()
        try:
            active.add("files/one", b"1\n")
            with pytest.raises(NotReplicated, match=r"output\.jsonl"):
                await replicator.settled()
            assert replicator.is_held
            assert "output.jsonl" in str(replicator.failing)
            active.append("batches/b/output.jsonl", b"12345")
            while replicator.failing:
                await asyncio.sleep(0.05)
            await replicator.settled()
        finally:
            await _kill(replicator)

    asyncio.run(run())


def test_who_was_superseded_changes_nothing(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'replica'}"
    storage = open_storage(url)
    paused = Desk(url, tmp_path / "a")
    paused.replicate(lambda: paused.add("files/one", b"1\n"), release=True)
    other = Desk(url, tmp_path / "b")
    other.replicate(lambda: other.add("files/two", b"2\n"))
    head = HeadLog(storage).latest()
    with pytest.raises(Superseded):
        paused.replicate(lambda: paused.add("files/three", b"3\n"))
    assert HeadLog(storage).latest() == head
    assert "files/three" not in read_manifest(storage, other.replica.generation.head.manifest, LAYOUT).files
    other.replicate(lambda: other.add("files/four", b"4\n"), release=True)
    Desk(url, tmp_path / "c")
    assert recorded(tmp_path / "c") == ["files/four", "files/one", "files/two"]


class Dying(FolderStorage):
    """A folder that a server reaches for so many calls; the last one is carried out or not, and nobody knows."""

    def __init__(self, root: Path, calls: int) -> None:
        super().__init__(root)
        self.calls = calls

    def create(self, name: str, data: bytes) -> bytes:
        there = super().create(name, data) if self._is_reached() else b""
        return self._answered(there)

    def names(self, folder: str) -> list[str]:
        return self._answered(super().names(folder) if self._is_reached() else [])

    def remove(self, names: Iterable[str]) -> None:
        self._answered(super().remove(names) if self._is_reached() else None)

    def _is_reached(self) -> bool:
        self.calls -= 1
        return self.calls >= 0

    def _answered(self, answer: T) -> T:
        if self.calls <= 0:
            raise StorageError("the machine is gone")
        return answer


@pytest.mark.long
def test_wherever_a_server_dies_the_next_one_has_what_was_acknowledged(tmp_path: Path) -> None:
    """A batch from its file to its end, cut off behind each call to the storage: files and records agree."""
    path, ends, calls = "batches/b/output.jsonl", 0, 0
    while not ends:
        calls += 1
        folder = tmp_path / str(calls)
        folder.mkdir()
        url = f"file://{folder / 'replica'}"
        active, said = Desk(url, folder / "a"), ReplicaSteps()
        dying = Dying(folder / "replica", calls)
        generation = Generation(HeadLog(dying), active.replica.generation.head, seconds())
        active.replica = Replica(dying, generation, active.replica.manifest, active.replica.folder)
        ends = asyncio.run(said.run(active, path))
        other = Desk(url, folder / "b", lapse=0)
        found = files_of(folder / "b")
        assert set(recorded(folder / "b")) <= set(found), "what is recorded is there"
        assert said.acknowledged <= set(recorded(folder / "b")) | {path}
        assert said.sent.startswith(found.get(path, b""))
        assert found.get(path, b"").startswith(said.safe)
        other.replicate(lambda: None, release=True)
    assert calls > 20


class ReplicaSteps:
    """What a server does with a batch; what of it was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.sent = self.safe = b""

    async def run(self, desk: Desk, path: str) -> bool:
        """Whether it came to its end."""
        replicator = desk.replicator()
        desk.add("files/in", b"{}\n" * 100)
        if not await replicator.send():
            return False
        self.acknowledged.add("files/in")
        for number in range(3):
            self.sent += b"row %d\n" % number
            desk.append(path, b"row %d\n" % number)
            if not await replicator.send():
                return False
            self.safe = self.sent
        desk.add(path, self.sent)
        desk.growing.clear()
        desk.remove("files/in")
        self.acknowledged.clear()
        if not await replicator.send():
            return False
        self.acknowledged.add(path)
        return True


def test_a_folder_with_a_state_of_its_own_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'replica'}"
    Desk(url, tmp_path / "a").replicate(lambda: None, release=True)
    (tmp_path / "b").mkdir()
    ServerDatabase(tmp_path / "b" / FILE_NAME).close()
    with pytest.raises(UsageError, match="of its own"):
        Desk(url, tmp_path / "b")
    assert (tmp_path / "b" / FILE_NAME).exists()


def test_two_that_begin_one_replica_keep_what_they_have(tmp_path: Path) -> None:
    """Both had a state of their own, and saw an empty replica."""
    url = f"file://{tmp_path / 'replica'}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ServerDatabase(tmp_path / name / FILE_NAME).close()

    def begin(name: str) -> str:
        try:
            Desk(url, tmp_path / name)
        except UsageError:
            return "refused"
        return "active"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(begin, "ab")) == ["active", "refused"]
    assert all((tmp_path / name / FILE_NAME).exists() for name in "ab")


def test_a_standby_fetches_ahead(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'replica'}"
    active = Desk(url, tmp_path / "a")
    large = bytes(range(256)) * 100
    active.replicate(lambda: active.add("files/one", large), lambda: active.append("batches/b/output.jsonl", b"1\n"))
    (tmp_path / "b").mkdir()
    there = tmp_path / "b" / "files" / "one"

    def is_over() -> bool:
        active.replica.generation.renew(0.5)
        return there.exists() and there.read_bytes() == large

    assert take_turn(url, tmp_path / "b", LAYOUT, is_over, [].append) is None
    assert not (tmp_path / "b" / FILE_NAME).exists(), "it has no state before it is active"
    active.replicate(lambda: active.append("batches/b/output.jsonl", b"2\n"), lambda: active.remove("files/one"))
    Desk(url, tmp_path / "b", lapse=0)
    assert files_of(tmp_path / "b") == {"batches/b/output.jsonl": b"1\n2\n"}


def test_a_kill_while_a_folder_is_restored_begins_again(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'replica'}"
    active = Desk(url, tmp_path / "a")
    active.replicate(lambda: active.add("files/one", b"1\n"), release=True)
    (tmp_path / "b").mkdir()
    assert take_turn(url, tmp_path / "b", LAYOUT, lambda: False, [].append) is not None
    mark = json.loads((tmp_path / "b" / MARK).read_bytes())
    (tmp_path / "b" / MARK).write_text(json.dumps({**mark, "generation": 0}))
    (tmp_path / "b" / "files" / "one").write_bytes(b"half")
    assert Desk(url, tmp_path / "b").said == [f"active, generation 3, from {url}"]
    assert files_of(tmp_path / "b") == {"files/one": b"1\n"}


@pytest.mark.parametrize("broken", ["objects", "manifests"])
def test_a_replica_that_lacks_an_object_is_told(tmp_path: Path, broken: str) -> None:
    url = f"file://{tmp_path / 'replica'}"
    active = Desk(url, tmp_path / "a")
    active.replicate(lambda: active.add("files/one", b"1\n"), release=True)
    for path in (tmp_path / "replica" / broken).iterdir():
        path.write_bytes(b"{")
    with pytest.raises(StorageError, match=broken[:-1]):
        Desk(url, tmp_path / "b")


def test_a_manifest_names_no_path_outside(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    storage.put("manifests/m", msgspec.json.encode({"database": [], "files": {"files/../../x": []}}))
    with pytest.raises(StorageError, match=r"files/\.\./\.\./x, which is not replicated"):
        read_manifest(storage, "manifests/m", LAYOUT)


def test_a_manifest_of_an_earlier_orch_is_read(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    files = {"files/x": [["objects/b", 1, "e"]]}
    storage.put("manifests/m", msgspec.json.encode({"database": [["objects/a", 3, "d"]], "files": files}))
    found = read_manifest(storage, "manifests/m", LAYOUT)
    assert list(found.names()) == ["objects/a", "objects/b"]
    assert list(found.images) == [FILE_NAME]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("gs://bucket/folder", "S3 bucket or in a folder|not installed"),
        ("relative/folder", "must begin with /"),
        ("s3://key:secret@bucket/folder", "no password"),
    ],
)
def test_what_cannot_hold_a_replica_is_refused(url: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        open_storage(url)


@pytest.mark.long
def test_a_storage_that_overwrites_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_environment(server).items():
        monkeypatch.setenv(name, value)
    with empty_bucket():
        bucket = storages.BucketStorage("s3://bucket/x")
        bucket._fs.pipe_file = lambda path, data, mode="": type(bucket._fs).pipe_file(bucket._fs, path, data)
        with pytest.raises(UsageError, match="overwrites"):
            bucket.require_conditions()


def test_a_standby_that_finds_the_replica_full_waits_until_it_is_not(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'replica'}"
    open_storage(url)
    before, messages = resource.getrlimit(resource.RLIMIT_FSIZE), list[str]()

    def tell(text: str) -> None:
        messages.append(text)
        if "trying again" in text:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        found = take_turn(url, tmp_path / "a", LAYOUT, lambda: len(messages) > 9, tell, 0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found is not None
    assert [text for text in messages if "trying again" in text] == [messages[0]]
