"""A home's nights, tick by tick, on a clock that the test sets: begun once, whatever happens to the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.errors import OutputFault
from orchestrator.core.model import SUPERSEDED_BY, CancelCode, RequestState
from orchestrator.core.schedules import Misfire, NightState, Overlap
from orchestrator.daemon.scheduler import Scheduler
from orchestrator.pipeline.build.submission import Options, draft, submit
from orchestrator.store.records import RefusalHold
from tests.support.ticking import EVENING, JOB, Nights


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Nights]:
    made = Nights(tmp_path)
    yield made
    made.store.close()


DONE, DUE, FAILED, MISSED, RUNNING, SKIPPED = (
    NightState.DONE, NightState.DUE, NightState.FAILED, NightState.MISSED, NightState.RUNNING, NightState.SKIPPED,
)  # fmt: skip


def test_a_night_becomes_a_job_with_its_deadline_and_budget_and_ends_with_it(night: Nights) -> None:
    night.add(deadline="06:00", budget=Decimal(12))
    assert night.tick(hours=3) == []
    told = night.tick(hours=1)
    (job,) = night.jobs()
    assert told == [
        "letters, night of 2026-11-20: begins, on time",
        f"letters, night of 2026-11-20: job {job.id}, 1 request of 1 document",
    ]
    assert job.deadline_at == datetime(2026, 11, 21, 6, tzinfo=UTC)
    assert job.budget == 12
    assert night.states() == [(20, RUNNING)]
    assert night.tick(hours=1) == []
    assert [one.night.day for one in night.store.schedules.nights() if one.job_id == job.id] == [20]
    night.finish()
    assert night.tick(hours=1) == ["letters, night of 2026-11-20: done: 1 row: 1 expired"]
    assert night.states() == [(20, DONE)]
    assert night.tick(hours=21) == []
    assert len(night.tick(hours=1)) == 2
    assert night.states() == [(20, DONE), (21, RUNNING)]
    assert len(night.jobs()) == 2


@pytest.mark.parametrize("deadline", [None, "9h"])
def test_a_deadline_counts_from_when_the_night_was_due(night: Nights, deadline: str | None) -> None:
    """A late start does not move it; the schedule's goes before the job file's."""
    night.file.write_text(JOB + "deadline: 8h\n", encoding="utf-8")
    night.add(deadline=deadline)
    night.tick(hours=7)
    (job,) = night.jobs()
    assert job.deadline_at == datetime(2026, 11, 21, 7 if deadline else 6, tzinfo=UTC)


def test_a_batch_file_has_nights_too(night: Nights, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(
        '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",'
        ' "body": {"model": "some-model", "messages": [{"role": "user", "content": "hi"}]}}\n'
    )
    night.add(file=str(lines))
    night.tick(hours=4)
    assert night.states() == [(20, RUNNING)]


def test_a_kill_between_the_night_and_its_job_is_taken_up(night: Nights) -> None:
    """After each of the three commits of a beginning night: claimed, begun, and its job made."""
    schedule = night.add()
    night.tick(hours=4)
    (whole,) = night.store.schedules.nights()
    (job,) = night.jobs()
    bare = replace(whole, job_id=None)
    for state, made in ((DUE, False), (RUNNING, False), (RUNNING, True)):
        night.store.schedules.remove(schedule.id)
        night.store.schedules.add(schedule)
        assert night.store.schedules.claim(replace(bare, state=state))
        if not made:
            night.store.jobs.fail(job.id, "of the last round")
        night.restart()
        assert len(night.tick(minutes=1)) == (2 if state is DUE else 1)
        assert night.states() == [(20, RUNNING)]
        (again,) = night.store.schedules.nights()
        (unfinished,) = night.store.jobs.unfinished(night.home.identity())
        assert again.job_id == unfinished.id
        assert (unfinished.id == job.id) is made
        job = unfinished


def test_a_night_whose_job_ended_before_a_kill_recorded_it_ends_with_that_job(night: Nights) -> None:
    """The job is the night's own: its rows are counted, and not called unchanged."""
    schedule = night.add()
    night.tick(hours=4)
    (whole,) = night.store.schedules.nights()
    night.answer()
    night.store.schedules.remove(schedule.id)
    night.store.schedules.add(schedule)
    assert night.store.schedules.claim(replace(whole, job_id=None))
    night.restart()
    (job,) = night.jobs()
    assert night.tick(minutes=1) == [f"letters, night of 2026-11-20: job {job.id} was made before a restart"]
    assert night.tick(minutes=1) == ["letters, night of 2026-11-20: done: 1 row: 1 succeeded"]
    assert night.jobs() == [job]


