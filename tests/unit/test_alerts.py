"""When people are told of a job that runs, of what, and with what was done about it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.counts import Counts
from orchestrator.core.events import Event
from orchestrator.core.shards import HoldCode, Shard, ShardState
from orchestrator.daemon.monitor import trouble_at
from orchestrator.policy.alerts import ENOUGH, HELD, PATIENCE, AlertKind, MonitoredJob, Trouble, at_end, due
from orchestrator.settings.config import AlertSettings
from tests.support.stored import NOW, SPEC, job, later, shard

JOB = job(deadline_at=later(10))
OPEN = Counts(pending=10, succeeded=90)
SETTINGS = AlertSettings()


def told(
    now: datetime = NOW, settings: AlertSettings = SETTINGS, **given: Any
) -> list[tuple[AlertKind, str, str, str]]:
    known: dict[str, Any] = {"job": JOB, "counts": OPEN, **given}
    return [(one.kind, one.what, one.message, one.action) for one in due(MonitoredJob(**known), settings, now)]


def test_all_is_well() -> None:
    assert told() == []
    assert told(chance=0.8) == []
    assert told(job=job(), chance=0.1) == [], "without a deadline none is at risk"


def test_a_deadline_at_risk_is_told_with_the_rescue() -> None:
    [(kind, what, message, action)] = told(chance=0.6)
    assert (kind, what) == (AlertKind.DEADLINE, "risk")
    assert message == "the deadline of Sun 2026-11-22 06:00 UTC is at risk: met with 60%"
    assert action.startswith("nothing yet: no other route is better")
    events = [Event(NOW, "rerouted", "first"), Event(NOW, "rerouted", "to the gpu"), Event(NOW, "routed", "x")]
    assert told(chance=0.6, events=events)[0][3] == "to the gpu"
    assert told(chance=0.6, settings=AlertSettings(chance=0.5)) == []
    assert told(chance=0.0, counts=Counts(succeeded=3)) == [], "every row has its outcome"


def test_a_deadline_that_passed_is_told_once_more() -> None:
    [(kind, what, message, action)] = told(later(10))
    assert (kind, what, action) == (AlertKind.DEADLINE, "missed", "the job finishes late")
    assert message == "the deadline of Sun 2026-11-22 06:00 UTC has passed: without an answer: 10 of 100 rows"
    gives_up = job(deadline_at=later(10), spec={**SPEC, "on_late": "expire"})
    assert told(later(11), job=gives_up)[0][3] == "open rows are given up"


def test_the_deadline_of_a_job_that_is_being_cancelled_concerns_nobody() -> None:
    cancelled = replace(JOB, cancel_requested_at=NOW)
    assert told(chance=0.1)
    assert told(chance=0.1, job=cancelled) == []
    assert told(later(10), job=cancelled) == [], "its rows end without an answer because somebody wants it"


def test_many_cut_answers_are_told_and_few_are_not() -> None:
    assert told(counts=Counts(pending=5, succeeded=100, cut=10)) == []
    assert told(counts=Counts(pending=5, succeeded=ENOUGH - 1, cut=ENOUGH - 1)) == [], "so few say nothing"
    [(kind, what, message, action)] = told(counts=Counts(pending=5, succeeded=100, cut=11))
    assert (kind, what) == (AlertKind.QUALITY, "cut")
    assert message == "11 of 100 answers ended at max_tokens (11%) and may be incomplete"
    assert "raise max_tokens" in action
    assert told(counts=Counts(succeeded=100, cut=100), settings=AlertSettings(cut_share=1)) == []
    over = MonitoredJob(job(finished_at=NOW), Counts(succeeded=100, cut=11))
    assert [one.what for one in at_end(over, SETTINGS, None)] == ["cut"]


def test_a_budget_at_its_mark() -> None:
    warned = Event(NOW, "budget", "$8.00 of the $9 is spent (89%)", code="team/night/2026-11-22 12:00")
    stopped = Event(NOW, "stopped", "used up", code="budget")
    assert [one[:3] for one in told(events=[warned, stopped])] == [
        (AlertKind.BUDGET, "team/night/2026-11-22 12:00", warned.reason),
        (AlertKind.BUDGET, "stopped", "used up"),
    ]


def test_a_job_that_its_first_rows_have_stopped() -> None:
    stopped = Event(NOW, "stopped", "budget or not, 5 of 20 rows failed", code="canary")
    assert [one[:3] for one in told(events=[stopped])] == [(AlertKind.QUALITY, "stopped", stopped.reason)]


def test_a_job_that_is_over_is_told_of_too() -> None:
    events = [Event(NOW, "stopped", "budget team: used up"), Event(NOW, "waiting", "x"), Event(NOW, "rerouted", "y")]
    assert [one.what for one in at_end(MonitoredJob(JOB, OPEN, events=events), SETTINGS, None)] == ["stopped"]
    [one] = at_end(MonitoredJob(JOB, OPEN), SETTINGS, "90.0% is below the threshold of 95.0%")
    assert (one.kind, one.what) == (AlertKind.QUALITY, "withheld")
    assert one.message == "judged by known answers: 90.0% is below the threshold of 95.0%"


def test_a_backend_that_stays_away() -> None:
    assert told(troubles=[Trouble("gpu", "gpu: refused, for 3 s", PATIENCE - 1)]) == []
    [(kind, what, message, _)] = told(troubles=[Trouble("gpu", "gpu: refused 17 times\nhint: x", 180)])
    assert (kind, what) == (AlertKind.BACKEND, "gpu")
    assert message == "gpu: refused 17 times, for 3 min"
    assert told(troubles=[Trouble("gpu", "gpu: is away", 240)])[0][1] == what, "the same trouble, later"


STALLS: dict[str, tuple[Shard, float, str | None]] = {
    "gets on": (shard(JOB, state=ShardState.SUBMITTED), 0, None),
    "takes long": (
        shard(JOB, state=ShardState.SUBMITTED, held="in_progress for 9 h", held_code=HoldCode.SLOW), 0,
        "batch contracts-1.001 of 3 rows at gpu takes longer than usual: in_progress for 9 h",
    ),
    "is taken back": (
        shard(JOB, state=ShardState.SUBMITTED, held="slow", held_code=HoldCode.SLOW, rerouted_at=NOW), 0, None,
    ),
    "was not answered for once, a moment ago": (
        shard(
            JOB, state=ShardState.SUBMITTED, held="connection reset", held_code=HoldCode.UNREACHABLE, seen_at=NOW,
        ), 60, None,
    ),
    "waits a while": (shard(JOB, held="no room"), HELD - 1, None),
    "waits too long": (
        shard(JOB, held="no room"), HELD,
        "batch contracts-1.001 of 3 rows at gpu has not been sent for 30 min: no room",
    ),
    "is looked for": (
        shard(JOB, state=ShardState.SUBMITTING, held="no answer"), HELD,
        "batch contracts-1.001 of 3 rows at gpu was created without a confirmation for 30 min: no answer",
    ),
    "is not answered for": (
        shard(JOB, state=ShardState.SUBMITTED, held="cannot retrieve", seen_at=later(-1)), HELD,
        "batch contracts-1.001 of 3 rows at gpu has kept the job waiting for 30 min: cannot retrieve",
    ),
    "was not answered for once": (
        shard(JOB, state=ShardState.SUBMITTED, held="cannot retrieve", seen_at=later(-1)), 60, None,
    ),
    "has no files yet": (
        shard(JOB, state=ShardState.SUBMITTED, provider_status="completed", held="not named", seen_at=NOW), 60, None,
    ),
    "is over": (
        shard(JOB, state=ShardState.ENDED, held="no files"), HELD,
        "batch contracts-1.001 of 3 rows at gpu has ended, and its answers are missing for 30 min: no files",
    ),
    "is done with": (shard(JOB, state=ShardState.COLLECTED, held="x"), HELD, None),
}  # fmt: skip


@pytest.mark.parametrize(("of", "seconds", "message"), STALLS.values(), ids=STALLS.keys())
def test_a_batch_that_does_not_get_on(of: Shard, seconds: float, message: str | None) -> None:
    events = [
        Event(later(-9), "held", "long ago", of.id),
        Event(NOW, "held", "no room", of.id),
        Event(NOW, "held", "x", "y"),
    ]
    found = told(later(seconds / 3600), shards=[of], events=events)
    assert [one[2] for one in found] == ([] if message is None else [message])
    what = f"{of.id} {of.held_code or 'held'}"
    assert [one[:2] for one in found] == ([] if message is None else [(AlertKind.STALL, what)])


def test_a_stall_of_another_kind_is_told_too() -> None:
    slow = shard(JOB, state=ShardState.SUBMITTED, held="in_progress for 9 h", held_code=HoldCode.SLOW)
    away = shard(JOB, state=ShardState.SUBMITTED, held="connection reset", held_code=HoldCode.UNREACHABLE)
    events = [Event(NOW, "held", "connection reset", away.id)]
    [first], [then] = (told(later(1), shards=[of], events=events) for of in (slow, away))
    assert first[1] != then[1], "it is told once for each of them"
    assert "takes longer" in first[2]
    assert "kept the job waiting for 1 h: connection reset" in then[2]


def test_a_batch_of_which_nobody_knows_since_when_it_waits_is_not_told() -> None:
    assert told(shards=[shard(JOB, held="no room")]) == []


def test_too_many_failures() -> None:
    few = Counts(pending=5, succeeded=0, failed=ENOUGH - 1)
    assert told(counts=few) == []
    assert told(counts=Counts(pending=5, succeeded=90, failed=10)) == []
    [(kind, what, message, action)] = told(counts=Counts(pending=5, succeeded=89, failed=11))
    assert (kind, what, message) == (AlertKind.QUALITY, "failed", "11 of 100 rows have failed (11%)")
    assert "orch status contracts-1" in action
    assert told(counts=Counts(succeeded=89, failed=11), settings=AlertSettings(failed_share=0.2)) == []


def test_a_thing_is_known_by_its_kind_job_and_what() -> None:
    [one] = due(MonitoredJob(JOB, OPEN, chance=0.1), SETTINGS, NOW)
    assert one.key == "deadline:contracts-1:risk"


UP = {"url": "http://127.0.0.1:1/v1", "problem": None, "problem_seconds": 0}
DOWN = {"url": "http://127.0.0.1:2/v1", "problem": "refused", "problem_seconds": 90.5}
LATER_DOWN = {**DOWN, "url": "http://127.0.0.1:3/v1", "problem_seconds": 7}


def test_a_server_is_in_trouble_when_it_has_work_and_no_upstream() -> None:
    down = {"running_batches": 1, "upstreams": [DOWN, LATER_DOWN]}
    assert trouble_at("gpu", down) == Trouble("gpu:http://127.0.0.1:3/v1", "gpu: http://127.0.0.1:3/v1: refused", 7.0)
    assert trouble_at("gpu", {**down, "running_batches": 0}) is None
    assert trouble_at("gpu", {**down, "upstreams": [DOWN, UP]}) is None
