"""Candidate plans: which rows go to batches and to synchronous options, and when unfinished rows are rerouted.

The fallback of a plan is the synchronous options that may take rerouted rows. `judge` prices a candidate plan and
decides whether it holds: whether it meets the deadline at the target chance. A cancelled batch costs only its
finished rows, so a batch is a bet that risks only time. The search decides how long to wait: until the last moment at
which the fallback can surely finish the remaining rows. It waits less if waiting longer costs more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.policy.planner.batch_shares import BatchShare, done_by, most_rows
from orchestrator.policy.planner.capacity import Capacity, Rows, excess
from orchestrator.policy.planner.types import NOTHING, SLIPS, BatchOption, Cost, Terms

HOUR = 3600.0
MAX_PROBE_SHARE = 0.05
"""Largest share of a job's rows that a probe may have."""
MIN_BET_CHANCE = 0.1
"""Minimum P(done, or seen to make progress, before its reroute) of a batch. Below this, the batch is not sent."""
HALF_OF_CANCELS = 0.5
"""P(a cancel takes no longer than its median), by definition of the median."""
SLIP_FACTOR, SLIP_DECAY, MIN_SLIP_SHARE = 1.5, 1.5, 0.25
"""Tail of slow cancels: P(a cancel takes longer than t times its planned time).

The tail is `slips` x (SLIP_FACTOR / t) ^ SLIP_DECAY, and at least `slips` x `MIN_SLIP_SHARE`.
"""
WAITS = tuple(60.0 * 1.35**step for step in range(27))
"""Candidate waits before a reroute, in seconds.

The list is the same for every deadline, so more time never removes a choice. Only short waits are close together: the
next replanning decides again about long waits.
"""

LeftOver = tuple[float, str]
"""Dollars for rerouted rows, and the backend of their second batch ("" without a second batch)."""
Sources = tuple[tuple[str, int], ...]
"""Pairs of an option and the number of rows that leave it."""


class CandidatePlan(Struct, frozen=True):
    """A placement of rows, and its reroute.

    `batch_shares` are rows in batches; the last `bets` of them are not sent yet. `new` rows are sent to synchronous
    options, which then hold `held` rows. `coming` rows from cancelled batches are free within `free_in` seconds (95
    %) and within `usually_free_in` seconds (median). With probability `slips`, a cancel takes far longer.

    Batches are rerouted `reroute_after` seconds from now (None: never). Rerouted rows go to the `fallback` cheapest
    synchronous options. They go to a batch at the backend `second`, one of `others`, if that is cheaper ("": no
    second batch). `cancel` names batches to reroute at once. `sources` counts rows that leave an option. `sunk` is
    the cost of abandoned batches.
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
    others: tuple[BatchOption, ...] = ()
    second: str = ""

    @property
    def in_batches(self) -> int:
        """Number of rows in batches that can be rerouted."""
        return sum(batch_share.rows for batch_share in self.batch_shares)

    @property
    def effort(self) -> tuple[int, int]:
        """Number of backends that get rows, and the largest number of waves. Breaks ties between plans."""
        places = self.bets + sum(1 for rows in self.new if rows)
        return places, max((batch_share.waves for batch_share in self.unsent), default=1)

    @property
    def unsent(self) -> tuple[BatchShare, ...]:
        """Batch shares that are not sent yet."""
        return self.batch_shares[len(self.batch_shares) - self.bets :]

    @property
    def causes(self) -> frozenset[str]:
        """Backends whose slowness would trigger this reroute. It would also trigger reroutes of other jobs' rows
        there.
        """
        return frozenset(batch_share.option.backend for batch_share in self.batch_shares)

    @property
    def before(self) -> Rows:
        """Rows that each option held before the plan's orders."""
        return tuple(held - new for held, new in zip(self.held, self.new, strict=True))


class Judged(Struct, frozen=True):
    """A candidate plan with a reroute after `reroute_after` seconds (None: never), and its figures.

    `expected` is the cost in dollars. `value` also includes the cost of being late.
    """

    candidate: CandidatePlan
    reroute_after: float | None
    expected: float
    value: float
    holds: bool

    @property
    def whole(self) -> CandidatePlan:
        """The candidate plan with `reroute_after` set."""
        return replace(self.candidate, reroute_after=self.reroute_after)


