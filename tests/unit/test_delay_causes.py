"""Why a job was late: what took the most time, by its events, its batches and what was forecast of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.events import Event
from orchestrator.core.model import Forecast, JobId
from orchestrator.core.shards import ShardState
from orchestrator.policy.delay_causes import Cause, main_delay
from tests.support.stored import NOW, job, later, shard

LATE = job(deadline_at=later(6), built_at=NOW, finished_at=later(8))
BATCH = shard(LATE, state=ShardState.COLLECTED, submitted_at=later(0), ended_at=later(1))
FORESEEN = Forecast(JobId("contracts-1"), "turnaround", "gpu", "m", NOW, 3600, 7200, "prior", shard_id=BATCH.id)


def event(hours: float, kind: str, reason: str = "", of: str | None = None) -> Event:
    return Event(later(hours), kind, reason, of)


WORLDS: dict[str, tuple[dict[str, Any], Cause, str]] = {
    "nothing": ({}, Cause.TOO_LITTLE_TIME, "the job had 6 h, and nothing delayed it for long"),
    "nobody ran it": (
        {"events": [event(0, "built"), event(5, "routed"), event(5.1, "submitted", of=BATCH.id)]},
        Cause.NO_DAEMON,
        "no daemon ran for the first 5 h",
    ),
    "an account": (
        {"events": [event(0, "routed"), event(1, "waiting", "the key is bad\nhint"), event(4, "alert"),
                    event(4.5, "submitted")]},
        Cause.STOOD_STILL,
        "it was stuck for 3 h 30 min: the key is bad hint",
    ),
    "a quota": (
        {"events": [event(0, "routed"), event(0, "held", "queued behind quota", BATCH.id),
                    event(3, "submitted", of=BATCH.id), event(3, "waiting", "x"), event(3.1, "submitted")]},
        Cause.HELD,
        "a batch was held for 3 h: queued behind quota",
    ),
    "a quota to this day": (
        {"events": [event(0, "routed"), event(2, "held", "queued", BATCH.id)]},
        Cause.HELD,
        "a batch was held for 6 h: queued",
    ),
    "a slow batch": (
        {"shards": [replace(BATCH, ended_at=later(7))], "forecasts": [FORESEEN]},
        Cause.SLOW_BATCH,
        "a batch at gpu took 7 h (1 h forecast, 2 h at most)",
    ),
    "one that was taken back": (
        {"shards": [replace(BATCH, rerouted_at=later(1.9), ended_at=later(2))], "forecasts": [FORESEEN]},
        Cause.SLOW_BATCH,
        "a batch at gpu was cancelled after 1 h 54 min (1 h forecast, 2 h at most)",
    ),
    "as forecast": (
        {"shards": [BATCH], "forecasts": [FORESEEN], "events": [event(0.01, "routed")]}, Cause.TOO_LITTLE_TIME, "",
    ),
}  # fmt: skip


def test_a_job_that_nobody_has_begun_yet_waits_for_a_daemon() -> None:
    found = main_delay(replace(LATE, finished_at=None), [event(0, "built")], [], [], later(9))
    assert (found.cause, found.text) == (Cause.NO_DAEMON, "no daemon ran for the first 9 h")


@pytest.mark.parametrize(("given", "cause", "text"), WORLDS.values(), ids=WORLDS.keys())
def test_the_cause_that_took_the_most_time_is_told(given: dict[str, Any], cause: Cause, text: str) -> None:
    known = {"events": [], "shards": [], "forecasts": [], **given}
    found = main_delay(LATE, ended=later(8), **known)
    assert (found.cause, found.text.startswith(text)) == (cause, True), found.text
    assert found.advice
