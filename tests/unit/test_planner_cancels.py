"""A cancel may take far longer than planned: the less likely, the more time is left for it, and a batch runs on."""

from __future__ import annotations

from datetime import timedelta

import pytest

from benchmarks.routing.judged import JUDGED
from benchmarks.routing.ours import Ours
from benchmarks.routing.world import World
from orchestrator.policy.forecast import SeenBatch, Turnaround, turnaround
from orchestrator.policy.planner import BatchOption, observed, plan
from tests.unit.test_planner import HOUR, MINUTE, NOW, batch, routes, synchronous, terms

ROWS = 2_000
REALTIME = synchronous("realtime", "0.001", 1.85, spread=0.1)
"""It needs 18 minutes for all rows."""


def unseen(took: Turnaround) -> BatchOption:
    """A provider of which batches were seen, and no cancel."""
    cancel = observed.seconds_until_free([], NOW)
    return batch(turnaround=took, cancel_seconds=cancel, slips=observed.slips([], NOW, cancel))


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


def test_a_short_job_learns_of_batches_and_cancels_within_a_few_weeks() -> None:
    """The API needs 18 of 30 minutes. Batches are done in time on 60 % of nights, and cancelled on the others."""
    ours, scores = Ours(), []
    for night in JUDGED["judged-half-hour"].nights(3, 30):
        scores += World(night).live(ours)
    assert all(score.in_time for score in scores)
    later = scores[15:]
    assert sum(score.by_route.get("batch", 0) for score in later) > 0.2 * ROWS * len(later)
