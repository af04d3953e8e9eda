"""`orch backup`: what is in it while others write and remove, what it finds missing, what `--check` finds broken."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.errors import InputError, RefusedError, StorageError, UsageError
from orchestrator.pipeline.gc import backup, sweep
from orchestrator.server.database import ServerDatabase
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.database import Database
from orchestrator.store.gc import Removals
from tests.support.stored import NOW
from tests.support.years import Years


@pytest.fixture
def years(tmp_path: Path) -> Iterator[Years]:
    url = f"sqlite:///{tmp_path / 'home' / 'orch.db'}"
    with Store.open(url) as store:
        yield Years(tmp_path, store, url)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "orch.tar"


def make(years: Years, target: Path) -> backup.BackupContents:
    return backup.make(years.store, years.home, target, NOW)


def unpacked(target: Path, folder: Path) -> Home:
    """A home made of a backup, as docs/how-to/retention-and-backup.md says."""
    folder.mkdir()
    with tarfile.open(target) as archive:
        archive.extractall(folder, filter="data")
    return Home(folder)


def serve(years: Years, *files: str, there: bool = True) -> Path:
    """The folder of a batch server with these files in its records, and on its disk."""
    folder = years.home.server("gpu")
    (folder / "files").mkdir(parents=True)
    (folder / "batches" / "batch_1").mkdir(parents=True)
    database = ServerDatabase(folder / "server.db")
    for number, name in enumerate(files):
        database.execute("INSERT INTO files (id, serial, purpose, path, object) VALUES (?, ?, 'batch', ?, '{}')",
                         (name, number, f"files/{name}"))  # fmt: skip
        if there:
            (folder / "files" / name).write_text(name)
    database.close()
    os.mkfifo(folder / "server.sock")  # no file, as a socket is none
    return folder


def test_a_backup_is_the_home_at_one_moment(years: Years, target: Path, tmp_path: Path) -> None:
    first, last = years.run(9, "one"), years.run(1, "one", "two")
    serve(years, "in")
    (years.home.job(last.id) / ".results.jsonl.partial").write_text("half")
    (years.home.root / "jobs" / ".gone.x").mkdir()
    answers = years.outputs(last)
    made = make(years, target)
    assert made.problems == []
    years.run(0, "three")

    checked = backup.check(target)
    assert (checked.files, checked.bytes) == (made.files, made.bytes), "one backup has one size"
    assert (checked.problems, checked.lines, checked.files) == ([], 2, made.files)
    assert checked.label == made.label
    assert checked.label.home == years.home.identity()
    with tarfile.open(target) as archive:
        names = [member.name for member in archive.getmembers() if member.isreg()]
    assert names[-1] == "backup.json"
    assert sorted(names[:-1]) == sorted(
        [
            "home.id", "orch.db", "servers/gpu/files/in", "servers/gpu/server.db",
            *(f"jobs/{job.id}/{name}" for job in (first, last)
              for name in ("requests.jsonl", "results.jsonl", "shards/001.output.jsonl")),
        ]
    )  # fmt: skip
    home = unpacked(target, tmp_path / "restored")
    assert home.identity() == years.home.identity()
    assert (home.root / "servers" / "gpu" / "batches" / "batch_1").is_dir()
    url = f"sqlite:///{home.root / 'orch.db'}"
    with Store.open(url) as store:
        restored = Years(tmp_path, store, url)
        restored.home = home
        assert [job.id for job in store.jobs.newest()] == [last.id, first.id]
        assert restored.outputs(store.jobs.get(last.id)) == answers
    assert not list(years.home.root.glob(".backup.*"))


@pytest.mark.long
def test_it_is_consistent_while_others_write_and_remove(years: Years, target: Path, tmp_path: Path) -> None:
    """Jobs come and finish, and server files come and go, all the time: each backup holds what its database says."""
    years.run(9, "one")
    folder = serve(years)
    stop, problems = threading.Event(), []

    def write() -> None:
        with Store.open(years.place.database_url) as store:
            mine = Years(years.folder, store, years.place.database_url)
            database = ServerDatabase(folder / "server.db")
            number = 0
            while not stop.is_set():
                number += 1
                mine.run(8 - number / 1000, f"text-{number}")
                (folder / "files" / str(number)).write_text("x")
                database.execute(
                    "INSERT INTO files (id, serial, purpose, path, object) VALUES (?, ?, 'batch', ?, '{}')",
                    (str(number), number, f"files/{number}"),
                )
                database.execute("DELETE FROM files WHERE id = ?", (str(number - 1),))
                (folder / "files" / str(number - 1)).unlink(missing_ok=True)
            database.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(4):
            path = tmp_path / f"{number}.tar"
            problems += make(years, path).problems + backup.check(path).problems
    finally:
        stop.set()
        writer.join()
    assert problems == []


class Busy(Removals):
    """Something happens just before and just behind the copy of the database."""

    def __init__(self, url: str, before: Callable[[], object], behind: Callable[[], object]) -> None:
        super().__init__(Database(url))
        self.copies = 0
        self._before = before
        self._behind = behind

    def copy_to(self, path: Path) -> None:
        self.copies += 1
        self._before()
        super().copy_to(path)
        self._behind()


def test_what_comes_and_goes_around_the_copy(years: Years, target: Path) -> None:
    """A job that finishes before it is in the backup whole; one that goes behind it is in no part of it."""
    going, new = years.run(9, "one", name="b"), []

    def come() -> None:
        new.append(years.run(1, f"text-{len(new)}"))

    def go() -> None:
        if years.store.removals.forget(going.id):
            shutil.rmtree(years.home.job(going.id))

    own = years.store.removals
    busy = years.store.removals = Busy(years.place.database_url, come, go)
    made = make(years, target)
    years.store.removals = own
    assert made.problems == []
    assert busy.copies == 2  # the first had the job that went
    checked = backup.check(target)
    assert (checked.problems, checked.lines) == ([], 2)
    with tarfile.open(target) as archive:
        names = archive.getnames()
    assert all(f"jobs/{job.id}/shards/001.output.jsonl" in names for job in new)
    assert not any(going.id in name for name in names)


def test_what_the_home_lacks_is_told_and_the_rest_is_there(years: Years, target: Path) -> None:
    first, last = years.run(9, "one"), years.run(1, "two")
    serve(years, "in", there=False)
    years.home.results(f"{first.id}.001", "output").write_text("{}")
    years.home.requests(last.id).unlink()
    problems = make(years, target).problems
    assert [problem.partition(":")[0] for problem in problems] == [
        f"jobs/{first.id}/shards/001.output.jsonl", f"jobs/{last.id}/requests.jsonl", "servers/gpu/files/in",
    ]  # fmt: skip
    assert "has 2 of" in problems[0]
    assert problems[2].endswith("is not there, and servers/gpu/server.db names it")
    assert backup.check(target).problems == problems


def test_a_cleared_job_and_one_that_is_built_lack_nothing(years: Years, target: Path) -> None:
    old = years.run(100, "one")
    years.run(1, "two")
    years.store.removals.clear(old.id, years.home.job(old.id), NOW)
    years.build(0, "three", built=False)
    assert make(years, target).problems == []


def test_a_backup_never_overwrites(years: Years, target: Path) -> None:
    target.write_text("dear")
    with pytest.raises(UsageError, match="already exists"):
        make(years, target)
    assert target.read_text() == "dear"


def test_what_cannot_be_written_leaves_nothing(years: Years, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        make(years, tmp_path / "none" / "orch.tar")
    with pytest.raises(StorageError, match="File name too long"):
        make(years, tmp_path / f"{'x' * 248}.tar")
    assert not list(years.home.root.glob(".backup.*"))
    assert not list(tmp_path.glob("*tar*"))


def test_gc_and_backup_keep_apart(years: Years, target: Path) -> None:
    with sweep.gc_lock(years.home), pytest.raises(RefusedError):
        make(years, target)


@pytest.mark.long
def test_postgres_is_not_in_it(postgres_url: str, tmp_path: Path, target: Path) -> None:
    with Store.open(postgres_url) as store:
        years = Years(tmp_path, store, postgres_url)
        years.run(1, "one")
        assert make(years, target).problems == []
    checked = backup.check(target)
    assert (checked.label.database, checked.problems, checked.lines, checked.files) == (False, [], 0, 4)


Change = Callable[[str, bytes], bytes | None]


def edited(target: Path, change: Change) -> None:
    """Write the archive anew with each file changed; None leaves it out."""
    with tarfile.open(target) as archive:
        found = [(member, archive.extractfile(member).read()) for member in archive if member.isreg()]  # type: ignore[union-attr]
    with tarfile.open(target, "w") as archive:
        for member, data in found:
            new = change(member.name, data)
            if new is not None:
                member.size = len(new)
                archive.addfile(member, io.BytesIO(new))


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None], str]] = {
    "a shorter file": ("output.jsonl", lambda data: data[:-2], "shards/001.output.jsonl: has"),
    "a broken line": ("output.jsonl", lambda data: b"x" + data[1:], "the line at 0 is not a result"),
    "no results": ("output.jsonl", lambda data: None, "has 0 of"),
    "no requests": ("requests.jsonl", lambda data: None, "has 0 of"),
    "no database": ("orch.db", lambda data: None, "orch.db is not there"),
    "a damaged database": ("orch.db", lambda data: data[:8192] + b"\xff" * 8192 + data[16384:], "orch.db: "),
    "a database that is none": ("orch.db", lambda data: b"x" * 9999, "orch.db: file is not a database"),
    "a damaged server": ("server.db", lambda data: b"x" * 9999, "servers/gpu/server.db: file is not a database"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_check_finds_damage(years: Years, target: Path, what: str) -> None:
    years.run(1, "one", "two")
    serve(years)
    make(years, target)
    assert backup.check(target).problems == []
    which, change, said = DAMAGE[what]
    edited(target, lambda name, data: change(data) if name.endswith(which) else data)
    problems = backup.check(target).problems
    assert problems
    assert said in problems[0]


def test_what_is_no_backup_is_told(years: Years, target: Path, tmp_path: Path) -> None:
    years.run(1, "one")
    make(years, target)
    whole = target.read_bytes()
    for text, said in (
        (b"", "is not a backup, or is truncated"),
        (b"x" * 2000, "is not a backup, or is truncated"),
        (whole[: len(whole) // 2], "is not a backup, or is truncated"),
    ):
        (tmp_path / "cut.tar").write_bytes(text)
        with pytest.raises(InputError, match=said):
            backup.check(tmp_path / "cut.tar")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        backup.check(tmp_path / "none.tar")
    for label in (json.dumps({"made_at": 1}).encode(), None):
        edited(target, lambda name, data, label=label: label if name == "backup.json" else data)
        with pytest.raises(InputError, match=r"has no backup\.json"):
            backup.check(target)


def altered(target: Path, member: tarfile.TarInfo) -> Path:
    """The same backup with one member more, ahead of its label."""
    found = target.with_name("altered.tar")
    with tarfile.open(target) as old, tarfile.open(found, "w") as new:
        new.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
        for each in old.getmembers():
            new.addfile(each, old.extractfile(each) if each.isreg() else None)
    return found


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        ("../up", tarfile.REGTYPE, 0o600),
        ("jobs/../../up", tarfile.REGTYPE, 0o600),
        ("../folder", tarfile.DIRTYPE, 0o700),
        ("/etc/cron.d/x", tarfile.REGTYPE, 0o600),
        ("jobs/link", tarfile.SYMTYPE, 0o600),
        ("jobs/hard", tarfile.LNKTYPE, 0o600),
        ("jobs/disk", tarfile.BLKTYPE, 0o600),
        ("jobs/tty", tarfile.CHRTYPE, 0o600),
        ("jobs/pipe", tarfile.FIFOTYPE, 0o600),
        ("jobs/run", tarfile.REGTYPE, 0o4755),
        ("jobs/run", tarfile.REGTYPE, 0o2755),
        ("jobs/folder", tarfile.DIRTYPE, 0o4700),
    ],
)
def test_a_member_that_could_harm_who_unpacks_it_is_found(
    years: Years, target: Path, name: str, kind: bytes, mode: int
) -> None:
    years.run(9, "one")
    make(years, target)
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.linkname = kind, mode, "/etc/passwd" if kind != tarfile.REGTYPE else ""
    [problem] = backup.check(altered(target, member)).problems
    assert problem.startswith(f"{name}: ")


def test_a_home_in_a_folder_of_a_group_makes_a_backup_that_is_whole(years: Years, target: Path) -> None:
    years.run(9, "one")
    (years.home.root / "jobs").chmod(0o2770)
    make(years, target)
    assert backup.check(target).problems == []