def latency(candidate: CandidatePlan) -> float:
    """Return the seconds from a reroute until its rows are free (95 % quantile)."""
    return max([batch_share.option.cancel_seconds for batch_share in candidate.batch_shares], default=0.0)


def arrival(candidate: CandidatePlan) -> float:
    """Return the seconds from now until rerouted rows are free (95 % quantile)."""
    return max(candidate.free_in, (candidate.reroute_after or 0.0) + latency(candidate))


def _usual_arrival(candidate: CandidatePlan) -> float:
    latency = max((batch_share.usually_free_after for batch_share in candidate.batch_shares), default=0.0)
    return max(_usually_free(candidate), (candidate.reroute_after or 0.0) + latency)


def _usually_free(candidate: CandidatePlan) -> float:
    return candidate.free_in if candidate.usually_free_in is None else candidate.usually_free_in


def judge(candidate: CandidatePlan, capacity: Capacity, terms: Terms, *, late: bool) -> Iterator[Judged]:
    """Price a candidate plan with each reroute time, and decide which of these plans hold.

    A plan holds if it meets the deadline at the target chance. Plans that do not hold are left out unless `late` is
    set.
    """
    holds = _holds_without_reroute(candidate, capacity)
    if holds or late:
        in_batches = sum(batch_share.price * batch_share.rows for batch_share in candidate.batch_shares)
        yield _add_lateness_cost(
            candidate, None, _synchronous_cost(candidate, capacity) + in_batches, holds, capacity, terms
        )
    if not candidate.batch_shares or not candidate.fallback:
        return
    waits, freed = list[tuple[float, float, bool]](), latency(candidate)
    for reroute_after in WAITS:
        at = max(candidate.free_in, reroute_after + freed)
        if at >= capacity.horizon and not late:
            break
        fits = all(one.runs_on(reroute_after, capacity.horizon) >= MIN_BET_CHANCE for one in candidate.unsent)
        if fits:
            then = replace(candidate, reroute_after=reroute_after)
            fits = is_in_time(then, capacity) and _cancels_in_time(then, capacity)
        if fits or late:
            waits.append((reroute_after, at, fits))
    alone = _synchronous_cost(candidate, capacity) if waits else 0.0
    latest = max((at for _, at, fits in waits if fits), default=0.0)
    left_over = _left_over(candidate, [at for _, at, _ in waits], latest, alone, capacity)
    for (reroute_after, _, fits), (dollars, second) in zip(waits, left_over, strict=True):
        expected = alone + _cost_with_reroute(candidate, reroute_after, dollars, capacity.horizon)
        yield _add_lateness_cost(
            replace(candidate, second=second) if second else candidate,
            reroute_after, expected, fits, capacity, terms,
        )  # fmt: skip


def is_in_time(candidate: CandidatePlan, capacity: Capacity) -> bool:
    """Return True if rerouted rows are done by the deadline. The likelier the reroute, the higher the required
    certainty.
    """
    # The part above SLIPS counts in the plan's chance instead. Charging it to each cancel would make plans expensive.
    tail = min(SLIPS, slips(candidate))
    burden, likely = candidate.in_batches + candidate.coming, _runs_until_reroute(candidate, capacity)
    at, causes = arrival(candidate), candidate.causes
    return capacity.fits(burden, candidate.held, at, candidate.fallback, tail=tail, cause=causes, likely=likely)


def slips(candidate: CandidatePlan) -> float:
    """Return P(a cancel takes far longer than planned)."""
    coming = candidate.slips if candidate.coming else 0.0
    return max([batch_share.option.slips for batch_share in candidate.batch_shares], default=coming)


