"""Explanations of a plan: its routes, and the reasons why other backends get no rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from orchestrator.core.counts import number_that
from orchestrator.core.durations import duration
from orchestrator.core.money import amount, money
from orchestrator.core.probability_words import chance_words
from orchestrator.policy.planner.batch_shares import BatchShare, most_rows
from orchestrator.policy.planner.candidate_plans import CandidatePlan
from orchestrator.policy.planner.capacity import Capacity, capacity
from orchestrator.policy.planner.planning_problem import after, objection, reroute_of
from orchestrator.policy.planner.search import Chosen
from orchestrator.policy.planner.types import BatchOption, Cost, Option, Refusal, Reroute, Route, Terms


def routes_of(candidate: CandidatePlan, ours: Capacity, now: datetime, reroute: Reroute | None) -> list[Route]:
    """Return the backends that take rows. `reroute` is the reroute of `candidate`."""
    routes = []
    for batch_share in candidate.batch_shares:
        why = (
            "the cheapest"
            if reroute is None
            else f"rerouted after {duration((reroute.at - now).total_seconds())} if still running"
        )
        if reroute is not None and not batch_share.option.cancels:
            why += ", and then paid for twice: it cannot end a batch"
        routes.append(_route(batch_share.option, batch_share.rows, ours.horizon, now, why))
    for place, (sync, rows) in enumerate(zip(ours.sync_options, candidate.new, strict=True)):
        if rows:
            why = "the cheapest" if not place and not candidate.batch_shares else "cheapest for the rows done in time"
            routes.append(_route(sync.option, rows, ours.horizon, now, why))
    return routes


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
        batch_share = BatchShare(option, rows)
        return (
            cost,
            after(now, batch_share.within(0.5)),
            after(now, batch_share.within(0.95)),
            batch_share.by(horizon),
        )
    pace = option.pace
    chance = capacity([option], horizon, 0.5).chance(0, (rows,), 0.0, 1)
    return cost, after(now, pace.seconds_for(rows)), after(now, pace.seconds_for(rows, 0.95)), chance


def refusals_of(
    rows: int, options: Sequence[Option], terms: Terms, now: datetime, chosen: Chosen | None, ours: Capacity
) -> tuple[Refusal, ...]:
    """Return the backends that take no rows, each with the reason."""
    candidate = chosen.candidate if chosen else None
    taken = {batch_share.option.backend for batch_share in candidate.batch_shares} if candidate else set()
    horizon = ours.horizon
    to: tuple[str, ...] = ()
    if candidate:
        taken |= {sync.option.backend for sync, count in zip(ours.sync_options, candidate.new, strict=True) if count}
        reroute = reroute_of(candidate, ours, now)
        to = reroute.to if reroute else ()
    refusals = []
    for option in options:
        if option.backend in taken:
            continue
        reason = objection(option, terms)
        if reason is not None:
            refusals.append(Refusal(option.backend, reason))
            continue
        cost, p50, p95, chance = _figures(option, rows, horizon, now)
        why = _refusal_reason(option, rows, cost, p95, chance, terms, now, chosen, is_fallback=option.backend in to)
        refusals.append(Refusal(option.backend, why, cost, p50, p95, chance))
    return tuple(refusals)


def _refusal_reason(
    option: Option,
    rows: int,
    cost: Cost,
    p95: datetime | None,
    chance: float,
    terms: Terms,
    now: datetime,
    chosen: Chosen | None,
    *,
    is_fallback: bool,
) -> str:
    dearer = f"{float(cost.p50) / chosen.expected:.1f}x dearer" if chosen and chosen.expected > 0 else "dearer"
    if is_fallback:
        return f"reserved for a reroute; {dearer} for all rows"
    if terms.budget is not None and cost.p95 > terms.budget:
        return f"costs up to {money(cost.p95)}, which is over the budget of {amount(terms.budget)}"
    if isinstance(option, BatchOption) and rows > most_rows(option):
        return f"{number_that(rows, 'row', 'are')} too many for its queue, which takes {option.room:,} at once"
    if chance < terms.target and (p95 is None or p95 > terms.deadline):
        return "might never finish (p95)" if p95 is None else f"would finish by {clock(p95, now)} (p95)"
    if chosen and float(cost.p50) > chosen.expected * 1.05:
        return f"{dearer}, not needed"
    return f"not cheaper, and {chance_words(chance)} likely to be in time"


def clock(at: datetime, now: datetime) -> str:
    """Format a time in the local time zone, with its date if it is 24 hours away or more."""
    local = at.astimezone()
    return f"{local:%H:%M}" if at - now < timedelta(hours=24) else f"{local:%Y-%m-%d %H:%M}"
