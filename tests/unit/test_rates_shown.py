"""Rates that users see: never negative, whatever counts and clocks do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.reports.status import RateWindow


def test_rows_that_are_asked_again_begin_the_rate_anew() -> None:
    window = RateWindow()
    window.add(0.0, 0)
    assert window.add(10.0, 100) == 10.0
    assert window.add(11.0, 40) == 0.0
    assert window.add(12.0, 45) == 5.0


@given(st.lists(st.tuples(st.floats(-60, 60), st.integers(0, 1000))))
def test_no_rate_is_negative(steps: list[tuple[float, int]]) -> None:
    window, at = RateWindow(), 0.0
    for passed, done in steps:
        at += passed
        assert window.add(at, done) >= 0.0
