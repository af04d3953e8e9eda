"""Figures that are none (NaN, negative rows, a rate without bound) are refused before anything is planned by them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.policy.planner.types import BatchOption, Option, Terms


def check(options: Sequence[Option], terms: Terms, *counts: int) -> None:
    """Raises ValueError naming the figure."""
    for count in counts:
        if count < 0:
            raise ValueError(f"{count} is not a number of rows")
    for name, figure, bounded in (*_of_terms(terms), *(found for option in options for found in _of(option))):
        if math.isnan(figure) or figure < 0 or (bounded and math.isinf(figure)):
            raise ValueError(f"{name} is {figure}")
    if not 0.0 < terms.target < 1.0:
        raise ValueError(f"target is {terms.target}, not between 0 and 1")


Figures = Iterator[tuple[str, float, bool]]
"""A figure's name, its value, and whether it has to be finite."""


def _of_terms(terms: Terms) -> Figures:
    yield "margin", terms.margin, True
    for name, dollars in (("budget", terms.budget), ("late_cost", terms.late_cost)):
        if dollars is not None:
            yield name, float(dollars), name == "late_cost"


def _of(option: Option) -> Figures:
    name = option.backend
    yield f"the cost of {name}", float(option.cost.p50), True
    yield f"the cost of {name}", float(option.cost.p95), True
    if isinstance(option, BatchOption):
        yield f"cancel_seconds of {name}", option.cancel_seconds, False
        if option.cancel_usual is not None:
            yield f"cancel_usual of {name}", option.cancel_usual, False
        yield f"the silence of {name}", option.silent, False
        yield f"the window of {name}", option.window, False
        yield f"kept of {name}", option.kept, True
        yield f"slips of {name}", option.slips, True
        yield f"the room of {name}", float(option.room or 0), True
        yield f"what is behind at {name}", float(option.behind), True
        return
    pace = option.pace
    yield f"the rate of {name}", pace.rate, True
    yield f"the spread of {name}", pace.spread, True
    yield f"the start of {name}", pace.start, False
    yield f"what is ahead at {name}", pace.ahead, False
    yield f"the hazard of {name}", pace.hazard, True
    yield f"cancel_seconds of {name}", option.cancel_seconds, False
