"""Whether what is told of deadlines comes true, over simulated nights in worlds that the forecasts do not assume.

The worlds are those of `benchmarks.routing`. They share no code with the planner or its forecasts; of each, the quick
form lives through the same few nights every time, the long one through hundreds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.routing.invented import INVENTED
from benchmarks.routing.judged import JUDGED
from benchmarks.routing.table import Result, Told, run, together
from benchmarks.routing.unseen import UNSEEN
from benchmarks.routing.unused import UNUSED

TOLD, TRUE = 0.999, 0.995
"""What is told with this chance or more has to come true so often."""
LEAST_IN_TIME = 0.96
"""Where one route alone can reroute, not every night that could be in time is; but then it was not told as sure."""
QUICK = 4
"""Nights of the quick form; the first of them are those of a home that knows nothing."""
LONG, SEEDS = 100, (11, 12, 13)
LONGEST = 4 * 3600
"""Seconds for a long form: ten minutes of CPU, on a machine that has much else to do. Nothing in it reads a clock."""
OF_JUDGED = ("judged-month", "judged-ladder", "judged-ladder-budget", "judged-brownout")
WORLDS = {**UNSEEN, **UNUSED, **INVENTED, **{name: JUDGED[name] for name in OF_JUDGED}}
SLOW = frozenset(
    {"day-users", "drifting", "flex-alone", "flex-refuses", "two-rescues-apart", "quota-shared", "engine-waves"}
)
"""Worlds with many looks a night; their nights are lived through in the long form."""


def sure(results: list[Result]) -> Told:
    """What was told as nearly certain."""
    return next(one for one in together(results) if one.bucket == TOLD)


def lived(names: list[str], seed: int, nights: int) -> list[Result]:
    return [run(WORLDS[name], seed, nights, alone=True) for name in names]


@pytest.mark.slow
@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", sorted(WORLDS.keys() - SLOW))
def test_a_few_nights_of_each_world_end_in_time_and_as_told(name: str) -> None:
    [result] = lived([name], 3, QUICK)
    told = sure([result])
    assert result.possible
    assert result.ours.in_time == 1.0
    assert told.true == told.count


@pytest.mark.soak
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("name", sorted(WORLDS))
def test_hundreds_of_nights_of_each_world_end_in_time(name: str) -> None:
    results = [run(WORLDS[name], seed, LONG, alone=True) for seed in SEEDS]
    possible = sum(result.possible for result in results)
    assert sum(result.ours.in_time * result.possible for result in results) >= LEAST_IN_TIME * possible


@pytest.mark.soak
@pytest.mark.timeout(LONGEST)
def test_what_is_told_as_sure_comes_true_over_thousands_of_nights() -> None:
    told = sure(lived(sorted(WORLDS), 21, LONG))
    assert told.count > 1_000
    assert told.true >= TRUE * told.count


@pytest.mark.slow
def test_a_month_whose_budget_is_used_up_is_not_told_as_sure() -> None:
    """The budget covers the first night. The second waits for it, and is not told to be in time."""
    result = run(replace(JUDGED["judged-month"], monthly=4.0), 3, 2, alone=True)
    told = sure([result])
    assert 0 < result.possible < result.jobs
    assert result.ours.in_time == 1.0
    assert told.true == told.count > 0


@pytest.mark.long
def test_what_jobs_are_told_at_most_covers_prices_that_rise_without_a_word() -> None:
    """The API doubles its price on a third of nights. The first such nights are not foreseen."""
    result = run(INVENTED["price-rise"], 3, 30, alone=True)
    assert result.within >= result.priced - 2
