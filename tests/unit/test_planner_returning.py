"""Rows that come back from cancelled batches share an option with those that are sent there now."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.policy.planner import Open
from orchestrator.policy.planner.job_orders import returning_rows, seconds_beside
from tests.unit.test_planner import BATCH, NOW, REALTIME, synchronous, terms

LOCAL = synchronous("gpu", "0.0006", 1.0, location="local")


def coming(rows: int, minutes: float, held: int = 0) -> Open:
    paced_rows = (("gpu", held),) if held else ()
    return Open(coming=rows, coming_at=NOW + timedelta(minutes=minutes), synchronous=paced_rows)


def test_rows_come_back_to_the_cheapest_option_and_what_it_cannot_do_to_the_next() -> None:
    assert returning_rows(coming(1000, 10), [BATCH, LOCAL, REALTIME], terms(4), NOW) == {"gpu": 1000}
    both = returning_rows(coming(8000, 10), [BATCH, LOCAL, REALTIME], terms(2), NOW)
    assert sum(both.values()) == 8000
    assert both["gpu"] <= 6600
    assert both["realtime"] >= 1400
    fewer = returning_rows(coming(8000, 10, held=3000), [BATCH, LOCAL, REALTIME], terms(2), NOW)
    assert fewer["gpu"] < both["gpu"]


def test_nothing_comes_back_where_nothing_was_cancelled_or_nothing_takes_it() -> None:
    assert returning_rows(Open(waiting=50), [BATCH, LOCAL], terms(4), NOW) == {}
    assert returning_rows(coming(50, 5), [BATCH], terms(4), NOW) == {}


@pytest.mark.parametrize(
    ("minutes", "p50", "p95"),
    [(1, True, True), (20, False, True), (120, False, False)],
    ids=["soon", "later", "last"],
)
def test_they_count_where_they_come_before_it_is_done(minutes: float, p50: bool, p95: bool) -> None:
    job, alone, all_of_them = coming(600, minutes), LOCAL.pace.seconds_for, 1200
    for chance, counts in ((0.5, p50), (0.95, p95)):
        told = seconds_beside(LOCAL, 600, 600, job, NOW, chance)
        assert told == pytest.approx(alone(all_of_them if counts else 600, chance))
