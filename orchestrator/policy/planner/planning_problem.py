"""What a planning is about: the options that a job may use, as capacity and batches, until its deadline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from msgspec.structs import replace

from orchestrator.core.model import PICO
from orchestrator.policy.forecast import NORMAL
from orchestrator.policy.planner.batch_shares import done_by
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

NOT_LOCAL = 'the job is local only, and this backend does not have location = "local"'
RESERVED = 0.75
"""The part of the time that rows which come later may take at most, as it is planned."""


def objection(option: Option, terms: Terms) -> str | None:
    """Why a job may not use an option; None where it may. A local job stays local, whatever the caller says."""
    if terms.local_only and option.location != "local":
        return NOT_LOCAL
    return option.objection


def capacity_of(
    usable: Sequence[Option], terms: Terms, now: datetime, later: int = 0, claims: tuple[Claim, ...] = ()
) -> Capacity:
    """The synchronous ones among the options, until the rows at hand have to be answered.

    That is the deadline, less the margin, less what `later` rows take that are made of the answers.
    """
    synchronous = [option for option in usable if isinstance(option, SynchronousOption)]
    found = capacity(synchronous, terms.seconds(now), terms.target, claims, terms.finishes(now))
    if not later or found.horizon <= 0:
        return found
    reserve = _stage(later, found, usable) + terms.margin
    return replace(found, horizon=max(found.horizon - reserve, (1.0 - RESERVED) * found.horizon))


def _stage(rows: int, ours: Capacity, usable: Sequence[Option]) -> float:
    """How many seconds so many rows surely take once they are there."""
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
    """What rows that come later will cost: as is `stated`, else where that is cheapest."""
    if stated is not None:
        return stated
    costs = [option.cost for option in options if objection(option, terms) is None]
    each = min(costs, key=lambda cost: cost.p50, default=NOTHING)
    return Cost(each.p50 * later, each.p95 * later)


def less(terms: Terms, cost: Cost) -> Terms:
    """The same terms with what is left of the budget behind a cost."""
    if terms.budget is None:
        return terms
    return replace(terms, budget=max(Decimal(0), terms.budget - cost.p95))


def batches_of(usable: Sequence[Option]) -> list[BatchOption]:
    """The batches among the options."""
    return [option for option in usable if isinstance(option, BatchOption)]


def reroute_of(candidate: CandidatePlan, ours: Capacity, now: datetime) -> Reroute | None:
    """When what is in batches is rerouted, and where to; None where it never is."""
    if candidate.reroute_after is None or not candidate.batch_shares:
        return None
    burden = candidate.in_batches + candidate.coming
    room = ours.room(candidate.held, arrival(candidate), candidate.fallback, sure=True)
    filled = ours.fill(burden, room)
    to = tuple(sync.option.backend for sync, rows in zip(ours.sync_options, filled, strict=True) if rows)
    reroute_after = _latest(candidate, candidate.reroute_after, ours)
    return Reroute(now + timedelta(seconds=reroute_after), to, 1.0 - done_by(candidate.batch_shares, reroute_after))


def _latest(candidate: CandidatePlan, reroute_after: float, ours: Capacity) -> float:
    """The last moment for a reroute that is as sure, up to the next one that was thought of."""
    bottom, top = reroute_after, next((wait for wait in WAITS if wait > reroute_after), reroute_after)
    while top - bottom > 30.0:
        middle = (bottom + top) / 2
        at = arrival(replace(candidate, reroute_after=middle))
        bottom, top = (middle, top) if is_in_time(candidate, ours, at) else (bottom, middle)
    return bottom


def finish_of(candidate: CandidatePlan, ours: Capacity, chance: float) -> float:
    """Seconds from now by which all of a candidate plan is done with this chance; infinite where nobody can say."""
    usual, spread = ours.seconds(candidate.coming, candidate.held, candidate.free_in, candidate.fallback)
    sync_options = usual * math.exp(NORMAL.inv_cdf(chance) * spread)
    if not candidate.batch_shares:
        return sync_options
    done = 1.0 if candidate.reroute_after is None else done_by(candidate.batch_shares, candidate.reroute_after)
    if chance <= done:
        return max(sync_options, max(batch_share.within(chance) for batch_share in candidate.batch_shares))
    # What was rerouted comes last, as slow as the rest of the chance has it.
    rest = min(0.999, max(0.001, (chance - done) / (1.0 - done)))
    usual, spread = ours.seconds(
        candidate.in_batches + candidate.coming, candidate.held, arrival(candidate), candidate.fallback
    )
    return max(sync_options, usual * math.exp(NORMAL.inv_cdf(rest) * spread))


def money(dollars: float) -> Decimal:
    """An expected sum as money."""
    return Decimal(repr(dollars)).quantize(PICO, ROUND_HALF_EVEN)


def after(now: datetime, seconds: float) -> datetime | None:
    """The time so many seconds from now; None where it is never."""
    return None if math.isinf(seconds) or seconds > NEVER else now + timedelta(seconds=seconds)


NEVER = 1e9
