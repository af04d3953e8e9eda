"""What should not be able to go wrong: with one job, night, schedule, report or channel it keeps no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from orchestrator.core.model import Job, JobFault, JobKind, JobState
from orchestrator.core.schedules import NightState
from orchestrator.daemon.channels import Message
from orchestrator.daemon.monitor import Monitor, Standstill
from orchestrator.policy.internal_errors import TRIES
from tests.support.hostedjob import HOUR, MINUTE, Desk, plain
from tests.support.stored import NOW, job, later
from tests.support.ticking import Nights

# What no job file can say, and no build of this version has made: the job as a whole cannot be understood.
STRANGE: dict[str, Any] = {"name": "strange", "documents": [{"path": "documents"}], "tasks": [{"id": "t"}]}
MOST = 2000


def run(desk: Desk, *wanted: Job, step: float = 5.0) -> None:
    """The daemon's own loop, on the clock of the provider, until these jobs are over."""
    rounds = iter(range(MOST))

    def over() -> bool:
        assert next(rounds) < MOST - 1, f"not over; said: {desk.daemon and desk.daemon.problem}"
        return all(desk.is_over(one) for one in wanted)

    assert desk.daemon is not None
    # Rounds follow one another: here a clock is set that otherwise passes.
    desk.daemon.run(over, lambda daemon: desk.provider.clock.advance(step))


def rounds(desk: Desk, number: int) -> None:
    """So many rounds of the loop, each a few hours after the last."""
    left = iter(range(number))
    assert desk.daemon is not None
    desk.daemon.run(lambda: next(left, None) is None, lambda daemon: desk.provider.clock.advance(2 * HOUR))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's pauses are real seconds, of which the set clock knows nothing."""
    monkeypatch.setattr("orchestrator.daemon.loop.SHORTEST_WAIT", 0.0)
    monkeypatch.setattr("orchestrator.daemon.loop.LONGEST_WAIT", 0.0)
    monkeypatch.setattr("orchestrator.daemon.loop.REACTION_SECONDS", 0.0)


def strange(desk: Desk, **facts: Any) -> Job:
    made = job(
        "strange-1", home=desk.home.identity(), name="strange", spec=STRANGE, series="strange",
        source=str(desk.folder / "strange.yaml"), options={"config": str(desk.config.path)}, **facts,
    )  # fmt: skip
    desk.store.jobs.add(made, {})
    return made


@pytest.mark.long
def test_a_job_that_breaks_the_daemon_fails_by_name_and_the_others_end_well(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = desk.submit(plain(2)), strange(desk)
    run(desk, good)
    assert desk.detail(good)["state"] == JobState.COMPLETED
    run(desk, bad)
    failed = desk.store.jobs.get(bad.id)
    assert failed.error_code == JobFault.INTERNAL
    assert failed.error is not None
    assert "ValidationError" in failed.error
    assert "engine.log has the details" in failed.error
    [fault] = desk.events(bad, "fault")
    assert fault.startswith("internal_error: ValidationError: ")
    tracebacks = [record for record in caplog.records if record.exc_info and "strange-1" in record.message]
    assert len(tracebacks) == TRIES, "tried again, not over and over"


@pytest.mark.long
def test_a_job_with_batches_under_way_is_not_given_up_until_it_is_cancelled(desk: Desk) -> None:
    """Its answers are paid for: they wait until somebody has mended it."""
    bad = desk.submit(plain(2))
    desk.settle(bad)
    spoil(desk, bad)
    good = desk.submit(plain(1))
    run(desk, good, step=MINUTE)
    rounds(desk, 20)
    assert desk.store.jobs.get(bad.id).error is None
    assert desk.events(bad, "fault") != []
    desk.cancel(bad)
    run(desk, bad)
    ended = desk.store.jobs.get(bad.id)
    assert ended.error_code == JobFault.INTERNAL
    assert ended.error is not None
    assert "`orch reconcile` shows them" in ended.error


def spoil(desk: Desk, of: Job) -> None:
    """Make a job one of documents whose spec is none: what is collected can be checked against nothing."""
    engine = create_engine(desk.config.place.database_url)
    with engine.begin() as connection:
        spoilt = "UPDATE jobs SET kind = :kind, spec = '{\"tasks\": [{}]}' WHERE id = :id"
        connection.execute(text(spoilt), {"kind": JobKind.DOCUMENTS.value, "id": of.id})
    engine.dispose()


def test_a_job_whose_own_files_are_gone_ends_by_name(desk: Desk) -> None:
    bad = desk.submit(plain(2))
    desk.settle(bad)
    desk.later(HOUR)
    path = desk.home.merged(bad.id, "batch")
    path.mkdir(parents=True)
    run(desk, bad, step=MINUTE)
    assert desk.store.jobs.get(bad.id).error_code == JobFault.FILES
    path.rmdir()
    desk.store.rows.retry(bad.id, [])
    run(desk, bad)
    assert desk.detail(bad)["state"] == JobState.COMPLETED


# --- nights


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Nights]:
    made = Nights(tmp_path)
    yield made
    made.store.close()


