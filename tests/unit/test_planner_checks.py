"""Figures that cannot be meant are refused before anything is planned by them."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.policy.planner import Claim, Open, Option, Running, Terms, plan, replan
from tests.unit.test_planner import BATCH, GPU, NOW, cost, terms

NAN, INF = math.nan, math.inf
PACE = GPU.pace
OPTIONS: dict[str, Option] = {
    "a rate that is none": replace(GPU, pace=replace(PACE, rate=NAN)),
    "a rate without bound": replace(GPU, pace=replace(PACE, rate=INF)),
    "a negative rate": replace(GPU, pace=replace(PACE, rate=-1.0)),
    "a spread that is none": replace(GPU, pace=replace(PACE, spread=NAN)),
    "a start that is none": replace(GPU, pace=replace(PACE, start=NAN)),
    "an outage of no length": replace(GPU, pace=replace(PACE, outage=0.0)),
    "a negative outage": replace(GPU, pace=replace(PACE, outage=-60.0)),
    "an outage that is none": replace(GPU, pace=replace(PACE, outage=NAN)),
    "a spread that may be anything": replace(GPU, pace=replace(PACE, spread=50.0)),
    "a step that is none": replace(GPU, pace=replace(PACE, steps=((60.0, NAN),))),
    "a step backwards": replace(GPU, pace=replace(PACE, steps=((60.0, 1.0), (30.0, 0.5)))),
    "a hazard without bound": replace(GPU, pace=replace(PACE, hazard=INF)),
    "a queue that is none": replace(GPU, pace=replace(PACE, ahead=NAN)),
    "leaving takes no time that is known": replace(GPU, cancel_seconds=NAN),
    "a price that is none": replace(GPU, cost=cost("NaN")),
    "a price without bound": replace(BATCH, cost=cost("Infinity")),
    "a negative price": replace(BATCH, cost=cost("-1")),
    "a cancel that is none": replace(BATCH, cancel_seconds=NAN),
    "a negative cancel": replace(BATCH, cancel_seconds=-1.0),
    "a silence that is none": replace(BATCH, silent=NAN),
    "a window that is none": replace(BATCH, window=NAN),
    "a chance that is none": replace(BATCH, slips=NAN),
    "a chance beyond certainty": replace(BATCH, slips=1.5),
    "a first row after the last": replace(BATCH, begins=1.1),
    "a first row before the batch": replace(BATCH, begins=0.0),
    "a negative room": replace(BATCH, room=-1),
}
TERMS = {
    "a budget that is none": replace(terms(4), budget=Decimal("NaN")),
    "a negative budget": replace(terms(4), budget=Decimal(-1)),
    "a price of being late that is none": replace(terms(4), late_cost=Decimal("NaN")),
    "a price of being late without bound": replace(terms(4), late_cost=Decimal("Infinity")),
    "a margin that is none": replace(terms(4), margin=NAN),
    "a margin without bound": replace(terms(4), margin=INF),
    "a target that is none": replace(terms(4), target=NAN),
    "a deadline without a zone": replace(terms(4), deadline=NOW.replace(tzinfo=None)),
    "a target of certainty": replace(terms(4), target=1.0),
}


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS.keys())
def test_an_option_with_such_a_figure_is_refused_by_name(option: Option) -> None:
    for asked in (lambda: plan(10, [option], terms(4), NOW), lambda: replan(Open(10), [option], terms(4), NOW)):
        with pytest.raises(ValueError, match=option.backend):
            asked()


@pytest.mark.parametrize("asked", TERMS.values(), ids=TERMS.keys())
def test_so_are_terms(asked: Terms) -> None:
    with pytest.raises(ValueError, match=r"budget|late_cost|margin|target|deadline"):
        plan(10, [BATCH, GPU], asked, NOW)


def test_so_are_rows() -> None:
    with pytest.raises(ValueError, match="-1"):
        plan(-1, [GPU], terms(4), NOW)
    with pytest.raises(ValueError, match="-1"):
        plan(1, [GPU], terms(4), NOW, later=-1)


JOBS = {
    "rows": Open(-1),
    "rows on their way": Open(0, 0, -1),
    "rows of a batch": Open(running=(Running("b", "openai", -1, NOW),)),
    "rows at an option": Open(synchronous=(("gpu", -1),)),
    "rows of others": Open(1, claims=(Claim("gpu", -1, 0.1),)),
    "a chance of others": Open(1, claims=(Claim("gpu", 1, NAN),)),
    "a time without a zone": Open(0, 0, 1, NOW.replace(tzinfo=None)),
    "a batch sent at a time without a zone": Open(running=(Running("b", "openai", 1, NOW.replace(tzinfo=None)),)),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_so_is_where_rows_are(job: Open) -> None:
    with pytest.raises(ValueError, match=r"-1|chance|zone"):
        replan(job, [BATCH, GPU], terms(4), NOW)


def test_so_is_a_present_without_a_zone() -> None:
    for asked in (plan, replan):
        with pytest.raises(ValueError, match="now"):
            asked(Open(1) if asked is replan else 1, [GPU], terms(4), NOW.replace(tzinfo=None))  # type: ignore[operator]


@pytest.mark.parametrize("spread", [0.0, 5.0, 29.0])
@pytest.mark.parametrize("outage", [1e-6, 3600.0, INF])
def test_what_is_wide_or_brief_is_a_figure(spread: float, outage: float) -> None:
    odd = replace(GPU, pace=replace(PACE, spread=spread, outage=outage, hazard=1.0))
    found = plan(1000, [odd, BATCH], terms(4, "1"), NOW)
    assert 0.0 <= found.chance <= 1.0


def test_what_never_ends_is_a_figure() -> None:
    slow = replace(BATCH, cancel_seconds=INF)
    gone = replace(GPU, pace=replace(PACE, rate=0.0), cancel_seconds=INF)
    found = plan(10, [slow, gone], replace(terms(4), budget=Decimal("Infinity")), NOW)
    assert sum(route.rows for route in found.routes) == 10
    late = plan(10, [slow, GPU], replace(terms(4), deadline=NOW - timedelta(days=400)), NOW)
    assert late.chance == 0.0
