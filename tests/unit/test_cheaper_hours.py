"""Rows wait for an hour at which they are cheaper, if the deadline is kept all the same."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from benchmarks.routing.judged import JUDGED
from benchmarks.routing.table import run
from orchestrator.policy.planner import Open, Option, Running, SynchronousOption, Terms, plan, replan
from orchestrator.policy.planner.cheaper_hours import price_over_time
from tests.unit.test_planner import BATCH, GPU, HOUR, NOW, cost, synchronous, terms

DEAR = synchronous("api", "0.001", 4.0)
ENGINE = synchronous("engine", "0.0009", 1.0, location="local")


def by_the_hour(*steps: tuple[float, str], option: SynchronousOption = DEAR) -> SynchronousOption:
    return replace(option, cost_steps=tuple((hours * HOUR, cost(each)) for hours, each in steps))


FALLS = by_the_hour((3, "0.0005"), (11, "0.001"))
WAITS: dict[str, tuple[list[Option], Terms, float | None]] = {
    "time enough": ([FALLS, ENGINE], terms(8), 3),
    "alone": ([FALLS], terms(8), 3),
    "too late for the deadline": ([FALLS], terms(3.2), None),
    "a budget that only the cheap hours keep": ([FALLS], terms(8, "1.5"), 3),
    "a route of now that is as cheap": ([FALLS, replace(BATCH, cost=cost("0.0004"))], terms(8), None),
    "it gets dearer": ([by_the_hour((1, "0.002"))], terms(8), None),
    "the cheapest of two falls": ([by_the_hour((1, "0.0008"), (2, "0.0005"))], terms(8), 2),
    "not allowed": ([replace(FALLS, objection="no"), ENGINE], terms(8), None),
}


@pytest.mark.parametrize(("options", "of", "hours"), WAITS.values(), ids=WAITS)
def test_rows_wait_for_a_price_that_falls_in_time(options: list[Option], of: Terms, hours: float | None) -> None:
    planned = plan(2_000, options, of, NOW)
    decision = replan(Open(waiting=2_000), options, of, NOW)
    at = None if hours is None else NOW + timedelta(hours=hours)
    assert planned.starts_at == at
    assert decision.waits == (at is not None)
    assert bool(decision.sends) == (at is None)
    if at is not None:
        assert planned.verdict.holds
        assert planned.expected < Decimal("1.7")
        assert NOW < decision.next_look <= at
        assert decision.chance >= of.target


@pytest.mark.parametrize(
    "job",
    [
        Open(rerouted=2_000),
        Open(waiting=1_000, coming=1_000, coming_at=NOW),
        Open(waiting=1_000, synchronous=(("api", 1_000),)),
    ],
)
def test_rows_that_are_on_their_way_wait_for_no_price(job: Open) -> None:
    assert not replan(job, [FALLS], terms(8), NOW).waits


def test_rows_beside_a_batch_wait_too() -> None:
    job = Open(waiting=500, running=(Running("b", "openai", 500, NOW),))
    assert replan(job, [FALLS, replace(BATCH, objection="full")], terms(8), NOW).waits


def test_a_price_that_changes_while_rows_run_is_that_of_both_hours() -> None:
    half = by_the_hour((0.25, "0.002"), option=synchronous("api", "0.001", 1.0, spread=0.05))
    [found] = price_over_time([half], 1_800)
    assert isinstance(found, SynchronousOption)
    assert float(found.cost.p50) == pytest.approx(0.0015, rel=0.01)
    assert found.cost.p95 > cost("0.0015").p95, "the slower it is, the more rows are dear"
    assert price_over_time([half, GPU], 600)[1] is GPU


@pytest.mark.long
def test_nights_of_an_api_with_cheap_hours() -> None:
    found = run(JUDGED["judged-offpeak"], seed=1, count=30, alone=True)
    assert (found.ours.in_time, found.within) == (1.0, found.priced)
    assert found.ours.cost <= 1.05