def test_a_clock_set_back_runs_no_night_again(night: Nights) -> None:
    night.add()
    night.tick(hours=4)
    night.finish()
    night.tick(minutes=1)
    assert night.tick(hours=-3) == []
    assert night.tick(hours=3) == []
    night.restart()
    assert night.tick(minutes=1) == []
    assert night.states() == [(20, DONE)]


def test_of_several_missed_nights_the_newest_is_run_and_the_others_say_so(night: Nights) -> None:
    night.add()
    night.tick(days=3, hours=5)
    assert night.states() == [(20, MISSED), (21, MISSED), (22, MISSED), (23, RUNNING)]
    assert night.reason() == "started 1 h late"
    first = night.store.schedules.nights()[0]
    assert "only the newest missed night, 2026-11-23, is run" in first.reason
    assert first.ended_at == night.at
    assert len(night.jobs()) == 1


@pytest.mark.parametrize(
    ("terms", "hours", "state", "reason"),
    [
        ({}, 10, MISSED, "the grace is 6 h"),
        ({"misfire": Misfire.SKIP}, 9, SKIPPED, "found 5 h late; the schedule skips late nights"),
        ({"deadline": "01:00"}, 8, MISSED, "not started by its deadline"),
    ],
)
def test_a_night_that_is_found_late_ends_by_its_rules(
    night: Nights, terms: dict[str, Any], hours: int, state: NightState, reason: str
) -> None:
    night.add(**terms)
    told = night.tick(hours=hours)
    assert night.states() == [(20, state)]
    assert reason in night.reason()
    assert told == [f"letters, night of 2026-11-20: {state}: {night.reason()}"]
    assert night.jobs() == []


def test_a_night_is_skipped_while_a_job_of_the_file_goes_on(night: Nights) -> None:
    night.add()
    night.tick(hours=4)
    (job,) = night.jobs()
    night.tick(hours=24)
    assert night.states() == [(20, RUNNING), (21, SKIPPED)]
    assert night.reason() == f"job {job.id} of the same file was still running"


@pytest.mark.parametrize("edited", [False, True])
def test_a_night_does_not_wait_for_a_job_that_is_held(night: Nights, *, edited: bool) -> None:
    """A refused job does not go on by itself: if its file was mended since, the night's job supersedes it."""
    night.add()
    night.tick(hours=4)
    (held,) = night.jobs()
    night.store.holds.put(RefusalHold(held.id, "local", "m", "t", "invalid", "no such field", night.at, night.at))
    if edited:
        night.file.write_text(night.file.read_text() + "tags: {mended: yes}\n")
    night.tick(hours=24)
    assert night.states() == [(20, RUNNING), (21, RUNNING)]
    jobs = {job.id for job in night.jobs()}
    assert jobs - {held.id} if edited else jobs == {held.id}
    assert (night.store.jobs.get(held.id).options.get(SUPERSEDED_BY) is not None) is edited


def test_a_night_waits_for_a_job_that_somebody_submitted(night: Nights) -> None:
    submit(night.store, night.home, night.config, night.file, Options(), lambda: night.at, lambda *_: None)
    (by_hand,) = night.jobs()
    night.add(overlap=Overlap.WAIT)
    assert night.tick(hours=4) == [f"letters, night of 2026-11-20: waits for job {by_hand.id} of the same file"]
    assert night.tick(hours=1) == []
    assert night.states() == [(20, DUE)]
    night.finish()
    assert len(night.tick(hours=1)) == 2
    assert night.reason() == "started 2 h late"
    assert len(night.jobs()) == 2


def test_a_plan_that_is_being_made_is_no_job_that_goes_on(night: Nights) -> None:
    rehearsed = draft(night.file, night.config, night.home, Options(), night.at)
    night.store.jobs.add(replace(rehearsed, options={"dry_run": True}), {})
    night.add()
    night.tick(hours=4)
    assert night.states() == [(20, RUNNING)]


def test_a_waiting_night_gives_way_to_the_next(night: Nights) -> None:
    night.add(overlap=Overlap.WAIT, grace=timedelta(days=3))
    night.tick(hours=4)
    night.tick(hours=24)
    night.tick(hours=24)
    assert night.states() == [(20, RUNNING), (21, MISSED), (22, DUE)]
    night.finish()
    night.tick(hours=1)
    assert night.states() == [(20, DONE), (21, MISSED), (22, RUNNING)]


