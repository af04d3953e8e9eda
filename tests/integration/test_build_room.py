"""A build that finds no room is that job's failure: it gives back what it wrote, and the others go on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.core.errors import NoRoom
from orchestrator.core.model import Job, JobFault, JobId
from orchestrator.pipeline.build import disk_room, submission
from tests.emulator.driving import jsonl
from tests.support.disks import disk_of
from tests.support.hostedjob import Desk, all_are, plain, row

BIG = 120
TEXT = "x" * 100_000


def queued(desk: Desk) -> Job:
    """A job of twelve megabytes that was recorded and not built, as a kill leaves it."""
    path = desk.written(jsonl([row(f"r{number}", user=TEXT) for number in range(BIG)]))
    job = submission.draft(path, desk.config, desk.home, submission.Options(), desk.provider.clock.now())
    desk.store.jobs.add(job, {})
    return job


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A write that makes a file larger fails, as on a full disk, though by another number (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_given_back(desk: Desk, job: JobId) -> bool:
    return not desk.home.requests(job).exists() and desk.store.jobs.counts([job])[job].total == 0


def rounds(desk: Desk, number: int) -> None:
    left = iter(range(number))
    assert desk.daemon is not None
    desk.daemon.run(lambda: next(left, None) is None, lambda daemon: desk.provider.clock.advance(300))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHORTEST_WAIT", "LONGEST_WAIT", "REACTION_SECONDS"):
        monkeypatch.setattr(f"orchestrator.daemon.loop.{name}", 0.0)


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize("how", ["disk", "max_bytes", "file size"])
def test_one_that_fills_the_disk_fails_by_name_and_the_others_end_well(
    desk_on_each: Desk, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    desk = desk_on_each
    if how == "max_bytes":
        monkeypatch.setattr(disk_room, "ROOM_BYTES", 1_000_000)
        desk.backends({"openai": {}}, '[retention]\nmax_bytes = "6MB"\n')
    full: dict[str, AbstractContextManager[None]] = {
        "disk": disk_of(3_000_000, desk.home.root / "jobs"),
        "file size": files_of_at_most(3_000_000),
    }
    big = queued(desk)
    with full.get(how, nullcontext()):
        good = desk.submit(plain(3))
        rounds(desk, 1)
        assert is_given_back(desk, big.id)
        rounds(desk, 12)
        ended = desk.store.jobs.get(big.id)
        assert ended.error_code == JobFault.NO_ROOM
        assert ended.error is not None
        told = "the limit is 6.0 MB; the requests of this job take " if how == "max_bytes" else "cannot write"
        assert told in ended.error
        assert ("No space left on device" in ended.error) == (how == "disk")
        assert is_given_back(desk, big.id)
        desk.finish(good)
        assert desk.ends(good) == all_are("succeeded", 3)
        desk.start_anew()
        rounds(desk, 3)
        assert is_given_back(desk, big.id), "nor does another start begin it again"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("verb", ["upload", "create"])
def test_a_batch_that_its_server_has_no_room_for_waits_and_ends_no_daemon(desk: Desk, verb: str) -> None:
    fault = {"do": "status", "status": 507, "code": "storage", "message": "The server cannot write."}
    desk.provider.script({"match": {"verb": verb}, "times": None, **fault})
    job = desk.submit(plain(3))
    rounds(desk, 12)
    assert not desk.is_over(job)
    assert desk.provider.bill()["lines"] == []
    desk.provider.clear()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert sum(line["rows"] for line in desk.provider.bill()["lines"]) == 3


def test_a_nearly_full_disk_is_looked_at_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [40_000_000]
    monkeypatch.setattr(disk_room.shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    check = disk_room.RoomCheck(lambda: "too little" if free[0] < 1_000_000 else None, tmp_path)

    def write() -> None:
        while free[0] > 0:
            check.require(0, 100_000)
            free[0] -= 100_000

    with pytest.raises(NoRoom, match="too little"):
        write()
    assert free[0] > 800_000, "what the daemon beside it writes has room"


@pytest.mark.long
@pytest.mark.thinned(2)
def test_one_for_which_there_is_room_again_goes_on(desk_on_each: Desk) -> None:
    desk = desk_on_each
    big = queued(desk)
    with files_of_at_most(3_000_000):
        rounds(desk, 1)
    rounds(desk, 2)
    assert desk.store.jobs.counts([big.id])[big.id].total == BIG
    desk.finish(big)
    assert set(desk.ends(big).values()) == {"succeeded"}


@pytest.mark.thinned(2)
def test_at_a_terminal_nothing_is_left_of_it(desk_on_each: Desk) -> None:
    desk = desk_on_each
    path = desk.written(jsonl([row(f"r{number}", user=TEXT) for number in range(BIG)]))
    with files_of_at_most(3_000_000), pytest.raises(NoRoom, match="cannot write") as refused:
        desk.submit(path)
    assert refused.value.exit_code == 4
    assert desk.store.jobs.newest() == []
    assert list((desk.home.root / "jobs").glob("*/*")) == []
