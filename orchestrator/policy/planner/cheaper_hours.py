"""Prices that depend on the hour: what rows cost over the time that they take, and when waiting pays. Pure.

Options are shown to the planner as they are at the time at which rows would be sent, so a later start is planned
like one of now.
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

HIGH = 0.95


def starts(options: Sequence[Option], terms: Terms, now: datetime) -> Iterator[tuple[datetime, tuple[Option, ...]]]:
    """Times before the deadline at which a price falls, with the options as they are then."""
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
            yield start, tuple(_then(option, seconds) for option in options)


def _then(option: Option, seconds: float) -> Option:
    """An option as it will be in so many seconds."""
    if not isinstance(option, SynchronousOption):
        return option
    cost, steps = _shifted(option.cost, option.cost_steps, seconds)
    return replace(option, cost=cost, cost_steps=steps, pace=_pace_then(option.pace, seconds))


def _shifted(cost: Cost, steps: CostSteps, seconds: float) -> tuple[Cost, CostSteps]:
    for begin, each in steps:
        if begin <= seconds:
            cost = each
    return cost, tuple((begin - seconds, each) for begin, each in steps if begin > seconds)


def _pace_then(pace: Pace, seconds: float) -> Pace:
    """The pace from then on. It is taken to start as slowly, and to have as much ahead, as now."""
    if not pace.steps:
        return pace
    factor = next((each for begin, each in reversed(pace.steps) if begin <= seconds), 1.0)
    after = tuple((begin - seconds, each) for begin, each in pace.steps if begin > seconds)
    return replace(pace, steps=((0.0, factor), *after))


def priced(options: Sequence[Option], rows: int) -> tuple[Option, ...]:
    """The options with what a row costs over the hours in which they do so many rows."""
    return tuple(_priced(option, rows) for option in options)


def _priced(option: Option, rows: int) -> Option:
    if not isinstance(option, SynchronousOption) or not option.cost_steps or not rows:
        return option
    slow = math.exp(-NORMAL.inv_cdf(HIGH) * option.pace.spread)
    shares = [_shares(option, rows, times) for times in (1.0, slow)]
    costs = [option.cost, *(cost for _, cost in option.cost_steps)]
    p50 = _mean([cost.p50 for cost in costs], shares[0])
    p95 = max(_mean([cost.p95 for cost in costs], each) for each in shares)
    return replace(option, cost=Cost(p50, max(p50, p95)))


def _mean(prices: Sequence[Decimal], shares: Sequence[float]) -> Decimal:
    return sum((price * Decimal(repr(share)) for price, share in zip(prices, shares, strict=True)), Decimal(0))


def _shares(option: SynchronousOption, rows: int, times: float) -> list[float]:
    """The parts of the rows that are done before each step of the price and after the last."""
    pace, done, found = option.pace, 0.0, []
    for begin, _ in option.cost_steps:
        full = max(0.0, pace.full(begin) - pace.full(pace.start))
        by = min(1.0, max(0.0, (pace.rate * times * full - pace.ahead) / rows))
        found.append(by - done)
        done = by
    return [*found, 1.0 - done]