BROKEN = {
    "no YAML": ("name: [", "is not valid YAML"),
    "an unknown field": (JOB + "dedline: 8h\n", "did you mean 'deadline'"),
    "no documents there": (JOB.replace("path: documents", "path: nowhere"), "nowhere"),
    "a budget of nothing": (JOB.replace("some-model", "other") + "allow: {backends: [gpu]}\n", "no backend 'gpu'"),
}


@pytest.mark.parametrize(("text", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_job_file_is_a_failed_night_and_the_next_is_run(night: Nights, text: str, problem: str) -> None:
    night.add()
    night.file.write_text(text, encoding="utf-8")
    (told,) = night.tick(hours=4)[-1:]
    assert "failed: " in told
    assert problem in night.reason()
    assert night.states() == [(20, FAILED)]
    assert night.jobs() == []
    night.file.write_text(JOB, encoding="utf-8")
    night.tick(hours=24)
    assert night.states() == [(20, FAILED), (21, RUNNING)]


def test_a_night_fails_with_its_job(night: Nights) -> None:
    night.add(grace=timedelta(days=2))

    def ended(day: int) -> str:
        night.tick(minutes=1)
        found = night.store.schedules.nights()[-1]
        assert (found.night.day, found.state) == (day, FAILED)
        return found.reason

    night.tick(hours=4)
    night.store.jobs.fail(night.jobs()[0].id, "the disk is gone")
    assert ended(20) == "the disk is gone"
    night.tick(hours=24)
    (job,) = night.store.jobs.unfinished(night.home.identity())
    assert night.store.jobs.request_cancel(job.id, CancelCode.USER, "cancelled by the user", night.at)
    night.finish()
    assert ended(21) == "cancelled: cancelled by the user"
    night.tick(hours=24)
    (job,) = night.store.jobs.unfinished(night.home.identity())
    (running,) = night.store.schedules.unended()
    night.store.schedules.remove("letters-1")
    night.add(since=EVENING)
    assert night.store.schedules.claim(replace(running, job_id=type(job.id)("gone-1")))
    assert ended(22) == "its job was removed before it ended"


def test_a_night_whose_rows_could_not_be_delivered_fails_by_name_and_the_next_is_run(night: Nights) -> None:
    night.add()
    night.tick(hours=4)
    (job,) = night.jobs()
    night.store.rows.end_open(job.id, RequestState.EXPIRED, "batch_expired", "too late", night.at)
    night.store.jobs.finish(job.id, "results.jsonl", night.at, error="no room", code=OutputFault.NO_ROOM)
    night.tick(minutes=1)
    (failed,) = night.store.schedules.nights()
    assert (failed.state, failed.code, failed.reason) == (FAILED, OutputFault.NO_ROOM, "no room")
    night.tick(hours=24)
    assert night.states() == [(20, FAILED), (21, RUNNING)]


def test_a_paused_schedule_has_no_night_and_makes_none_up(night: Nights) -> None:
    schedule = night.add()
    night.store.schedules.pause(schedule.id, night.at)
    assert night.tick(hours=28) == []
    night.store.schedules.resume(schedule.id, night.at)
    assert night.tick(hours=1) == []
    assert night.states() == []
    night.tick(hours=23)
    assert night.states() == [(22, RUNNING)]


def test_a_schedule_that_is_removed_while_its_night_begins_ends_nothing_else(night: Nights) -> None:
    schedule = night.add()
    night.add(id="zebra-1", name="zebra")

    def removing() -> datetime:
        """The time; asked for once more, when both nights are recorded, the one schedule is gone."""
        if len(night.store.schedules.unended()) == 2:
            night.store.schedules.remove(schedule.id)
        return night.at

    night.at += timedelta(hours=4)
    told = Scheduler(night.store, night.home, night.config, removing).tick()
    assert [line.split(",")[0] for line in told] == ["zebra", "zebra"]
    assert night.states() == [(20, RUNNING)]


def test_what_cannot_be_run_here_is_told_once_and_keeps_no_other(night: Nights) -> None:
    night.add(id="a-1", name="a", config="/elsewhere/orch.toml")
    night.add(id="b-1", name="b", tz="Mars/Olympus")
    night.add(id="c-1", name="c", home="another")
    night.add()
    told = night.tick(hours=1)
    assert [line.split(":")[0] for line in told] == ["a", "b"]
    assert "waits for a daemon with the settings it was made with: /elsewhere/orch.toml" in told[0]
    assert "cannot be run: 'Mars/Olympus' is not a time zone" in told[1]
    assert night.tick(hours=1) == []
    assert [line.split(",")[0] for line in night.tick(hours=2)] == ["letters", "letters"]
    assert [one.schedule_id for one in night.store.schedules.nights()] == ["letters-1"]
