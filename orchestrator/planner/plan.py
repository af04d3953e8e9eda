"""`plan`: where the rows of a job go, what that costs, whether it arrives in time, and why not otherwise. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from orchestrator.durations import duration
from orchestrator.model import PICO
from orchestrator.planner.courses import Course, Stake, arrival, done_by
from orchestrator.planner.ground import Ground, ground
from orchestrator.planner.search import Chosen, Position, best, holding
from orchestrator.planner.values import (
    BatchOption,
    Cost,
    Option,
    PacedOption,
    Plan,
    Refusal,
    Rescue,
    Route,
    Terms,
    Verdict,
)

NOT_LOCAL = 'the job is local only, and this backend is not declared location = "local"'
FURTHEST = timedelta(days=8)
"""How far a nearest deadline is looked for."""
_MINUTE = timedelta(minutes=1)


def plan(rows: int, options: Sequence[Option], terms: Terms, now: datetime) -> Plan:
    """The cheapest routes that hold the terms; where none do, the likeliest in the budget, and what would hold."""
    usable = [option for option in options if objection(option, terms) is None]
    chosen = _chosen(rows, usable, terms, now)
    if chosen is None:
        return Plan((), _refused(rows, options, terms, now, None), None, Decimal(0), Decimal(0), 0.0,
                    _verdict(rows, usable, terms, now, None))  # fmt: skip
    ours = ground_of(usable, terms, now)
    return Plan(
        tuple(_routes(chosen.course, ours, now)),
        _refused(rows, options, terms, now, chosen),
        rescue_of(chosen.course, ours, now),
        money(chosen.expected),
        chosen.at_most,
        chosen.chance,
        _verdict(rows, usable, terms, now, chosen),
    )


def objection(option: Option, terms: Terms) -> str | None:
    """Why a job may not use an option at all; None where it may. P10 is kept here, whatever the caller has said."""
    if terms.local_only and option.location != "local":
        return NOT_LOCAL
    return option.objection


def ground_of(usable: Sequence[Option], terms: Terms, now: datetime) -> Ground:
    """The paced ones among the options, until the deadline."""
    paced = [option for option in usable if isinstance(option, PacedOption)]
    return ground(paced, (terms.deadline - now).total_seconds(), terms.target)


def batches_of(usable: Sequence[Option]) -> list[BatchOption]:
    """The batches among the options."""
    return [option for option in usable if isinstance(option, BatchOption)]


def rescue_of(course: Course, ours: Ground, now: datetime) -> Rescue | None:
    """When what is in batches is pulled back, and where to; None where it never is."""
    if course.pull is None or not course.stakes:
        return None
    burden = course.staked + course.coming
    room = ours.room(course.held, arrival(course), course.cover, sure=True)
    filled = ours.fill(burden, room)
    to = tuple(lane.option.backend for lane, rows in zip(ours.lanes, filled, strict=True) if rows)
    return Rescue(now + timedelta(seconds=course.pull), to, 1.0 - done_by(course.stakes, course.pull))


def money(dollars: float) -> Decimal:
    """An expected sum as money."""
    return Decimal(repr(dollars)).quantize(PICO, ROUND_HALF_EVEN)


def after(now: datetime, seconds: float) -> datetime | None:
    """The time so many seconds from now; None where it is never."""
    return None if math.isinf(seconds) else now + timedelta(seconds=seconds)


def _chosen(rows: int, usable: Sequence[Option], terms: Terms, now: datetime) -> Chosen | None:
    ours = ground_of(usable, terms, now)
    return best(_start(rows, ours), batches_of(usable), ours, terms)


def _holding(rows: int, usable: Sequence[Option], terms: Terms, now: datetime) -> Chosen | None:
    ours = ground_of(usable, terms, now)
    return holding(_start(rows, ours), batches_of(usable), ours, terms)


def _start(rows: int, ours: Ground) -> Position:
    return Position(rows, 0, 0, 0.0, (), (0,) * len(ours.lanes))


def _routes(course: Course, ours: Ground, now: datetime) -> list[Route]:
    found = []
    for stake in course.stakes:
        why = (
            "the cheapest"
            if course.pull is None
            else f"pulled back after {duration(course.pull)} where it still runs"
        )
        if course.both:
            why = "runs in two places, as the job allows"
        found.append(_route(stake.option, stake.rows, ours.horizon, now, why))
    for place, (lane, rows) in enumerate(zip(ours.lanes, course.new, strict=True)):
        if rows:
            why = "the cheapest" if not place and not course.stakes else "what it does in time, so cheapest"
            found.append(_route(lane.option, rows, ours.horizon, now, why))
    return found


def _route(option: Option, rows: int, horizon: float, now: datetime, reason: str) -> Route:
    cost, p50, p95, chance = _figures(option, rows, horizon, now)
    source = option.turnaround.source if isinstance(option, BatchOption) else option.pace.source
    basis = "turnaround" if isinstance(option, BatchOption) else "speed"
    return Route(option.backend, rows, cost, p50, p95, chance, f"{reason}; {basis} {source}")


def _figures(
    option: Option, rows: int, horizon: float, now: datetime
) -> tuple[Cost, datetime | None, datetime | None, float]:
    cost = Cost(option.cost.p50 * rows, option.cost.p95 * rows)
    if isinstance(option, BatchOption):
        stake = Stake(option, rows)
        return cost, after(now, stake.within(0.5)), after(now, stake.within(0.95)), stake.by(horizon)
    pace = option.pace
    chance = ground([option], horizon, 0.5).chance(0, (rows,), 0.0, 1)
    return cost, after(now, pace.seconds_for(rows)), after(now, pace.seconds_for(rows, 0.95)), chance


def _refused(
    rows: int, options: Sequence[Option], terms: Terms, now: datetime, chosen: Chosen | None
) -> tuple[Refusal, ...]:
    course = chosen.course if chosen else None
    taken = {stake.option.backend for stake in course.stakes} if course else set()
    horizon = (terms.deadline - now).total_seconds()
    to: tuple[str, ...] = ()
    if course:
        usable = [option for option in options if objection(option, terms) is None]
        ours = ground_of(usable, terms, now)
        taken |= {lane.option.backend for lane, many in zip(ours.lanes, course.new, strict=True) if many}
        rescue = rescue_of(course, ours, now)
        to = rescue.to if rescue else ()
    found = []
    for option in options:
        if option.backend in taken:
            continue
        against = objection(option, terms)
        if against is not None:
            found.append(Refusal(option.backend, against))
            continue
        cost, p50, p95, chance = _figures(option, rows, horizon, now)
        why = _against(option, rows, cost, p95, chance, terms, now, chosen, kept=option.backend in to)
        found.append(Refusal(option.backend, why, cost, p50, p95, chance))
    return tuple(found)


def _against(
    option: Option,
    rows: int,
    cost: Cost,
    p95: datetime | None,
    chance: float,
    terms: Terms,
    now: datetime,
    chosen: Chosen | None,
    *,
    kept: bool,
) -> str:
    dearer = f"{float(cost.p50) / chosen.expected:.1f}x dearer" if chosen and chosen.expected > 0 else "dearer"
    if kept:
        return f"kept for the rescue; {dearer} for all rows"
    if terms.budget is not None and cost.p95 > terms.budget:
        return f"costs up to {_dollars(cost.p95)}, which is over the budget of {_dollars(terms.budget)}"
    if isinstance(option, BatchOption) and rows < option.min_rows:
        return f"{rows:,} rows are no batch; one has {option.min_rows:,} or more"
    if chance < terms.target and (p95 is None or p95 > terms.deadline):
        return "may not be done at all (p95)" if p95 is None else f"would be done by {_clock(p95, now)} (p95)"
    if chosen and float(cost.p50) > chosen.expected * 1.05:
        return f"{dearer}, not needed"
    return f"no cheaper, and in time with {chance:.0%}"


def _clock(at: datetime, now: datetime) -> str:
    """As the user's clocks show it."""
    local = at.astimezone()
    return f"{local:%H:%M}" if at - now < timedelta(hours=24) else f"{local:%Y-%m-%d %H:%M}"