def test_a_night_that_breaks_the_scheduler_is_its_own_failure(
    night: Nights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file of names that no system call takes; the other night is run."""
    night.add(id="a-1", name="a", file=f"{night.file.parent}/\0.yaml")
    night.add(id="b-1", name="b")
    told = night.tick(hours=4)
    assert any(line.startswith("b, night of 2026-11-20: job ") for line in told)
    found = {one.schedule_id: one for one in night.store.schedules.nights()}
    assert (found["a-1"].state, found["a-1"].code) == (NightState.FAILED, JobFault.INTERNAL)
    assert found["b-1"].state is NightState.RUNNING
    assert "ValueError: embedded null byte" in found["a-1"].reason
    assert any(record.exc_info for record in caplog.records)


def test_a_full_home_is_that_nights_failure_and_not_the_end_of_the_daemon(night: Nights) -> None:
    from dataclasses import replace

    full = replace(night.config, retention=night.config.retention.model_copy(update={"max_bytes": 1}))
    night.scheduler.use(full)
    night.add()
    (told,) = night.tick(hours=4)
    assert "no_room: NoRoom: " in told
    for minutes in (1, 5, 20):
        assert [state for _, state in night.states()] == [NightState.RUNNING], "what took the space may go again"
        night.tick(minutes=minutes)
    (failed,) = night.store.schedules.nights()
    assert (failed.state, failed.code) == (NightState.FAILED, JobFault.NO_ROOM)
    assert "the limit is 1 B" in failed.reason
    night.scheduler.use(night.config)
    night.tick(hours=24)
    assert [state for _, state in night.states()] == [NightState.FAILED, NightState.RUNNING]


# --- what is watched and told


class Way:
    """A channel; `breaks` is what it raises."""

    def __init__(self, name: str, breaks: Exception | None = None) -> None:
        self.name = name
        self.breaks = breaks
        self.taken: list[Message] = []

    def send(self, message: Message) -> None:
        if self.breaks is not None:
            raise self.breaks
        self.taken.append(message)


def test_what_breaks_the_watch_of_one_job_keeps_no_alert_of_another(desk: Desk) -> None:
    strange(desk, built_at=NOW, deadline_at=later(1))
    late = job("late-1", home=desk.home.identity(), name="late", built_at=NOW, deadline_at=later(1), spec={})
    desk.store.jobs.add(late, {})
    failed = job("failed-1", home=desk.home.identity(), name="failed", spec={})
    desk.store.jobs.add(failed, {})
    desk.store.jobs.fail(failed.id, "no such model", JobFault.INPUT)
    good, bad = Way("good"), Way("bad", ZeroDivisionError("a defect of the channel"))
    watch = Monitor(desk.store, desk.config, [bad, good])
    watch.look(Standstill({}, {}), later(0.5))
    assert [message.subject for message in good.taken] == [
        "failed, Sat 2026-11-21: failed, 0 of 0 rows answered, 1 needs attention"
    ]
    assert desk.events(failed, "undelivered") == [
        "the report was not accepted and is retried for a day: ZeroDivisionError: a defect of the channel"
    ]
    bad.breaks = None
    Monitor(desk.store, desk.config, [bad, good]).look(Standstill({}, {}), later(0.6))
    assert len(bad.taken) == 1


def test_a_night_without_a_job_is_told(night: Nights) -> None:
    """Nobody would hear of it otherwise: there is no job whose report could say so."""
    night.file.write_text("name: [")
    night.add()
    night.tick(hours=4)
    way = Way("way")
    watch = Monitor(night.store, night.config, [way])
    for _ in range(2):
        watch.look(Standstill({}, {}), night.at)
    [message] = way.taken
    assert message.subject.startswith("orch: night alert: letters, night of 2026-11-20: ")
    assert "letters, night of 2026-11-20: " in message.brief
    assert "is not valid YAML" in message.brief
    assert "`orch schedule run letters`" in message.brief


def test_what_the_daemon_has_to_tell_is_told_once(desk: Desk) -> None:
    assert desk.daemon is not None
    for _ in range(2):
        with desk.daemon.notices.apart("keeping house"):
            raise ZeroDivisionError("strange")
    standstill = desk.daemon._standstill()
    assert len(standstill.notices) == 1
    way = Way("way")
    Monitor(desk.store, desk.config, [way]).look(standstill, NOW)
    Monitor(desk.store, desk.config, [way]).look(standstill, later(1))
    [message] = way.taken
    assert message.brief.startswith("internal_error: keeping house failed by ZeroDivisionError: strange\n")
