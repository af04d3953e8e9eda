"""Rows of a cancelled batch go to another provider's batch, if that is likely to end in time and cheaper."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from msgspec.structs import replace

from benchmarks.routing.night import BatchNight, Job, Night, SynchronousNight
from benchmarks.routing.ours import Ours
from benchmarks.routing.world import World
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.model import JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.planner import Open, Option, Running, replan
from orchestrator.policy.planner.job_orders import locate_rows
from tests.unit.test_planner import NOW, batch, known, synchronous, terms

HOUR, MINUTE = 3600.0, 60.0
FIRST = batch("first", "0.0004", turnaround=known(15 * MINUTE), cancel_seconds=180.0, cancel_usual=120.0)
SECOND = batch("second", "0.0005", turnaround=known(20 * MINUTE), cancel_seconds=180.0, cancel_usual=120.0)
REALTIME = synchronous("realtime", "0.001", 8.0)
OPTIONS: list[Option] = [FIRST, SECOND, REALTIME]
RUNS = Open(running=(Running("a", "first", 8_000, NOW - timedelta(hours=2)),))


def sends(job: Open, hours: float, options: list[Option] = OPTIONS) -> dict[str, int]:
    found = Counter[str]()
    for one in replan(job, options, terms(hours), NOW).sends:
        found[one.backend] += one.rows
    return dict(found)


def test_rows_that_came_back_go_to_a_batch_elsewhere_while_there_is_time() -> None:
    back = Open(rerouted=8_000, left=("first",))
    assert sends(back, 3.0) == {"second": 8_000}
    slow: list[Option] = [FIRST, replace(SECOND, turnaround=known(4 * HOUR)), REALTIME]
    assert sends(back, 1.0, slow) == {"realtime": 8_000}


@pytest.mark.parametrize("left", [(), ("second",), ("first", "second")], ids=["unknown", "same", "both"])
def test_they_go_to_no_batch_where_the_job_has_cancelled_one(left: tuple[str, ...]) -> None:
    found = sends(Open(rerouted=8_000, left=left), 3.0)
    assert found == ({"first": 8_000} if left == ("second",) else {"realtime": 8_000})


def test_fresh_rows_still_go_to_a_backend_that_others_have_left() -> None:
    found = sends(Open(waiting=4_000, rerouted=4_000, left=("first",)), 3.0)
    assert sum(found.values()) == 8_000
    assert found.get("first", 0) <= 4_000
    assert "realtime" not in found


@pytest.mark.parametrize(("there", "is_second"), [(400, True), (4_000, False)], ids=["a probe", "half of the rows"])
def test_a_second_batch_may_go_where_only_a_probe_runs(there: int, is_second: bool) -> None:
    runs = (Running("p", "second", there, NOW), Running("a", "first", 8_000 - there, NOW))
    reroute = replan(Open(running=runs), OPTIONS, terms(3), NOW).reroute
    assert reroute is not None
    assert ("second" in reroute.to) == is_second


def test_a_batch_that_is_late_is_cancelled_sooner_where_another_provider_has_time() -> None:
    alone, beside = replan(RUNS, [FIRST, REALTIME], terms(1), NOW), replan(RUNS, OPTIONS, terms(1), NOW)
    assert alone.cancel == ()
    assert beside.cancel == ("a",)
    assert beside.chance >= 0.99


def test_a_plan_names_the_second_batch_and_counts_its_price() -> None:
    early = Open(running=(Running("a", "first", 8_000, NOW - timedelta(minutes=1)),))
    alone, beside = replan(early, [FIRST, REALTIME], terms(3), NOW), replan(early, OPTIONS, terms(3), NOW)
    assert alone.reroute is not None
    assert beside.reroute is not None
    assert (alone.reroute.to, beside.reroute.to) == (("realtime",), ("second", "realtime"))
    assert beside.expected < alone.expected
    dear = replan(early, [FIRST, replace(SECOND, cost=REALTIME.cost), REALTIME], terms(3), NOW)
    assert dear.reroute is not None
    assert dear.reroute.to == ("realtime",)


def shard(number: int, backend: str, *, is_cancelled: bool) -> Shard:
    state = ShardState.COLLECTED if is_cancelled else ShardState.SUBMITTED
    return Shard(
        ShardId(f"a.{number}"), JobId("a"), number, backend, "/v1", "m", state, "", 500, 0, NOW, submitted_at=NOW,
        provider_status=BatchStatus.IN_PROGRESS, rerouted_at=NOW if is_cancelled else None,
    )  # fmt: skip


def test_what_a_job_has_left_are_providers_whose_batches_it_cancelled() -> None:
    places = (("first", True), ("gpu", True), ("second", False))
    shards = [shard(number, name, is_cancelled=gone) for number, (name, gone) in enumerate(places)]
    job = locate_rows(shards, {"a.2": 500}, ("gpu",), {}, NOW, waiting=0, rerouted=300)
    assert job.left == ("first",)


@pytest.mark.long
def test_a_provider_that_becomes_slow_costs_little_where_another_is_as_good() -> None:
    """Sixteen nights; from the ninth on, the cheap provider takes longer than there is time."""
    ours, cost = Ours(), list[float]()
    for number in range(16):
        takes = 0.25 * HOUR if number < 8 else 7 * HOUR
        batches = (
            BatchNight("cheap", 0.0004, takes, (1.0,)),
            BatchNight("other", 0.0005, 0.25 * HOUR, (1.0,)),
        )
        api = SynchronousNight("realtime", 0.001, 8.0, 8.0, start=5.0)
        [score] = World(Night(number, (Job("job", 8_000, 5 * HOUR),), batches, (api,))).live(ours)
        assert score.in_time
        cost.append(score.cost)
    assert max(cost[:8]) < 3.3
    assert max(cost[8:]) < 4.5, "all rows cost $8 at the API, and $4 in the other batch"
