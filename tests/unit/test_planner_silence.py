"""How long the rows of a provider that answers nothing are waited for, lived through in `benchmarks.routing`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.routing.night import BatchNight, Job, Night, Score, SynchronousNight
from benchmarks.routing.ours import Ours
from benchmarks.routing.world import World

HOUR = 3600.0
ROWS = 2_000
BATCH, REALTIME = 0.0005, 0.001
FAST = 5.0
"""Rows a second of an API that does all of them in seven minutes."""


def lived(hours: float, silent: float, begins: float = 0.25, *, rate: float = FAST) -> Score:
    """The first night of a home: a batch of an hour, at a provider that becomes `silent`, beside an API."""
    batch = BatchNight("batch", BATCH, HOUR, (1.0,), silent=((begins * HOUR, (begins + silent) * HOUR),))
    api = SynchronousNight("realtime", REALTIME, rate, rate, start=5.0)
    [score] = World(Night(0, (Job("job", ROWS, hours * HOUR),), (batch,), (api,))).live(Ours())
    return score


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("hours", "silent"), [(38, 1), (38, 4), (38, 14), (38, 25), (12, 6), (6, 3)])
def test_rows_stay_while_waiting_loses_nothing(hours: float, silent: float) -> None:
    score = lived(hours, silent)
    assert score.in_time
    assert score.by_route == {"batch": ROWS}
    assert score.cost == pytest.approx(ROWS * BATCH)


@pytest.mark.thinned(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("hours", "rate"), [(3, FAST), (6, FAST), (38, FAST), (38, 0.03)], ids=["3 h", "6 h", "38 h", "a slow API"]
)
def test_rows_leave_while_the_other_route_is_in_time(hours: float, rate: float) -> None:
    score = lived(hours, silent=60, rate=rate)
    assert score.in_time
    assert score.by_route["realtime"] == ROWS


@pytest.mark.thinned(3)
@pytest.mark.parametrize("begins", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("hours", "rate"), [(4.0, 0.5), (6.0, 0.3), (3.0, 1.0)])
def test_rows_that_a_silent_provider_has_done_are_asked_elsewhere_in_time(
    hours: float, rate: float, begins: float
) -> None:
    """It names no files, so the other route has to do all rows, not only those that were left."""
    score = lived(hours, silent=60, begins=begins, rate=rate)
    assert score.in_time
    assert score.by_route["realtime"] == ROWS


@pytest.mark.long
@settings(max_examples=max(2, settings().max_examples // 4))
@given(st.floats(1.0, 30.0), st.floats(0.05, 0.9))
def test_more_time_is_never_dearer_at_a_silent_provider(silent: float, begins: float) -> None:
    costs = [lived(hours, silent, begins).cost for hours in (3.0, 6.0, 12.0, 24.0, 38.0)]
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(costs))
