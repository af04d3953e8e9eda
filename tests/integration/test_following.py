"""What comes several times a day, and what comes after something else: schedules and jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import RefusedError, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import CancelCode, Job, JobFault, JobState, RequestState, job_state
from orchestrator.core.schedules import Night, NightState, Overlap, Schedule
from orchestrator.daemon.loop import Daemon
from orchestrator.pipeline import predecessors
from orchestrator.pipeline.build import submission
from orchestrator.pipeline.build.submission import How, Options
from orchestrator.store.quality import Quality
from tests.support.ticking import JOB, Nights


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Nights]:
    made = Nights(tmp_path)
    yield made
    made.store.close()


def states(night: Nights, schedule: Schedule) -> list[tuple[str, NightState]]:
    return [(one.name, one.state) for one in night.store.schedules.nights(schedule.id)]


# --- several runs a day


def test_every_hour_is_a_run_of_its_own(night: Nights) -> None:
    every = night.add(cron="0 * * * *")
    for _ in range(3):
        assert night.tick(hours=1)
        night.finish()
        (night.documents / f"{night.at:%H}.txt").write_text("Another letter.")
    night.tick()
    assert states(night, every) == [(f"2026-11-20 {hour}:00", NightState.DONE) for hour in (19, 20, 21)]
    assert len({job.id for job in night.jobs()}) == 3
    night.restart()
    assert night.tick(minutes=30) == [], "neither a restart nor a look between two runs makes another"
    assert night.tick(minutes=-90) == [], "nor does a clock that goes back"


def test_of_several_runs_that_nobody_was_there_for_the_newest_comes(night: Nights) -> None:
    every = night.add(cron="*/20 * * * *")
    told = night.tick(hours=1, minutes=5)
    assert states(night, every) == [
        ("2026-11-20 18:20", NightState.MISSED), ("2026-11-20 18:40", NightState.MISSED),
        ("2026-11-20 19:00", NightState.RUNNING),
    ]  # fmt: skip
    assert told[0] == "letters, night of 2026-11-20 19:00: begins, on time"
    assert "only the newest missed night, 2026-11-20 19:00, is run" in (night.store.schedules.nights()[0].reason)


def test_a_run_waits_for_the_one_before_or_is_skipped(night: Nights) -> None:
    every = night.add(cron="0 * * * *", overlap=Overlap.WAIT)
    night.tick(hours=1)
    assert "waits for job" in night.tick(hours=1)[0]
    night.tick(hours=1)
    assert [state for _, state in states(night, every)] == [NightState.RUNNING, NightState.MISSED, NightState.DUE]
    night.finish()
    night.tick(minutes=1)
    assert states(night, every)[-1] == ("2026-11-20 21:00", NightState.RUNNING)


# --- schedules after schedules


def second(night: Nights, **facts: Any) -> Schedule:
    file = night.file.with_name("second.yaml")
    file.write_text(JOB.replace("letters", "second"))
    before = {"id": "second-1", "name": "second", "file": str(file), "cron": "", "after": "letters-1", **facts}
    return night.add(**before)


def end(night: Nights, *, well: bool = True) -> Job:
    """End the only job that is unfinished."""
    (job,) = night.store.jobs.unfinished(night.home.identity())
    if well:
        night.finish()
    else:
        night.store.jobs.fail(job.id, "no such model", JobFault.INPUT)
    return job


@pytest.mark.parametrize(("cron", "hours"), [("0 22 * * *", 4), ("0 * * * *", 1)])
def test_it_runs_once_each_night_of_the_other_has_finished_well(night: Nights, cron: str, hours: int) -> None:
    first, then = night.add(cron=cron), second(night, deadline="6h")
    night.tick(hours=hours)
    assert states(night, then) == []
    before = end(night)
    told = night.tick(minutes=10)
    assert [line.split(":")[0].split(",")[0] for line in told] == ["letters"]
    told = night.tick(minutes=1)
    assert told[0].startswith("second, night of 2026-11-20")
    (of, *_), (mine, *_) = night.store.schedules.nights(first.id)[-1:], night.store.schedules.nights(then.id)
    assert (mine.night, mine.slot, mine.state) == (of.night, of.slot, NightState.RUNNING)
    assert mine.due_at == of.ended_at
    job = night.store.jobs.get(str(mine.job_id))
    assert job.id != before.id
    assert job.deadline_at == mine.due_at + timedelta(hours=6)
    end(night)
    night.tick(minutes=1)
    assert [state for _, state in states(night, then)] == [NightState.DONE]
    night.restart()
    night.tick(minutes=1)
    assert len(states(night, then)) == 1


def test_a_night_in_which_nothing_changed_is_followed_too(night: Nights) -> None:
    """Such a night has the job of an earlier one."""
    first = night.add()
    night.tick(hours=4)
    job = end(night)
    night.tick(minutes=1)
    then = second(night, since=night.at)
    at = night.at + timedelta(days=1)
    unchanged = Night(first.id, date(2026, 11, 21), at, NightState.DONE, "nothing changed", at, job.id, at)
    assert night.store.schedules.claim(unchanged)
    night.tick(days=1)
    assert states(night, then) == [("2026-11-21", NightState.RUNNING)]


def test_a_night_that_failed_is_not_followed_until_it_was_run_once_more(night: Nights) -> None:
    first, then = night.add(grace=timedelta(days=1)), second(night)
    night.tick(hours=4)
    end(night, well=False)
    night.tick(minutes=1)
    night.tick(minutes=1)
    (mine,) = night.store.schedules.nights(then.id)
    assert (mine.state, mine.code) == (NightState.SKIPPED, JobFault.AFTER)
    assert mine.reason == "the night that it comes after was failed: no such model"
    (failed,) = night.store.schedules.nights(first.id)
    assert failed.code == JobFault.INPUT
    night.store.schedules.again(failed, night.at, "asked for by eva", "eva")
    night.tick(minutes=1)
    (running,) = night.store.schedules.nights(first.id)
    assert (running.asked_by, running.reason) == ("eva", "asked for by eva")
    assert running.job_id is not None
    asked, built, *_ = night.store.jobs.events(running.job_id)
    assert (asked.kind, asked.reason) == (EventKind.ASKED, f"the night of {running.name} of {first.name}, by eva")
    assert (asked.at <= built.at, built.kind) == (True, EventKind.BUILT)
    end(night)
    night.tick(minutes=1)
    night.tick(minutes=1)
    assert states(night, then) == [("2026-11-20", NightState.RUNNING)]


@pytest.mark.parametrize("how", ["withheld", "undelivered", "removed"])
def test_a_job_that_ended_and_is_no_good_is_not_followed(night: Nights, how: str) -> None:
    night.add()
    then = second(night)
    night.tick(hours=4)
    job = end(night, well=how != "undelivered")
    if how == "withheld":
        night.store.quality.note(job.id, Quality(1, 2, 2, 0, "50 % is below the threshold"), night.at)
    night.tick(minutes=1)
    if how == "removed":
        night.store.removals.forget(job.id)
    night.tick(minutes=1)
    (mine,) = night.store.schedules.nights(then.id)
    assert (mine.state, mine.code) == (NightState.SKIPPED, JobFault.AFTER)


def test_one_whose_first_is_removed_says_so_and_keeps_no_other(night: Nights) -> None:
    night.add()
    second(night)
    night.store.schedules.remove("letters-1")
    night.add(id="third-1", name="third")
    told = night.tick(hours=4)
    assert "second: cannot be run: the schedule that it comes after was removed" in told
    assert any(line.startswith("third, night of") for line in told)


# --- jobs after jobs


def submit(night: Nights, file: Path | None = None, **options: Any) -> submission.Submission:
    given = Options(**options)
    return submission.submit(
        night.store, night.home, night.config, file or night.file, given, lambda: night.at, lambda *_: None
    )


def state(night: Nights, job: Job) -> JobState:
    job = night.store.jobs.get(job.id)
    return job_state(job, night.store.jobs.counts([job.id])[job.id], submitted=False)


def steps(night: Nights, job: Job) -> Job:
    """What the daemon does of a job that sends nothing."""
    with Daemon(night.config, night.store, dispatch=False) as daemon:
        for _ in range(5):
            current = night.store.jobs.get(job.id)
            if current.error is None and current.finished_at is None and current.built_at is None:
                daemon.pipeline.advance(current)
    return night.store.jobs.get(job.id)


def other(night: Nights, text: str = "") -> Path:
    file = night.file.with_name("other.yaml")
    file.write_text(JOB.replace("letters", "other").replace("documents}", "later}") + text)
    return file


@pytest.mark.parametrize("way", ["--after its id", "--after its name", "the job file"])
def test_a_job_waits_and_is_built_of_what_is_there_then(night: Nights, way: str) -> None:
    first = submit(night).job
    named = {"--after its id": first.id, "--after its name": "letters"}.get(way)
    file = other(night, "" if named else "after: letters\n")
    made = submit(night, file, after=named)
    assert (made.how, made.reason) == (How.WAITING, f"waits for job {first.id} to succeed")
    assert steps(night, made.job).built_at is None
    assert state(night, made.job) is JobState.WAITING
    again = submit(night, file, after=named)
    assert (again.how, again.job.id) == (How.RESUMED, made.job.id)
    later = night.documents.with_name("later")
    later.mkdir()
    (later / "made-by-the-first.txt").write_text("Dear reader.")
    night.store.rows.end_open(first.id, RequestState.EXPIRED, "batch_expired", "too late", night.at)
    night.store.jobs.finish(first.id, "results.jsonl", night.at)
    assert steps(night, made.job).built_at is not None
    assert night.store.jobs.counts([made.job.id])[made.job.id].total == 1


def test_a_job_whose_first_ended_badly_fails_by_name_and_can_be_tried_again(night: Nights) -> None:
    first = submit(night).job
    made = submit(night, other(night), after=first.id).job
    night.store.jobs.fail(first.id, "no such model", JobFault.INPUT)
    failed = steps(night, made)
    assert failed.error_code == JobFault.AFTER
    assert failed.error is not None
    assert "bad_input: no such model" in failed.error
    with pytest.raises(RefusedError, match="did not succeed: bad_input: no such model"):
        submit(night, other(night), after=first.id)


def test_a_job_that_waits_is_cancelled_without_a_row(night: Nights) -> None:
    first = submit(night).job
    made = submit(night, other(night), after=first.id).job
    assert night.store.jobs.request_cancel(made.id, CancelCode.USER, "cancelled by the user", night.at)
    with Daemon(night.config, night.store, dispatch=False) as daemon:
        while night.store.jobs.get(made.id).finished_at is None:
            daemon.pipeline.advance(night.store.jobs.get(made.id))
    assert state(night, made) is JobState.CANCELLED


def test_a_job_that_nobody_knows_is_told(night: Nights) -> None:
    with pytest.raises(UsageError, match="there is no job 'letters' to come after"):
        submit(night, other(night), after="letters")
    assert night.jobs() == []


def test_how_a_job_stands_for_what_comes_after(night: Nights) -> None:
    job = submit(night).job
    assert predecessors.standing(night.store, night.store.jobs.get(job.id))[0] is predecessors.Predecessor.OPEN
    night.finish()
    assert predecessors.standing(night.store, night.store.jobs.get(job.id))[0] is predecessors.Predecessor.WELL
    assert predecessors.standing(night.store, None) == (predecessors.Predecessor.NOT_WELL, "it was removed")
