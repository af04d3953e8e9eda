"""A candidate plan: which rows a batch has, which a synchronous option, and when what is left in a batch is rerouted.

`judge` says what a plan costs and whether it holds. A batch that is cancelled costs only what it has done, so
beginning there costs nothing but time, and the one question is how long to wait: until the last moment at which the
leftovers surely arrive by the routes that remain, unless waiting becomes dearer before.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.policy.planner.batch_shares import BatchShare, done_by
from orchestrator.policy.planner.capacity import Capacity, Rows, excess
from orchestrator.policy.planner.types import NOTHING, SLIPS, Cost, Terms

HOUR = 3600.0
WORTH = 0.1
"""A batch that is less likely than this to be done before it would be rerouted is not worth its trouble."""
EVEN = 0.5
"""P(a cancel takes no longer than usual)."""
FAR, FADES, SELDOM = 1.5, 1.5, 0.25
"""A cancel that slips takes more than so many times as long as planned; twice that it takes a third as often, and
nothing makes it rarer than this part of its chance."""
WAITS = tuple(60.0 * 1.35**step for step in range(27))
"""Seconds after which batches may be rerouted. The same at every look and for every deadline, so that more time
never means fewer choices; close together near by, where the next look decides anew."""


Sources = tuple[tuple[str, int], ...]
"""Rows by the option that they leave."""


class CandidatePlan(Struct, frozen=True):
    """Where rows are, and what may come.

    `batch_shares` in batches, the last `bets` of them not sent yet; `new` rows are sent to options, so that they
    hold `held`; `coming` ones are free in `free_in` seconds at the latest, in half of all cases in `usually_free_in`.
    The first `fallback` options may take more later. Batches are rerouted `reroute_after` seconds from now, never
    where it is None. `cancel` names those that are rerouted at once, `sources` the rows that leave an option. Batches
    that are given up cost `sunk` all the same. What is coming takes far longer than that with the chance `slips`.
    """

    batch_shares: tuple[BatchShare, ...]
    new: Rows
    held: Rows
    coming: int
    free_in: float
    fallback: int
    reroute_after: float | None
    bets: int = 0
    cancel: tuple[str, ...] = ()
    sources: Sources = ()
    usually_free_in: float | None = None
    sunk: Cost = NOTHING
    slips: float = SLIPS

    @property
    def in_batches(self) -> int:
        """Rows in batches that can be rerouted."""
        return sum(batch_share.rows for batch_share in self.batch_shares)

    @property
    def effort(self) -> tuple[int, int]:
        """How many backends it sends rows to, and how many times the fullest quota of theirs is filled."""
        places = self.bets + sum(1 for rows in self.new if rows)
        return places, max((batch_share.waves for batch_share in self.unsent), default=1)

    @property
    def unsent(self) -> tuple[BatchShare, ...]:
        """The batch shares that are not sent yet."""
        return self.batch_shares[len(self.batch_shares) - self.bets :]

    @property
    def causes(self) -> frozenset[str]:
        """The backends whose slowness makes a reroute of these rows needed, and of other jobs' rows there too."""
        return frozenset(batch_share.option.backend for batch_share in self.batch_shares)

    @property
    def before(self) -> Rows:
        """What options held before anything was sent."""
        return tuple(held - new for held, new in zip(self.held, self.new, strict=True))


class Judged(Struct, frozen=True):
    """A candidate plan that reroutes batches after `reroute_after` seconds.

    What it is `expected` to cost, in dollars, and its `value`, which has the price of being late in it.
    """

    candidate: CandidatePlan
    reroute_after: float | None
    expected: float
    value: float
    holds: bool

    @property
    def whole(self) -> CandidatePlan:
        """The candidate plan with its reroute."""
        return replace(self.candidate, reroute_after=self.reroute_after)


def latency(candidate: CandidatePlan) -> float:
    """Seconds from a reroute until its rows are there to be sent on."""
    return max((batch_share.free_after for batch_share in candidate.batch_shares), default=0.0)


def arrival(candidate: CandidatePlan) -> float:
    """Seconds from now when rerouted rows are there to be sent on."""
    return _arrival(candidate, candidate.reroute_after or 0.0)


def _arrival(candidate: CandidatePlan, reroute_after: float) -> float:
    return max(candidate.free_in, reroute_after + latency(candidate))


def _usual_arrival(candidate: CandidatePlan) -> float:
    """The same as it is in half of all cases."""
    latency = max((batch_share.usually_free_after for batch_share in candidate.batch_shares), default=0.0)
    return max(_usually_free(candidate), (candidate.reroute_after or 0.0) + latency)


def _usually_free(candidate: CandidatePlan) -> float:
    return candidate.free_in if candidate.usually_free_in is None else candidate.usually_free_in


