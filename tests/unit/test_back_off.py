"""Rows that an upstream refuses are in back-off: said with their tries, and no standstill of the engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.model import JobId, ProgressSample
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline.refused_rows import describe_refused, rows_in_back_off
from orchestrator.policy.forecast import Assumed
from orchestrator.policy.planner import observations
from orchestrator.policy.planner.stints import Sight

NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def health(*groups: dict[str, Any], in_flight: int = 0) -> dict[str, Any]:
    return {"upstreams": [{"in_flight": in_flight, "retrying": list(groups)}]}


def group(rows: int = 1, batch: str = "b", tries: int = 3, **facts: Any) -> dict[str, Any]:
    told = {"fault": "overload", "status": 529, "reason": "overloaded (529)", "most_tries": 20}
    return {"batch": batch, "rows": rows, "tries": tries, **told, **facts}


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([], None),
        ([group(batch="another job's")], None),
        ([group()], "1 row refused: overloaded (529), try 3 of 20"),
        ([group(30, most_tries=None)], "30 rows refused: overloaded (529), try 3"),
        ([group(2, status=0, reason="cut: reset", most_tries=4)], "2 rows failed: cut: reset, try 3 of 4"),
        ([group(2, status=200, reason="garbled: no JSON")], "2 rows failed: garbled: no JSON, try 3 of 20"),
        (
            [group(number, status=500 + number, reason=f"r{number}") for number in range(1, 6)],
            "5 rows refused: r5, try 3 of 20; 4 rows refused: r4, try 3 of 20; 3 rows refused: r3, try 3 of 20; "
            "and 3 more",
        ),
    ],
)
def test_what_is_refused_is_said_with_its_tries(groups: list[dict[str, Any]], told: str | None) -> None:
    assert describe_refused(health(*groups), {"b"}) == told


@pytest.mark.parametrize(
    ("told", "rows"),
    [
        (health(in_flight=5), 0),
        (health(group(batch="other")), 0),
        (health(group(1)), 30),
        (health(group(1), in_flight=1), 30),
        (health(group(1), in_flight=2), 1),
        (health(group(40), in_flight=41), 30),
    ],
    ids=[
        "nothing is refused", "another batch", "all wait", "the refused row is out", "another row is out", "stale",
    ],
)  # fmt: skip
def test_rows_behind_a_refusal_wait_too_unless_others_are_out(told: dict[str, Any], rows: int) -> None:
    assert rows_in_back_off(told, "b", 30) == rows


def sample(minutes: float, done: int, left: int) -> ProgressSample:
    return ProgressSample(JobId("mine"), "series", "gpu", NOW - minutes * MINUTE, done, left, done * 100, done * 10)


def rate(samples: list[ProgressSample], left: int) -> float:
    began = NOW - 30 * MINUTE
    shard = Shard(
        ShardId("mine.001"), JobId("mine"), 1, "gpu", "/v1", "m", ShardState.SUBMITTED, "", 2_000, 0, began,
        submitted_at=began, first_at=NOW - 29 * MINUTE, provider_completed=2_000 - left,
    )  # fmt: skip
    sight = Sight("gpu", [shard], samples)
    return observations.pace(sight, observations.Asker("series"), Assumed(1.0, 0.35), 110.0, NOW).rate


WORKED = [sample(20 - minute, minute * 100, 2_000 - minute * 100) for minute in range(10)]


def test_rows_in_back_off_are_no_standstill() -> None:
    """The engine did 100 rows a minute, and then a row was refused for ten minutes."""
    refused = [sample(9.5 - minute, 1_999, 0) for minute in range(9)]
    hung = [replace(one, left=1_099, done=901) for one in refused]
    assert rate([*WORKED, *refused], left=1) > 0.5
    between = [replace(one, left=one.left * (place % 2)) for place, one in enumerate(hung)]
    assert rate([*WORKED, *between], left=1_099) > 0.5, "a look may come between two attempts"
    assert rate([*WORKED, *hung], left=1_099) == 0.0, "rows that are out and do not come back are one"


def test_an_engine_that_refuses_all_rows_is_as_fast_as_was_assumed() -> None:
    refused = [sample(9.5 - minute, 0, 0) for minute in range(9)]
    assert rate(refused, left=2_000) > 0.5
