"""A cancel may take far longer than planned. Its batch runs on, and its rows are asked elsewhere in time."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from benchmarks.routing.judged import JUDGED
from benchmarks.routing.night import BatchNight, Job, Night, Score, SynchronousNight
from benchmarks.routing.ours import Ours
from benchmarks.routing.world import World
from orchestrator.policy.forecast import SeenBatch, Turnaround, turnaround
from orchestrator.policy.planner import BatchOption, observations, plan
from tests.unit.test_planner import HOUR, MINUTE, NOW, batch, routes, synchronous, terms
from tests.unit.test_planner_observations import cancelled, shard

ROWS = 2_000
REALTIME = synchronous("realtime", "0.001", 1.85, spread=0.1)
"""It needs 18 minutes for all rows."""


def unseen(took: Turnaround) -> BatchOption:
    """A provider of which batches were seen, and no cancel."""
    cancel = observations.seconds_until_free([], NOW)
    return batch(turnaround=took, cancel_seconds=cancel, slips=observations.slips([], NOW, cancel))


def ended(*seconds: float) -> Turnaround:
    seen = [SeenBatch(NOW - timedelta(days=day), seconds[day % len(seconds)], True, ROWS) for day in range(1, 61)]
    return turnaround(seen, rows=ROWS, at=NOW)


@pytest.mark.parametrize(
    ("hours", "took"), [(0.5, (6 * MINUTE, 8 * MINUTE, 10 * MINUTE, 3 * HOUR)), (0.55, (6 * MINUTE, 5 * HOUR))]
)
def test_rows_bet_on_a_provider_whose_cancels_nobody_has_seen(hours: float, took: tuple[float, ...]) -> None:
    """Were no batch sent until cancels are known, none would ever be seen."""
    planned = plan(ROWS, [unseen(ended(*took)), REALTIME], terms(hours), NOW)
    assert planned.verdict.holds
    assert planned.chance >= 0.99
    assert routes(planned).get("openai", 0) > 0


@pytest.mark.parametrize("hours", [0.5, 0.6, 1.0])
def test_no_row_bets_on_it_if_its_batches_would_come_back_by_a_cancel_alone(hours: float) -> None:
    planned = plan(ROWS, [unseen(ended(5 * HOUR, 6 * HOUR)), REALTIME], terms(hours), NOW)
    assert planned.verdict.holds
    assert routes(planned) == {"realtime": ROWS}


@pytest.mark.long
def test_a_short_job_learns_of_batches_and_cancels_within_a_few_weeks() -> None:
    """The API needs 18 of 30 minutes. Batches are done in time on 60 % of nights, and cancelled on the others."""
    ours, scores = Ours(), []
    for night in JUDGED["judged-half-hour"].nights(3, 30):
        scores += World(night).live(ours)
    assert all(score.in_time for score in scores)
    later = scores[15:]
    assert sum(score.by_route.get("batch", 0) for score in later) > 0.2 * ROWS * len(later)


# --- a cancel that takes hours: its rows are asked elsewhere while that is in time, and paid twice


def lived(hours: float, cancel: float, *, rows: int = ROWS, budget: float | None = None, past: int = 0) -> Score:
    """A night whose batch never ends, and whose cancel takes so many hours; before it `past` with quick ones."""

    def night(number: int, cancel: float) -> Night:
        batch = BatchNight("batch", 0.0005, 100 * HOUR, (1.0, 1.1, 0.9), cancel=cancel)
        api = SynchronousNight("realtime", 0.001, 5.0, 5.0, start=5.0)
        return Night(number, (Job("job", rows, hours * HOUR, budget=budget),), (batch,), (api,))

    ours = Ours()
    for number in range(past):
        World(night(number, 2 * MINUTE)).live(ours)
    [score] = World(night(past, cancel * HOUR)).live(ours)
    return score


@pytest.mark.slow
@pytest.mark.parametrize("past", [0, 4], ids=["the first night", "after quick ones"])
@pytest.mark.parametrize("rows", [ROWS, 4 * ROWS], ids=["one batch", "four"])
@pytest.mark.parametrize("hours", [2.0, 5.0])
def test_a_job_is_in_time_however_long_a_cancel_takes(hours: float, rows: int, past: int) -> None:
    score = lived(hours, cancel=30.0, rows=rows, past=past)
    assert score.in_time
    assert score.by_route["realtime"] == rows
    assert min(chance for _, chance in score.told) >= 0.5, "nothing of it is told as late"


@pytest.mark.long
def test_a_cancel_that_ends_while_there_is_time_is_waited_for() -> None:
    score = lived(8.0, cancel=0.3, past=4)
    assert score.in_time
    assert score.cost == pytest.approx(score.by_route["realtime"] * 0.001 + score.by_route["batch"] * 0.0005)


@pytest.mark.long
def test_nobody_pays_twice_beyond_the_budget() -> None:
    score = lived(5.0, cancel=30.0, budget=2.5)
    assert score.cost <= 2.5


@pytest.mark.parametrize("count", [0, 3, 20])
def test_a_cancel_that_takes_long_says_that_others_tonight_do(count: int) -> None:
    before = [cancelled(timedelta(days=day), timedelta(minutes=2)) for day in range(1, count + 1)]
    planned = observations.seconds_until_free(before, NOW)
    found = [observations.slips(before, NOW, planned)]
    for minutes in (1, 5, 20, 90):
        running = shard(rerouted_at=NOW - timedelta(minutes=minutes), seen_at=NOW)
        found.append(observations.slips([*before, running], NOW, planned))
    assert all(a <= b + 1e-9 for a, b in pairwise(found))
    assert found[-1] == 1.0