def cancel_too_slow(candidate: CandidatePlan, capacity: Capacity, at: float, *, coming: bool = False) -> float:
    """Return P(a cancel takes longer than the time left for it). The result falls with spare time.

    A batch runs until its cancel takes effect, so it may still end by itself. With `coming`, the result is for
    batches that are already being cancelled.
    """
    planned = candidate.free_in if coming else latency(candidate)
    burden = candidate.coming + (0 if coming else candidate.in_batches)
    latest = capacity.latest_arrival(burden, candidate.held, at, candidate.fallback)
    times = 1.0 + (latest - at) / max(1.0, planned)
    rarer: float = max(MIN_SLIP_SHARE, min(1.0, SLIP_FACTOR / times) ** SLIP_DECAY)
    if coming:
        return candidate.slips * rarer
    return slips(candidate) * rarer * _still_runs(candidate, capacity)


def _still_runs(candidate: CandidatePlan, capacity: Capacity) -> float:
    """Return P(batches run until the horizon), given that they run until their reroute."""
    running = _runs_until_reroute(candidate, capacity)
    return _runs_for(capacity.horizon, candidate, capacity) / running if running > 0.0 else 1.0


def _runs_until_reroute(candidate: CandidatePlan, capacity: Capacity) -> float:
    return _runs_for(candidate.reroute_after or 0.0, candidate, capacity)


def _runs_for(seconds: float, candidate: CandidatePlan, capacity: Capacity) -> float:
    return 1.0 - done_by(candidate.batch_shares, min(seconds, capacity.horizon))


def _cancels_in_time(candidate: CandidatePlan, capacity: Capacity) -> bool:
    left, slow = 1.0 - capacity.target, slips(candidate)
    if slow <= left or (running := _runs_until_reroute(candidate, capacity)) * slow <= left:
        return True
    return running * cancel_too_slow(candidate, capacity, arrival(candidate)) <= left