def judge(candidate: CandidatePlan, capacity: Capacity, terms: Terms, *, late: bool) -> Iterator[Judged]:
    """Price a candidate plan and its reroutes, and say which of them hold the deadline with the chance asked for.

    Those that do not hold are left out unless `late` ones are wanted.
    """
    holds = _holds(candidate, capacity)
    if holds or late:
        in_batches = sum(batch_share.price * batch_share.rows for batch_share in candidate.batch_shares)
        yield _valued(candidate, None, _paced(candidate, capacity) + in_batches, holds, capacity, terms)
    if not candidate.batch_shares or not candidate.fallback:
        return
    alone: float | None = None
    for reroute_after in WAITS:
        at = _arrival(candidate, reroute_after)
        if at >= capacity.horizon and not late:
            return
        fits = is_in_time(candidate, capacity, at)
        if fits and candidate.bets:
            fits = done_by(candidate.unsent, reroute_after) >= WORTH
        if fits:
            running = 1.0 - done_by(candidate.batch_shares, min(reroute_after, capacity.horizon))
            fits = _cancels_in_time(candidate, capacity, at, running)
        if fits or late:
            if alone is None:
                alone = capacity.price(candidate.before, _comes(candidate), candidate.fallback)
            expected = _with_reroute(candidate, reroute_after, at, alone, capacity)
            yield _valued(candidate, reroute_after, expected, fits, capacity, terms)


def is_in_time(candidate: CandidatePlan, capacity: Capacity, at: float) -> bool:
    """True if rerouted rows that are free `at` are surely done by the deadline."""
    # To be as sure of each cancel as of all of it would be dear: it counts in the chance of the plan.
    tail = min(SLIPS, slips(candidate))
    burden = candidate.in_batches + candidate.coming
    return capacity.fits(burden, candidate.held, at, candidate.fallback, tail=tail, cause=candidate.causes)


def slips(candidate: CandidatePlan) -> float:
    """P(a cancel takes far longer than planned)."""
    coming = candidate.slips if candidate.coming else 0.0
    return max((batch_share.option.slips for batch_share in candidate.batch_shares), default=coming)


def too_long(candidate: CandidatePlan, capacity: Capacity, at: float, *, coming: bool = False) -> float:
    """P(a cancel takes longer than there is time for): the more is left, the less likely. With `coming`, of the
    batches that were cancelled before."""
    planned = candidate.free_in if coming else latency(candidate)
    burden = candidate.coming + (0 if coming else candidate.in_batches)
    end, _ = capacity.seconds(burden, candidate.held, at, candidate.fallback)
    times = 1.0 + max(0.0, capacity.horizon - end) / max(1.0, planned)
    rarer: float = min(1.0, FAR / times) ** FADES
    return (candidate.slips if coming else slips(candidate)) * max(SELDOM, rarer)


def _cancels_in_time(candidate: CandidatePlan, capacity: Capacity, at: float, running: float) -> bool:
    """True if a cancel that takes too long leaves the target, where it comes to one with the chance `running`."""
    left = 1.0 - capacity.target
    return running * slips(candidate) <= left or running * too_long(candidate, capacity, at) <= left


def _valued(
    candidate: CandidatePlan,
    reroute_after: float | None,
    expected: float,
    holds: bool,
    capacity: Capacity,
    terms: Terms,
) -> Judged:
    expected += float(candidate.sunk.p50)
    if terms.late_cost is None:
        return Judged(candidate, reroute_after, expected, expected, holds)
    late = lateness(replace(candidate, reroute_after=reroute_after), capacity) / HOUR * float(terms.late_cost)
    return Judged(candidate, reroute_after, expected, expected + late, holds)


def _comes(candidate: CandidatePlan) -> list[tuple[float, float]]:
    """When rows come that options may take, and how many, without a reroute."""
    return [(0.0, float(sum(candidate.new))), (candidate.free_in, float(candidate.coming))]


def _paced(candidate: CandidatePlan, capacity: Capacity) -> float:
    """Dollars for what the options hold and will hold without a reroute."""
    if not candidate.fallback:
        return capacity.price(candidate.held, (), 0)
    return capacity.price(candidate.before, _comes(candidate), candidate.fallback)


def _with_reroute(
    candidate: CandidatePlan, reroute_after: float, at: float, alone: float, capacity: Capacity
) -> float:
    """Dollars for all of it, where rows in batches are rerouted and free `at`; `alone` is the price of the rest."""
    total, left = 0.0, 0.0
    for batch_share in candidate.batch_shares:
        lost = batch_share.lost(reroute_after)
        total += batch_share.price * batch_share.rows * batch_share.paid(lost)
        left += batch_share.rows * lost
    in_batches = candidate.in_batches
    # Rows come back all together or not at all: a dear route is then paid for with that chance.
    comes = [*_comes(candidate), (at, float(in_batches))]
    whole = capacity.price(candidate.before, comes, candidate.fallback)
    return total + alone + left / in_batches * (whole - alone)


