"""Prices that depend on the hour: the mean price over a run, and later starts. Pure.

A later start is planned like a start now, with the options as they will be at that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec.structs import replace

from orchestrator.policy.forecast import NORMAL, Pace
from orchestrator.policy.planner.planning_problem import objection
from orchestrator.policy.planner.types import Cost, CostSteps, Option, SynchronousOption, Terms

HIGH_QUANTILE = 0.95
"""Quantile of a slow run's duration. A slow run may continue into hours with higher prices."""


def starts(options: Sequence[Option], terms: Terms, now: datetime) -> Iterator[tuple[datetime, tuple[Option, ...]]]:
    """Yield each time before the deadline at which a price falls, with the options at that time."""
    falls = set()
    for option in options:
        if isinstance(option, SynchronousOption) and objection(option, terms) is None:
            before = option.cost
            for begin, cost in option.cost_steps:
                if begin > 0 and cost.p50 < before.p50:
                    falls.add(begin)
                before = cost
    for seconds in sorted(falls):
        start = now + timedelta(seconds=seconds)
        if start < terms.deadline:
            yield start, tuple(_option_at(option, seconds) for option in options)


def _option_at(option: Option, seconds: float) -> Option:
    if not isinstance(option, SynchronousOption):
        return option
    cost, steps = _shift_costs(option.cost, option.cost_steps, seconds)
    return replace(option, cost=cost, cost_steps=steps, pace=_shift_pace(option.pace, seconds))


def _shift_costs(cost: Cost, steps: CostSteps, seconds: float) -> tuple[Cost, CostSteps]:
    for begin, later_cost in steps:
        if begin <= seconds:
            cost = later_cost
    return cost, tuple((begin - seconds, later_cost) for begin, later_cost in steps if begin > seconds)


def _shift_pace(pace: Pace, seconds: float) -> Pace:
    """Return the pace as it will be in `seconds` seconds. Start time and rows ahead are assumed to be unchanged."""
    if not pace.steps:
        return pace
    factor = next((later_factor for begin, later_factor in reversed(pace.steps) if begin <= seconds), 1.0)
    after = tuple((begin - seconds, later_factor) for begin, later_factor in pace.steps if begin > seconds)
    return replace(pace, steps=((0.0, factor), *after))


def price_over_time(options: Sequence[Option], rows: int) -> tuple[Option, ...]:
    """Return the options with the mean price of a row over the hours that `rows` rows take."""
    return tuple(_price_option(option, rows) for option in options)


def _price_option(option: Option, rows: int) -> Option:
    if not isinstance(option, SynchronousOption) or not option.cost_steps or not rows:
        return option
    slow = math.exp(-NORMAL.inv_cdf(HIGH_QUANTILE) * option.pace.spread)
    shares = [_shares_by_step(option, rows, speed) for speed in (1.0, slow)]
    costs = [option.cost, *(cost for _, cost in option.cost_steps)]
    p50 = _weighted_price([cost.p50 for cost in costs], shares[0])
    p95 = max(_weighted_price([cost.p95 for cost in costs], each) for each in shares)
    return replace(option, cost=Cost(p50, max(p50, p95)))


def _weighted_price(prices: Sequence[Decimal], shares: Sequence[float]) -> Decimal:
    return sum((price * Decimal(repr(share)) for price, share in zip(prices, shares, strict=True)), Decimal(0))


def _shares_by_step(option: SynchronousOption, rows: int, speed: float) -> list[float]:
    pace, done, shares = option.pace, 0.0, []
    for begin, _ in option.cost_steps:
        full = max(0.0, pace.equivalent_seconds(begin) - pace.equivalent_seconds(pace.start))
        by = min(1.0, max(0.0, (pace.rate * speed * full - pace.ahead) / rows))
        shares.append(by - done)
        done = by
    return [*shares, 1.0 - done]