def _dollars(amount: Decimal | None) -> str:
    assert amount is not None, "a budget was exceeded"
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.4f}"


def _verdict(rows: int, usable: Sequence[Option], terms: Terms, now: datetime, chosen: Chosen | None) -> Verdict:
    if not rows:
        return Verdict(True, "there is nothing to do")
    if not usable:
        return Verdict(False, "no backend may run this job")
    if chosen and chosen.holds:
        return Verdict(True, f"done by {_clock(terms.deadline, now)} with {chosen.chance:.1%}")
    if chosen and terms.late_cost is not None:
        return Verdict(True, f"in time with {chosen.chance:.1%}; being late costs less than being surer")
    budget = None if terms.budget is None else _least(rows, usable, terms, now)
    deadline = _earliest(rows, usable, terms, now)
    if chosen is None and terms.budget is None:
        reason = f"no backend takes a batch of as few rows as {rows:,}"
    elif chosen is None:
        reason = f"no way to run this costs as little as the budget of {_dollars(terms.budget)}"
    elif budget is not None:
        told = f"the budget of {_dollars(terms.budget)} does not pay for being in time"
        reason = f"{told}; with it, that is {chosen.chance:.1%}"
    else:
        reason = f"in time with {chosen.chance:.1%}, where {terms.target:.1%} are asked for"
    return Verdict(False, reason, deadline, budget)


def _earliest(rows: int, usable: Sequence[Option], terms: Terms, now: datetime) -> datetime | None:
    """The earliest deadline, to the minute, that holds within the budget."""

    def holds(minutes: int) -> bool:
        moved = replace(terms, deadline=now + minutes * _MINUTE, late_cost=None)
        return _holding(rows, usable, moved, now) is not None

    top = int(FURTHEST / _MINUTE)
    if not holds(top):
        return None
    bottom = max(0, int((terms.deadline - now) / _MINUTE))
    while top - bottom > max(1, bottom // 50):
        middle = (bottom + top) // 2
        if holds(middle):
            top = middle
        else:
            bottom = middle
    return now + top * _MINUTE


def _least(rows: int, usable: Sequence[Option], terms: Terms, now: datetime) -> Decimal | None:
    """The least budget that holds the deadline, to a cent or a hundredth part of it; None where none does."""

    def holds(budget: Decimal | None) -> Chosen | None:
        return _holding(rows, usable, replace(terms, budget=budget, late_cost=None), now)

    free = holds(None)
    if free is None:
        return None
    bottom, top = terms.budget or Decimal(0), free.at_most
    while top - bottom > max(Decimal("0.01"), bottom / 100):
        middle = (bottom + top) / 2
        found = holds(middle)
        if found:
            top = found.at_most
        else:
            bottom = middle
    return top
