"""Validation of the planner's inputs: rejects NaN, negative rows, and outages without length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from orchestrator.policy.planner.types import BatchOption, Claim, Open, Option, SynchronousOption, Terms

MAX_SPREAD = 30.0
"""Largest valid spread of a logarithm, a factor of 10^13. `check` rejects a larger spread, which would overflow."""


def check(options: Sequence[Option], terms: Terms, now: datetime, job: Open) -> None:
    """Raise ValueError if an input is invalid. The message names the figure."""
    running = [one.rows for one in job.running]
    synchronous = [rows for _, rows in job.synchronous]
    claimed = [claim.rows for claim in job.claims]
    for count in (job.waiting, job.rerouted, job.coming, job.later, *running, *synchronous, *claimed):
        if count < 0:
            raise ValueError(f"{count} rows: must be 0 or more")
    sent = (("submitted_at", one.submitted_at) for one in job.running)
    for what, at in (("now", now), ("deadline", terms.deadline), ("coming_at", job.coming_at), *sent):
        if at is not None and at.utcoffset() is None:
            raise ValueError(f"{what} is {at}: must have a time zone")
    figures_by_option = (_option_figures(option) for option in options)
    for name, figure, maximum in (
        *_terms_figures(terms),
        *_claim_figures(job.claims),
        *(each for one in figures_by_option for each in one),
    ):
        if not 0.0 <= figure <= maximum:
            raise ValueError(f"{name} is {figure}")
    if not 0.0 < terms.target < 1.0:
        raise ValueError(f"target is {terms.target}, not between 0 and 1")


Figures = Iterator[tuple[str, float, float]]
"""Name, value and maximum of each figure."""
FINITE, ANY = 1.7e308, math.inf


def _terms_figures(terms: Terms) -> Figures:
    yield "margin", terms.margin, FINITE
    if terms.budget is not None:
        yield "budget", float(terms.budget), ANY
    if terms.late_cost is not None:
        yield "late_cost", float(terms.late_cost), FINITE


def _claim_figures(claims: Sequence[Claim]) -> Figures:
    return ((f"the chance of the claim of {claim.source}", claim.chance, 1.0) for claim in claims)


def _option_figures(option: Option) -> Figures:
    name = option.backend
    yield f"the cost of {name}", float(option.cost.p50), FINITE
    yield f"the cost of {name}", float(option.cost.p95), FINITE
    yield f"cancel_seconds of {name}", option.cancel_seconds, ANY
    yield from _batch_figures(option) if isinstance(option, BatchOption) else _pace_figures(option)


def _batch_figures(option: BatchOption) -> Figures:
    name = option.backend
    if option.cancel_usual is not None:
        yield f"cancel_usual of {name}", option.cancel_usual, ANY
    yield f"the silence of {name}", option.silent, ANY
    yield f"the window of {name}", option.window, ANY
    yield f"begins of {name}", option.begins, 1.0
    if not option.begins > 0.0:
        raise ValueError(f"begins of {name} is {option.begins}, and must be greater than 0")
    yield f"slips of {name}", option.slips, 1.0
    yield f"paid_twice of {name}", option.paid_twice, 1.0
    yield f"the room of {name}", float(option.room or 0), FINITE
    yield f"the rows behind at {name}", float(option.behind), FINITE


def _pace_figures(option: SynchronousOption) -> Figures:
    name, pace = option.backend, option.pace
    for begin, cost in option.cost_steps:
        yield f"the time of a price change of {name}", begin, ANY
        yield f"a later cost of {name}", float(cost.p50), FINITE
        yield f"a later cost of {name}", float(cost.p95), FINITE
    yield f"the rate of {name}", pace.rate, FINITE
    yield f"the spread of {name}", pace.spread, MAX_SPREAD
    yield f"the start of {name}", pace.start, ANY
    yield f"the rows ahead at {name}", pace.ahead, ANY
    yield f"the hazard of {name}", pace.hazard, FINITE
    yield f"the observed hazard of {name}", pace.observed_hazard, FINITE
    if not pace.outage > 0.0:
        raise ValueError(f"the outage of {name} is {pace.outage}, and must be greater than 0")
    for begin, factor in pace.steps:
        yield f"the time of a step of {name}", begin, ANY
        yield f"the factor of a step of {name}", factor, FINITE
    begins = [[begin for begin, _ in steps] for steps in (pace.steps, option.cost_steps)]
    if any(after < before for each in begins for before, after in pairwise(each)):
        raise ValueError(f"the steps of {name} are not in order")
