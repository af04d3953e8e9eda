"""Rows stay at a cheap engine until its speed tonight is known: a batch does the rest while there is time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from orchestrator.policy.planner import Open, Option, plan, replan
from tests.unit.test_planner import NOW, batch, known, synchronous, terms

MINUTE, HOUR = 60.0, 3600.0
BATCH = batch("batch", "0.0005", 15 * MINUTE)
REALTIME = synchronous("realtime", "0.001", 8.0)


def engine(spread: float, rate: float = 0.25) -> Option:
    return synchronous("gpu", "0.0001", rate, spread=spread, location="local")


def at_engine(options: list[Option], hours: float = 8) -> int:
    planned = plan(12_000, options, terms(hours), NOW)
    assert planned.verdict.holds
    return next((route.rows for route in planned.routes if route.backend == "gpu"), 0)


def test_an_engine_whose_nights_differ_gets_what_it_does_on_a_good_night() -> None:
    usual = 0.25 * 8 * HOUR
    assert at_engine([BATCH, engine(0.02), REALTIME]) <= 1.05 * usual
    assert 1.15 * usual < at_engine([BATCH, engine(0.25), REALTIME]) <= 1.45 * usual


@pytest.mark.parametrize(
    "other",
    [
        replace(BATCH, turnaround=known(7 * HOUR)),
        replace(BATCH, objection="its key was refused"),
        replace(BATCH, cost=REALTIME.cost),
    ],
    ids=["too slow", "refused", "no cheaper"],
)
def test_it_gets_no_more_than_usual_if_no_batch_would_do_the_rest(other: Option) -> None:
    assert at_engine([other, engine(0.25), REALTIME]) <= 0.25 * 8 * HOUR


@pytest.mark.parametrize(("spread", "moves"), [(0.25, False), (0.02, True)], ids=["not yet", "known"])
def test_the_rest_goes_to_a_batch_once_its_speed_is_known(spread: float, moves: bool) -> None:
    job = Open(synchronous=(("gpu", 8_700),))
    found = replan(job, [BATCH, engine(spread), REALTIME], terms(8), NOW)
    assert found.chance >= 0.99
    assert {one.backend for one in found.sends} == ({"batch"} if moves else set())
    assert all(one.source == "gpu" for one in found.sends)


def test_it_is_expected_to_cost_less() -> None:
    """What the engine does beyond its usual night is as likely as what it does not do."""
    options = [BATCH, engine(0.25), REALTIME]
    even = 0.25 * 8 * HOUR * 0.0001 + (12_000 - 0.25 * 8 * HOUR) * 0.0005
    assert float(plan(12_000, options, terms(8), NOW).expected) < 1.05 * even