def _holds(candidate: CandidatePlan, capacity: Capacity) -> bool:
    """Whether a candidate plan without a reroute holds."""
    if candidate.batch_shares:
        return not candidate.fallback and chance_of(candidate, capacity) >= capacity.target
    # What does not keep up goes on to the rest of the fallback when it must: all of it together has to.
    return capacity.fits(
        candidate.coming, candidate.held, candidate.free_in, candidate.fallback, tail=min(SLIPS, slips(candidate))
    )


def chance_of(candidate: CandidatePlan, capacity: Capacity) -> float:
    """P(all rows are done by the deadline)."""
    if capacity.horizon <= 0:
        return 0.0

    def arrives(burden: float, latest: float, usual: float, sure: float, cause: frozenset[str]) -> float:
        """P(rows that are free then are done); where that is too late, what half of all cancels are quicker for."""
        chance = sure * capacity.chance(burden, candidate.held, latest, candidate.fallback, cause=cause)
        if chance >= EVEN or usual >= latest:
            return chance
        return max(chance, EVEN * capacity.chance(burden, candidate.held, usual, candidate.fallback, cause=cause))

    free = 1.0 - too_long(candidate, capacity, candidate.free_in, coming=True) if candidate.coming else 1.0
    rest = arrives(candidate.coming, candidate.free_in, _usually_free(candidate), free, frozenset())
    if not candidate.batch_shares:
        return rest
    if candidate.reroute_after is None:
        return done_by(candidate.batch_shares, capacity.horizon) * rest
    done = done_by(candidate.batch_shares, min(candidate.reroute_after, capacity.horizon))
    burden = candidate.in_batches + candidate.coming
    at, usual = arrival(candidate), _usual_arrival(candidate)
    sure = 1.0 - too_long(candidate, capacity, at)
    return done * rest + (1.0 - done) * arrives(burden, at, usual, sure, candidate.causes)


def lateness(candidate: CandidatePlan, capacity: Capacity) -> float:
    """Expected seconds late."""
    alone = capacity.seconds(candidate.coming, candidate.held, candidate.free_in, candidate.fallback)
    late = excess(*alone, capacity.horizon)
    if not candidate.batch_shares:
        return late
    if candidate.reroute_after is None:
        for batch_share in candidate.batch_shares:
            each = batch_share.option.turnaround.late(
                (capacity.horizon + batch_share.age) / batch_share.waves, batch_share.age
            )
            late = max(late, each * batch_share.waves)
        return late
    done = done_by(candidate.batch_shares, candidate.reroute_after)
    rerouted = capacity.seconds(
        candidate.in_batches + candidate.coming, candidate.held, arrival(candidate), candidate.fallback
    )
    return done * max(late, candidate.reroute_after - capacity.horizon) + (1.0 - done) * excess(
        *rerouted, capacity.horizon
    )


def at_most(candidate: CandidatePlan, capacity: Capacity) -> Decimal:
    """What a candidate plan does not exceed (95 %): every batch fails, every pace is low and each option has an
    outage as soon as may be, or every batch is done.

    Between those two lies all that may happen: the routes are filled cheapest first, so their cost is convex.
    """
    sync_options, fallback, sunk = capacity.sync_options, candidate.fallback, candidate.sunk.p95
    stay = [
        min(rows, int(sync.between(0.0, min(capacity.horizon, sync.lasts), sync.low))) if place < fallback else rows
        for place, (sync, rows) in enumerate(zip(sync_options, candidate.held, strict=True))
    ]
    moved = sum(candidate.held) - sum(stay) + candidate.coming
    in_batches = sum(
        (batch_share.option.cost.p95 * batch_share.rows for batch_share in candidate.batch_shares), Decimal(0)
    )
    if not fallback:
        return sunk + in_batches + capacity.at_most(candidate.held)

    def synchronous(rows: int, a: float) -> Decimal:
        room = capacity.room(stay, a, fallback, sure=True, lasts=True)
        filled = list(capacity.fill(min(rows, int(sum(room))), room))
        filled[fallback - 1] += rows - sum(filled)
        return capacity.at_most([kept + more for kept, more in zip(stay, filled, strict=True)])

    if candidate.reroute_after is None or not candidate.batch_shares:
        return sunk + in_batches + synchronous(moved, candidate.free_in)
    owed = sum((share.option.cost.p95 * share.owed for share in candidate.batch_shares), Decimal(0))
    return sunk + max(
        in_batches + synchronous(moved, candidate.free_in),
        owed + synchronous(moved + candidate.in_batches, arrival(candidate)),
    )


__all__ = ["WAITS", "BatchShare", "CandidatePlan", "Judged", "arrival", "at_most", "chance_of", "judge", "lateness"]
