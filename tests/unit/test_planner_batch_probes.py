"""A few rows for a cheaper provider whose batches are slow, so that its return is seen."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from benchmarks.routing.night import BatchNight, Job, Night, SynchronousNight
from benchmarks.routing.ours import Ours
from benchmarks.routing.world import World
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.model import JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.planner import BatchOption, Decision, Open, Option, replan
from orchestrator.policy.planner.job_orders import locate_rows
from tests.unit.test_planner import NOW, batch, known, synchronous, terms

HOUR, MINUTE = 3600.0, 60.0
SENT = NOW - timedelta(minutes=30)
SLOW = batch("cheap", "0.0004", turnaround=known(7 * HOUR), cancel_seconds=180.0, cancel_usual=120.0)
DEARER = batch("batch", "0.0005", 15 * MINUTE)
REALTIME = synchronous("realtime", "0.001", 8.0)
OPTIONS: list[Option] = [SLOW, DEARER, REALTIME]


def sends(rows: int, cheap: BatchOption = SLOW, *, hours: float = 1.5) -> dict[str, int]:
    options: list[Option] = [cheap, DEARER, REALTIME]
    found = replan(Open(waiting=rows), options, terms(hours), NOW)
    assert found.chance >= terms(hours).target
    return {one.backend: one.rows for one in found.sends}


def test_a_cheaper_provider_that_is_too_slow_gets_a_few_rows() -> None:
    assert sends(8_000) == {"batch": 7_980, "cheap": 20}
    assert sends(500) == {"batch": 490, "cheap": 10}


@pytest.mark.parametrize(
    "more",
    [{"least": 100}, {"room": 10}, {"objection": "its key was refused"}, {"cost": DEARER.cost}, {"silent": HOUR}],
)
def test_it_gets_none_if_it_takes_none_or_is_no_cheaper(more: dict[str, object]) -> None:
    assert sends(8_000, replace(SLOW, **more)) == {"batch": 8_000}


def test_small_jobs_and_short_ones_send_none() -> None:
    assert sends(40) == {"batch": 40}
    assert sends(4_000, hours=0.3).keys() == {"realtime"}


def shard(number: int, backend: str, rows: int, *, after: float = 0.0, is_done: bool = False) -> Shard:
    at = SENT + timedelta(seconds=after)
    state = ShardState.COLLECTED if is_done else ShardState.SUBMITTED
    status = BatchStatus.COMPLETED if is_done else BatchStatus.IN_PROGRESS
    return Shard(
        ShardId(f"a.{number}"), JobId("a"), number, backend, "/v1", "m", state, "", rows, 0, at, submitted_at=at,
        seen_at=NOW, provider_status=status,
    )  # fmt: skip


def asked(*shards: Shard, hours: float = 4.5) -> Decision:
    rows: dict[str, int] = {one.id: one.rows for one in shards if one.state is ShardState.SUBMITTED}
    job = locate_rows(shards, rows, ("realtime",), {"cheap": 180.0}, NOW, waiting=0, rerouted=0)
    return replan(job, OPTIONS, terms(hours), NOW)


def test_nobody_waits_for_it_once_the_other_rows_are_answered() -> None:
    beside = asked(shard(0, "batch", 7_980), shard(1, "cheap", 20))
    assert beside.cancel == ()
    assert beside.chance > 0.99
    alone = asked(shard(0, "batch", 7_980, is_done=True), shard(1, "cheap", 20))
    assert alone.cancel == ("a.1",)
    assert "20 rows rerouted" in alone.reason


def test_half_way_to_the_deadline_it_is_taken_back() -> None:
    assert asked(shard(0, "realtime", 7_980), shard(1, "cheap", 20), hours=0.45).cancel == ("a.1",)


def test_a_reroute_of_the_others_takes_it_back_too() -> None:
    late = replan(
        locate_rows(
            [shard(0, "batch", 7_980), shard(1, "cheap", 20)], {"a.0": 7_980, "a.1": 20}, (), {}, NOW,
            waiting=0, rerouted=0,
        ),
        [SLOW, replace(DEARER, turnaround=known(7 * HOUR)), REALTIME], terms(0.55), NOW,
    )  # fmt: skip
    assert set(late.cancel) == {"a.0", "a.1"}


def test_a_few_rows_that_are_asked_again_wait_for_their_batch() -> None:
    """They are the last of their job, as a probe may be, but were not sent beside others."""
    again = shard(1, "batch", 20, after=20 * MINUTE)
    assert asked(shard(0, "cheap", 7_980, is_done=True), again).cancel == ()


@pytest.mark.long
def test_a_cheap_provider_that_is_fast_again_is_seen_to_be() -> None:
    ours = Ours()

    def does(number: int, hours: float) -> int:
        batches = tuple(
            BatchNight(name, price, seconds, (1.0,))
            for name, price, seconds in (("cheap", 0.0004, hours * HOUR), ("batch", 0.0005, 900.0))
        )
        api = SynchronousNight("realtime", 0.001, 3.0, 3.0, start=5.0)
        [score] = World(Night(number, (Job("job", 2_000, 3 * HOUR),), batches, (api,))).live(ours)
        assert score.in_time
        assert score.done_at < 2.5 * HOUR or score.by_route.get("realtime", 0) > 1_000
        return score.by_route.get("cheap", 0)

    assert min(does(number, 0.2) for number in range(8)) == 2_000
    slow = [does(number, 7.0) for number in range(8, 16)]
    assert max(slow) == 0
    assert min([does(number, 0.2) for number in range(16, 22)][3:]) == 2_000
