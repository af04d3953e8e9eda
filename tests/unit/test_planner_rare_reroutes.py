"""A reroute that is rarely needed may be less sure than one that is likely: the whole chance keeps the target."""

from __future__ import annotations

from datetime import timedelta

import pytest

from benchmarks.routing.scenarios import SCENARIOS
from benchmarks.routing.table import run
from orchestrator.policy.forecast import SeenBatch, Turnaround, turnaround
from orchestrator.policy.planner import Open, Option, Running, plan, replan
from tests.unit.test_planner import NOW, batch, routes, synchronous, terms

MINUTE, HOUR = 60.0, 3600.0
NIGHTS, TARGET = 60, 0.99
ENGINE = synchronous("engine", "0.001", 1.0, spread=0.3, location="local")
"""Does 8,000 rows in 2.2 hours, and on one night in 300 in more than 5."""


def mostly(seconds: float, late: int) -> Turnaround:
    """Batches that took so long, but for one night in so many, on which they took twenty hours."""
    nights = range(1, NIGHTS + 1)
    seen = [SeenBatch(NOW - timedelta(days=at), seconds if at % late else 20 * HOUR, True, 2000) for at in nights]
    return turnaround(seen, rows=2000, at=NOW)


def options(turnaround: Turnaround) -> list[Option]:
    return [batch("batch", "0.0005", turnaround=turnaround, cancel_seconds=300.0, slips=0.003), ENGINE]


def test_a_batch_that_is_mostly_done_gets_all_rows_though_a_slow_engine_might_not_do_them_after_it() -> None:
    """No row is paid at the engine to make that surer which one night in eight needs."""
    planned = plan(8000, options(mostly(30 * MINUTE, 10)), terms(5.5), NOW)
    assert routes(planned) == {"batch": 8000}
    assert planned.verdict.holds
    assert planned.chance >= TARGET


@pytest.mark.parametrize(("hours", "late"), [(4.5, 10), (5, 10), (5, 3), (5, 20)])
def test_a_plan_whose_whole_chance_reaches_the_target_holds(hours: float, late: int) -> None:
    planned = plan(8000, options(mostly(30 * MINUTE, late)), terms(hours), NOW)
    assert planned.chance >= TARGET
    assert planned.verdict.holds, planned.verdict.reason


def test_the_likelier_a_reroute_is_the_surer_it_has_to_be() -> None:
    """More rows go to the engine at once, so that the others can be taken back in time."""
    rare, usual = (plan(8000, options(mostly(30 * MINUTE, late)), terms(5.5), NOW) for late in (10, 2))
    assert rare.reroute is not None
    assert usual.reroute is not None
    assert usual.verdict.holds
    assert usual.reroute.at < rare.reroute.at


def test_a_batch_that_has_become_late_is_left_sooner_than_it_was_planned() -> None:
    """The plan is made anew at each look, and a reroute is likelier to be needed by then."""
    found = {}
    for minutes in (0, 60):
        begin = NOW - timedelta(minutes=minutes)
        job = Open(running=tuple(Running(f"b{at}", "batch", 2000, begin) for at in range(4)))
        found[minutes] = replan(job, options(mostly(30 * MINUTE, 10)), terms(5.5 - minutes / 60), NOW)
    assert found[0].reroute is not None
    assert found[0].reroute.at > NOW + timedelta(minutes=60)
    assert not found[0].cancel
    assert found[60].cancel
    assert found[60].chance > 0.96


@pytest.mark.long
def test_nights_of_a_batch_and_one_slow_engine_are_in_time_and_hardly_dearer_than_for_who_knows_them() -> None:
    result = run(SCENARIOS["slow-sure"], 3, 40, alone=True)
    assert result.ours.in_time == 1.0
    assert result.ours.cost < 1.13
