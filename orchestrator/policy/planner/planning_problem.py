"""Parts of a planning problem: the usable options' capacity until the deadline, their batches, and reroutes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from msgspec.structs import replace

from orchestrator.core.model import PICO
from orchestrator.policy.eligibility import NOT_LOCAL
from orchestrator.policy.forecast import NORMAL
from orchestrator.policy.planner.batch_shares import BatchShare, done_by
from orchestrator.policy.planner.candidate_plans import WAITS, CandidatePlan, arrival, is_in_time
from orchestrator.policy.planner.capacity import Capacity, capacity
from orchestrator.policy.planner.types import (
    NOTHING,
    BatchOption,
    Claim,
    Cost,
    Option,
    Reroute,
    SynchronousOption,
    Terms,
)

LIKELY = 0.5
"""Minimum P(in time) of a batch that takes over rows from an option that proves too slow."""
LATER_ROWS_SHARE = 0.75
"""Maximum share of the time that may be reserved for later rows."""


def objection(option: Option, terms: Terms) -> str | None:
    """Return the reason why a job may not use an option, or None. A local job may use local options only."""
    if terms.local_only and option.location != "local":
        return NOT_LOCAL
    return option.objection


def capacity_of(
    usable: Sequence[Option], terms: Terms, now: datetime, later: int = 0, claims: tuple[Claim, ...] = ()
) -> Capacity:
    """Return the capacity of the synchronous options until the horizon.

    The horizon is the time by which the rows of this plan must be answered. It is the deadline, less the margin and
    the time for `later` rows, which are made from the answers.
    """
    synchronous = [option for option in usable if isinstance(option, SynchronousOption)]
    budget = math.inf if terms.budget is None else float(terms.budget)
    budget = budget if terms.late_cost is None else 0.0  # lateness has a price, so no row is paid for twice
    ours = capacity(synchronous, terms.seconds(now), terms.target, claims, terms.finishes(now), budget)
    if ours.horizon <= 0:
        return ours
    # A batch sent later has half of the time: well before that, a slow option is known to be slow.
    shares = [BatchShare(one, max(1, one.least)) for one in batches_of(usable) if one.silent <= 0]
    chances = ((share.price, share.by(ours.horizon / 2 - share.free_after)) for share in shares)
    dollars, chance = min((one for one in chances if one[1] >= LIKELY), default=(0.0, 0.0))
    ours = replace(ours, later_dollars=dollars, later_chance=chance)
    if not later:
        return ours
    reserve = _stage_seconds(later, ours, usable) + terms.margin
    return replace(ours, horizon=max(ours.horizon - reserve, (1.0 - LATER_ROWS_SHARE) * ours.horizon))


def _stage_seconds(rows: int, ours: Capacity, usable: Sequence[Option]) -> float:
    """Return the seconds that a stage of `rows` rows takes, estimated cautiously."""
    lows = [(sync, sync.low) for sync in ours.sync_options if sync.low > 0]
    if not lows:
        each = [option.turnaround.within(0.9) for option in batches_of(usable)]
        return min(each, default=0.0)
    bottom, top = 0.0, max(1.0, ours.horizon)
    if sum(sync.between(0.0, top, low) for sync, low in lows) < rows:
        return top
    while top - bottom > 1.0:
        middle = (bottom + top) / 2
        if sum(sync.between(0.0, middle, low) for sync, low in lows) < rows:
            bottom = middle
        else:
            top = middle
    return top


def cost_of_later(later: int, options: Sequence[Option], terms: Terms, stated: Cost | None = None) -> Cost:
    """Return the cost of later rows: `stated` if given, otherwise their cost at the cheapest option."""
    if stated is not None:
        return stated
    costs = [option.cost for option in options if objection(option, terms) is None]
    each = min(costs, key=lambda cost: cost.p50, default=NOTHING)
    return Cost(each.p50 * later, each.p95 * later)


def deduct(terms: Terms, cost: Cost) -> Terms:
    """Return the terms with the p95 of a cost deducted from the budget. The budget does not become negative."""
    if terms.budget is None:
        return terms
    return replace(terms, budget=max(Decimal(0), terms.budget - cost.p95))


def batches_of(usable: Sequence[Option]) -> list[BatchOption]:
    return [option for option in usable if isinstance(option, BatchOption)]


def reroute_of(candidate: CandidatePlan, ours: Capacity, now: datetime) -> Reroute | None:
    """Return the time and the destinations of the reroute, or None if batches are never rerouted."""
    if candidate.reroute_after is None or not candidate.batch_shares:
        return None
    burden = candidate.in_batches + candidate.coming
    room = ours.room(candidate.held, arrival(candidate), candidate.fallback, sure=True)
    filled = ours.fill(burden, room)
    first = [candidate.second] if candidate.second else []
    to = (*first, *(sync.option.backend for sync, rows in zip(ours.sync_options, filled, strict=True) if rows))
    reroute_after = _latest_reroute(candidate, candidate.reroute_after, ours)
    return Reroute(now + timedelta(seconds=reroute_after), to, 1.0 - done_by(candidate.batch_shares, reroute_after))


def _latest_reroute(candidate: CandidatePlan, reroute_after: float, ours: Capacity) -> float:
    """Bisect for the latest reroute that is still in time, in seconds from now.

    The result is between `reroute_after` and the next entry of `WAITS`.
    """
    bottom, top = reroute_after, next((wait for wait in WAITS if wait > reroute_after), reroute_after)
    burden, held, causes = candidate.in_batches + candidate.coming, candidate.held, candidate.causes
    slow_too = ours.slow_too(burden, held, arrival(candidate), candidate.fallback, causes)
    while top - bottom > 30.0:
        middle = (bottom + top) / 2
        then = replace(candidate, reroute_after=middle)
        is_as_safe = ours.slow_too(burden, held, arrival(then), candidate.fallback, causes) <= slow_too
        bottom, top = (middle, top) if is_as_safe and is_in_time(then, ours) else (bottom, middle)
    return bottom


def finish_of(candidate: CandidatePlan, ours: Capacity, chance: float) -> float:
    """Return the quantile at `chance` of the seconds until all rows are done. Returns infinity if it is unknown."""
    usual, spread = ours.seconds(candidate.coming, candidate.held, candidate.free_in, candidate.fallback)
    sync_options = usual * math.exp(NORMAL.inv_cdf(chance) * spread)
    if not candidate.batch_shares:
        return sync_options
    done = 1.0 if candidate.reroute_after is None else done_by(candidate.batch_shares, candidate.reroute_after)
    if chance <= done:
        return max(sync_options, max(batch_share.within(chance) for batch_share in candidate.batch_shares))
    # Rerouted rows finish last, at the conditional quantile given a reroute.
    late_quantile = min(0.999, max(0.001, (chance - done) / (1.0 - done)))
    usual, spread = ours.seconds(
        candidate.in_batches + candidate.coming, candidate.held, arrival(candidate), candidate.fallback
    )
    return max(sync_options, usual * math.exp(NORMAL.inv_cdf(late_quantile) * spread))


def money(dollars: float) -> Decimal:
    """Convert expected dollars to Decimal, rounded to a pico-dollar."""
    return Decimal(repr(dollars)).quantize(PICO, ROUND_HALF_EVEN)


def after(now: datetime, seconds: float) -> datetime | None:
    """Return the time `seconds` from now, or None if that is never."""
    return None if math.isinf(seconds) or seconds > NEVER else now + timedelta(seconds=seconds)


NEVER = 1e9
"""A time further away than this many seconds counts as never."""
