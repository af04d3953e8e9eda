"""Figures that are none (NaN, negative rows, an outage of no length) are refused before anything is planned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise

from orchestrator.policy.planner.types import BatchOption, Claim, Open, Option, SynchronousOption, Terms

WIDEST = 30.0
"""A spread of the logarithm that is wider says nothing (a rate that may be 10^13 times as high), and overflows."""


def check(options: Sequence[Option], terms: Terms, now: datetime, job: Open) -> None:
    """Raises ValueError naming the figure."""
    running = [one.rows for one in job.running]
    there = [rows for _, rows in job.synchronous]
    claimed = [claim.rows for claim in job.claims]
    for count in (job.waiting, job.rerouted, job.coming, job.later, *running, *there, *claimed):
        if count < 0:
            raise ValueError(f"{count} is not a number of rows")
    sent = (("submitted_at", one.submitted_at) for one in job.running)
    for what, at in (("now", now), ("deadline", terms.deadline), ("coming_at", job.coming_at), *sent):
        if at is not None and at.utcoffset() is None:
            raise ValueError(f"{what} is {at}, a time without a zone")
    found = (_of(option) for option in options)
    for name, figure, most in (*_of_terms(terms), *_of_claims(job.claims), *(each for one in found for each in one)):
        if not 0.0 <= figure <= most:
            raise ValueError(f"{name} is {figure}")
    if not 0.0 < terms.target < 1.0:
        raise ValueError(f"target is {terms.target}, not between 0 and 1")


Figures = Iterator[tuple[str, float, float]]
"""A figure's name, its value, and the most that it may be."""
FINITE, ANY = 1.7e308, math.inf


def _of_terms(terms: Terms) -> Figures:
    yield "margin", terms.margin, FINITE
    if terms.budget is not None:
        yield "budget", float(terms.budget), ANY
    if terms.late_cost is not None:
        yield "late_cost", float(terms.late_cost), FINITE


def _of_claims(claims: Sequence[Claim]) -> Figures:
    return ((f"the chance of the claim of {claim.source}", claim.chance, 1.0) for claim in claims)


def _of(option: Option) -> Figures:
    name = option.backend
    yield f"the cost of {name}", float(option.cost.p50), FINITE
    yield f"the cost of {name}", float(option.cost.p95), FINITE
    yield f"cancel_seconds of {name}", option.cancel_seconds, ANY
    yield from _of_batch(option) if isinstance(option, BatchOption) else _of_pace(option)


def _of_batch(option: BatchOption) -> Figures:
    name = option.backend
    if option.cancel_usual is not None:
        yield f"cancel_usual of {name}", option.cancel_usual, ANY
    yield f"the silence of {name}", option.silent, ANY
    yield f"the window of {name}", option.window, ANY
    yield f"kept of {name}", option.kept, 1.0
    yield f"slips of {name}", option.slips, 1.0
    yield f"the room of {name}", float(option.room or 0), FINITE
    yield f"what is behind at {name}", float(option.behind), FINITE


def _of_pace(option: SynchronousOption) -> Figures:
    name, pace = option.backend, option.pace
    for begin, cost in option.cost_steps:
        yield f"the begin of a price of {name}", begin, ANY
        yield f"a later cost of {name}", float(cost.p50), FINITE
        yield f"a later cost of {name}", float(cost.p95), FINITE
    yield f"the rate of {name}", pace.rate, FINITE
    yield f"the spread of {name}", pace.spread, WIDEST
    yield f"the start of {name}", pace.start, ANY
    yield f"what is ahead at {name}", pace.ahead, ANY
    yield f"the hazard of {name}", pace.hazard, FINITE
    yield f"how often {name} fails", pace.observed_hazard, FINITE
    if not pace.outage > 0.0:
        raise ValueError(f"the outage of {name} is {pace.outage}, which is no length of time")
    for begin, factor in pace.steps:
        yield f"the begin of a step of {name}", begin, ANY
        yield f"the factor of a step of {name}", factor, FINITE
    begins = [[begin for begin, _ in steps] for steps in (pace.steps, option.cost_steps)]
    if any(after < before for each in begins for before, after in pairwise(each)):
        raise ValueError(f"the steps of {name} are not in order")