def _add_lateness_cost(
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


def _arrivals(candidate: CandidatePlan) -> list[tuple[float, float]]:
    """Return (seconds from now, rows) for rows that arrive at synchronous options even without a reroute."""
    return [(0.0, float(sum(candidate.new))), (candidate.free_in, float(candidate.coming))]


def _synchronous_cost(candidate: CandidatePlan, capacity: Capacity, at: float | None = None) -> float:
    if not candidate.fallback:
        return capacity.price(candidate.held, (), 0)
    rerouted = [] if at is None else [(at, float(candidate.in_batches))]
    return capacity.price(candidate.before, [*_arrivals(candidate), *rerouted], candidate.fallback)


def _left_over(
    candidate: CandidatePlan, ats: Sequence[float], latest: float, alone: float, capacity: Capacity
) -> Iterator[LeftOver]:
    """Yield the cost of rerouting all rows in batches, for each time in `ats` at which the rows may be free.

    The rows go to synchronous options, which cost `alone` dollars without these rows, or to a cheaper second batch.
    If a second batch is late, its rows go to synchronous options and are free at `latest`, one of `ats`. A backend
    that has only a probe may get the second batch.
    """
    dollars = [_synchronous_cost(candidate, capacity, at) - alone for at in ats]
    at_last = dollars[ats.index(latest)] if latest else 0.0
    rows, there = candidate.in_batches, Counter[str]()
    for batch_share in candidate.batch_shares:
        there[batch_share.option.backend] += batch_share.rows
    others = (one for one in candidate.others if there[one.backend] <= MAX_PROBE_SHARE * rows)
    shares = [BatchShare(one, rows) for one in others if one.least <= rows <= most_rows(one)]
    for at, least in zip(ats, dollars, strict=True):
        # All rows come back, or none do. So the price of the expensive routes is weighted by that chance.
        cheapest = least, ""
        for share in shares:
            done = share.by(latest - share.free_after - at)
            second = done * share.price * rows + (1.0 - done) * at_last
            if done >= MIN_BET_CHANCE and second < cheapest[0]:
                cheapest = second, share.option.backend
        yield cheapest


def _cost_with_reroute(candidate: CandidatePlan, reroute_after: float, left_over: float, horizon: float) -> float:
    """Return the expected dollars for rows in batches and for rerouted rows.

    `left_over` is the cost if all rows are rerouted.
    """
    total, left = 0.0, 0.0
    for batch_share in candidate.batch_shares:
        unfinished = batch_share.unfinished(reroute_after, horizon)
        total += batch_share.price * batch_share.rows * batch_share.paid(unfinished)
        left += batch_share.rows * unfinished
    return total + left / candidate.in_batches * left_over


def _holds_without_reroute(candidate: CandidatePlan, capacity: Capacity) -> bool:
    if candidate.batch_shares:
        return not candidate.fallback and chance_of(candidate, capacity) >= capacity.target
    # An option that is too slow can give rows to the rest of the fallback, so only the sum has to fit.
    return capacity.fits(
        candidate.coming, candidate.held, candidate.free_in, candidate.fallback, tail=min(SLIPS, slips(candidate))
    )


def chance_of(candidate: CandidatePlan, capacity: Capacity) -> float:
    """Return P(all rows are done by the deadline)."""
    if capacity.horizon <= 0:
        return 0.0

    def chance_after(burden: float, latest: float, usual: float, sure: float, cause: frozenset[str]) -> float:
        """Return P(all rows are done) if `burden` rows arrive by `latest` with probability `sure`.

        The rows arrive by `usual` with probability `HALF_OF_CANCELS`.
        """
        chance = sure * capacity.chance(burden, candidate.held, latest, candidate.fallback, cause=cause)
        if chance >= HALF_OF_CANCELS or usual >= latest:
            return chance
        return max(
            chance, HALF_OF_CANCELS * capacity.chance(burden, candidate.held, usual, candidate.fallback, cause=cause)
        )

    free = 1.0 - cancel_too_slow(candidate, capacity, candidate.free_in, coming=True) if candidate.coming else 1.0
    rest = chance_after(candidate.coming, candidate.free_in, _usually_free(candidate), free, frozenset())
    if not candidate.batch_shares:
        return rest
    if candidate.reroute_after is None:
        return done_by(candidate.batch_shares, capacity.horizon) * rest
    done = done_by(candidate.batch_shares, min(candidate.reroute_after, capacity.horizon))
    burden = candidate.in_batches + candidate.coming
    at, usual = arrival(candidate), _usual_arrival(candidate)
    sure = min(free, 1.0 - cancel_too_slow(candidate, capacity, at))
    return done * rest + (1.0 - done) * chance_after(burden, at, usual, sure, candidate.causes)


def lateness(candidate: CandidatePlan, capacity: Capacity) -> float:
    """Return the expected seconds by which the job misses its deadline."""
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
    """Return the 95 % quantile of the cost.

    The result is the larger of two extremes. In one, all batches are done. In the other, all batches fail, paces are
    low, and each option has an early outage. Routes are filled cheapest first, so cost is convex and no other case
    costs more.
    """
    sync_options, fallback, sunk = capacity.sync_options, candidate.fallback, candidate.sunk.p95
    stay = [
        min(rows, int(sync.between(0.0, min(capacity.horizon, sync.outage_free_seconds), sync.low)))
        if place < fallback
        else rows
        for place, (sync, rows) in enumerate(zip(sync_options, candidate.held, strict=True))
    ]
    moved = sum(candidate.held) - sum(stay) + candidate.coming
    in_batches = sum(
        (batch_share.option.cost.p95 * batch_share.rows for batch_share in candidate.batch_shares), Decimal(0)
    )
    if not fallback:
        return sunk + in_batches + capacity.at_most(candidate.held)

    def synchronous(rows: int, a: float) -> Decimal:
        room = capacity.room(stay, a, fallback, sure=True, outage_free=True)
        filled = list(capacity.fill(min(rows, int(sum(room))), room))
        filled[fallback - 1] += rows - sum(filled)
        return capacity.at_most([kept + more for kept, more in zip(stay, filled, strict=True)])

    if candidate.reroute_after is None or not candidate.batch_shares:
        return sunk + in_batches + synchronous(moved, candidate.free_in)
    owed = sum((share.option.cost.p95 * share.billed_at_most for share in candidate.batch_shares), Decimal(0))
    return sunk + max(
        in_batches + synchronous(moved, candidate.free_in),
        owed + synchronous(moved + candidate.in_batches, arrival(candidate)),
    )


__all__ = ["WAITS", "BatchShare", "CandidatePlan", "Judged", "arrival", "at_most", "chance_of", "judge", "lateness"]
