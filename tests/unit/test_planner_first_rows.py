"""A batch that shows its first row in time runs on: short jobs bet more on batches whose progress is seen early."""

from __future__ import annotations

from dataclasses import replace as changed
from datetime import timedelta

import pytest
from msgspec.structs import replace

from benchmarks.routing.judged import JUDGED
from benchmarks.routing.night import Job, Night
from benchmarks.routing.ours import Ours
from benchmarks.routing.table import run
from benchmarks.routing.world import World
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.shards import ShardState
from orchestrator.policy.planner import BatchOption, Open, Option, Running, observations, plan, replan
from tests.unit.test_planner import NOW, batch, known, routes, synchronous, terms
from tests.unit.test_planner_observations import shard

MINUTE, HOUR = 60.0, 3600.0
BATCH = batch("batch", "0.0005", 11 * MINUTE, cancel_seconds=150.0)
REALTIME = synchronous("realtime", "0.001", 1.85, spread=0.1)
"""Needs 18 minutes for 2,000 rows."""


def in_batch(option: BatchOption) -> tuple[int, float]:
    """Rows of a job of half an hour that go to the batch, and the dollars that it is expected to cost."""
    planned = plan(2000, [option, REALTIME], terms(0.5), NOW)
    assert planned.verdict.holds
    assert planned.chance >= 0.99
    return routes(planned).get("batch", 0), float(planned.expected)


def test_the_earlier_a_batch_shows_its_first_row_the_more_rows_it_gets() -> None:
    found = [in_batch(replace(BATCH, begins=share)) for share in (1.0, 0.6, 0.3)]
    rows, dollars = zip(*found, strict=True)
    assert sorted(rows) == list(rows)
    assert sorted(dollars, reverse=True) == list(dollars)
    assert rows[-1] >= rows[0] + 250


@pytest.mark.parametrize("more", [{"cancels": False}, {"silent": HOUR}], ids=["no cancel", "silent"])
def test_progress_says_nothing_if_rows_cannot_be_taken_back_or_are_not_shown(more: dict[str, object]) -> None:
    option = replace(BATCH, **more)
    assert plan(2000, [replace(option, begins=0.3), REALTIME], terms(0.5), NOW) == plan(
        2000, [option, REALTIME], terms(0.5), NOW
    )


def test_a_batch_without_a_row_by_its_usual_time_is_left_and_one_with_rows_is_not() -> None:
    options: list[Option] = [replace(BATCH, begins=0.3, turnaround=known(40 * MINUTE)), REALTIME]
    found = {}
    for has_begun in (False, True):
        job = Open(running=(Running("b", "batch", 2000, NOW - timedelta(minutes=12), has_begun=has_begun),))
        found[has_begun] = replan(job, options, terms(0.5), NOW)
    assert found[False].cancel == ("b",)
    assert found[True].cancel == ()
    assert all(one.chance >= 0.99 for one in found.values())


def test_when_batches_show_their_first_row_is_learned() -> None:
    def night(ago: int, first: float | None, **facts: object) -> object:
        begin = NOW - timedelta(days=ago)
        return shard(
            state=ShardState.COLLECTED, submitted_at=begin, ended_at=begin + timedelta(hours=1),
            first_at=None if first is None else begin + timedelta(hours=first),
            provider_status=BatchStatus.COMPLETED, **facts,
        )  # fmt: skip

    def learned(*nights: object) -> float:
        return observations.first_row_share(nights)  # type: ignore[arg-type]

    assert learned() == 1.0
    assert 0.3 < learned(*(night(at, 0.3) for at in range(1, 30))) < 0.45
    assert learned(*(night(at, None) for at in range(1, 30))) == 1.0, "the provider shows no counts"
    mixed = learned(*(night(at, first) for at in range(1, 30) for first in (0.1, 0.6)))
    assert mixed > 0.55, "the latest batch of a night counts"
    rerouted = night(1, 0.1, rerouted_at=NOW - timedelta(hours=23))
    assert learned(rerouted) == 1.0, "nobody knows when it would have ended"


def test_a_home_learns_it_within_some_nights() -> None:
    """Its batches take eleven minutes, and show progress from the fourth on."""
    home, dollars = Ours(), 0.0
    for number, night in enumerate(JUDGED["judged-half-hour"].nights(3, 30)):
        batches = tuple(changed(one, seconds=660.0, lag=0.3, cancel=120.0) for one in night.batches)
        [score] = World(Night(number, (Job("job", 2000, 1800.0),), batches, night.sync_options)).live(home)
        assert score.in_time
        dollars += score.cost * (number >= 20)
    assert dollars / 10 < 1.6, "all rows cost $2.00 row by row; $1.75 where progress says nothing"


@pytest.mark.long
def test_half_an_hour_costs_less_with_the_same_nights_in_time() -> None:
    result = run(JUDGED["judged-half-hour"], 3, 40, alone=True)
    assert result.ours.in_time == 1.0
    assert result.ours.cost < 1.33
