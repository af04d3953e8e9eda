"""How much synchronous options get done by when, for how much, and how surely. Seconds from now; pure arithmetic.

An engine's pace is not known beforehand. `sure` figures take every pace at its low quantile at once: engines that are
slow together are the safe assumption, and a sum of them stays monotone in time and in the number of routes. Beside
that, one engine at a time may fail altogether (`risk`): what it has then is done by the others, or it is a risk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from decimal import Decimal

from msgspec import Struct

from orchestrator.core.durations import HOUR
from orchestrator.policy.forecast import NORMAL
from orchestrator.policy.planner.types import Claim, SynchronousOption

UNKNOWN = 1 / 3
"""The part of what may fail by the target that known paces may use up; the rest is left for what is not known."""
DETECTED = 600.0
"""Seconds until an engine that stands still is known to, and its rows are elsewhere."""
TURN = 60.0
"""Seconds for a look or two, until it shows that an option does not do the last of its rows."""
NEGLIGIBLE = 1e-5
MOST_OUTAGES = 16
"""An engine with more outages than that until the deadline is taken not to make it."""
_SELDOM = -math.log(0.95)
"""So few outages are to be expected of what has none with 95 %."""
_HALF_ROOT = math.sqrt(0.5)
_ROUNDED = 1e-17
"""A smaller part of a sum of floats does not change it."""
Rows = tuple[int, ...]
"""Rows by synchronous option, in the order of the capacity."""


class OptionCapacity(Struct, frozen=True):
    """A synchronous option in floats; `low` is its pace at the low quantile, `hazard` its outages a second."""

    option: SynchronousOption
    price: float
    rate: float
    low: float
    ahead: float
    start: float
    hazard: float
    is_even: bool
    """Its pace is the same at all hours, and no rows of others go first."""

    @property
    def lasts(self) -> float:
        """Seconds for which it surely (95 %) has no outage that is long enough for its rows to be moved."""
        outages = max(self.hazard, self.option.pace.observed_hazard / HOUR) * math.exp(
            -DETECTED / self.option.pace.outage
        )
        return _SELDOM / outages if outages > 0.0 else math.inf

    def between(self, a: float, b: float, rate: float, *, warm: bool = False) -> float:
        """Rows done from `a` to `b` at this rate, where ours come at `a`: it starts, and others go first.

        One that is `warm` has had rows from now on.
        """
        begin = (a if a >= self.start else self.start) if warm else a + self.start
        if b <= begin or rate <= 0.0:
            return 0.0
        if self.is_even:
            return rate * (b - begin)
        full = self.option.pace.full
        ahead = self.ahead - rate * full(a) if self.ahead else 0.0
        rows = rate * (full(b) - full(begin)) - (ahead if ahead > 0.0 else 0.0)
        return rows if rows > 0.0 else 0.0


class Capacity(Struct, frozen=True):
    """The synchronous options of one planning, the cheapest first, and the `horizon`: the seconds until the deadline.

    `lows` are their paces at the low quantile. `claims` are what other jobs may come to need of them, `finishes` is
    P(the job ends in time once its rows are answered by then).
    """

    sync_options: tuple[OptionCapacity, ...]
    horizon: float
    target: float
    lows: tuple[float, ...]
    claims: tuple[Claim, ...] = ()
    finishes: float = 1.0

    def leave(self, held: Sequence[int]) -> float:
        """Seconds until rows that leave an option are free."""
        return max(
            (sync.option.cancel_seconds for sync, rows in zip(self.sync_options, held, strict=True) if rows),
            default=0.0,
        )

    def fits(
        self,
        burden: float,
        held: Sequence[int],
        a: float,
        fallback: int,
        *,
        tail: float = 0.0,
        cause: Collection[str] = (),
    ) -> bool:
        """Whether `burden` rows that come at `a` and what is left of those `held` are surely done by the deadline.

        Only the first `fallback` options take what comes; what is held elsewhere is done there or not at all. `tail`
        is the P(failure) of what comes before; what others claim for the same `cause` comes for certain.
        """
        burden, a = burden + self._certain(cause), max(a, self.leave(held))
        if self._room_left(self.lows, burden, held, a, fallback) < 0:
            return False
        risk = tail + (1.0 - self.finishes) + self.risk(burden, held, a, fallback, cause)
        if risk <= NEGLIGIBLE:
            return True
        left = (1.0 - self.target - risk) * UNKNOWN
        if left <= 1e-9:
            return False
        z = -NORMAL.inv_cdf(left)
        rates = [sync.rate * math.exp(-z * sync.option.pace.spread) for sync in self.sync_options]
        return self._room_left(rates, burden, held, a, fallback) >= 0

    def chance(
        self, burden: float, held: Sequence[int], a: float, fallback: int, *, cause: Collection[str] = ()
    ) -> float:
        """P(that)."""
        if burden <= 0 and not any(held):
            return 1.0
        burden, a = burden + self._certain(cause), max(a, self.leave(held))
        likely = self._paced(burden, held, a, fallback) - self.risk(burden, held, a, fallback, cause)
        return max(0.0, likely) * self.finishes

    def _paced(self, burden: float, held: Sequence[int], a: float, fallback: int) -> float:
        """P(paces are enough): the quantile at which it just fits, less what is not known of quantiles."""
        bottom, top = -4.0, 4.0
        for _ in range(14):
            middle = (bottom + top) / 2
            rates = [sync.rate * math.exp(-middle * sync.option.pace.spread) for sync in self.sync_options]
            if self._room_left(rates, burden, held, a, fallback) >= 0:
                bottom = middle
            else:
                top = middle
        return 1.0 - _fattened(_below(-bottom)) if bottom > -4.0 else 0.0

    def _certain(self, cause: Collection[str]) -> float:
        """Rows of others that come for certain: for the same cause, or since the option that has them is too slow."""
        total = 0.0
        for claim in self.claims:
            if claim.source in cause:
                total += claim.rows
            elif (sync := self._sync(claim.source)) is not None:
                does = sync.low * sync.option.pace.full(max(0.0, self.horizon - sync.start))
                total += max(0.0, claim.rows - does)
        return total

    def _sync(self, backend: str) -> OptionCapacity | None:
        return next((sync for sync in self.sync_options if sync.option.backend == backend), None)

    def risk(self, burden: float, held: Sequence[int], a: float, fallback: int, cause: Collection[str] = ()) -> float:
        """P(an engine fails, or others need it, and the rest of the fallback cannot make up for it)."""
        lows, found = self.lows, 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            if sync.hazard <= 0.0 or sync.rate <= 0.0 or not (rows or (burden > 0 and place < fallback)):
                continue
            begin = 0.0 if rows else a - min(a, sync.option.pace.outage)
            ends = min(self.horizon, self._ends(burden, held, a, fallback, place))
            exposed = max(0.0, ends - begin)
            if sync.hazard * exposed <= NEGLIGIBLE:
                continue
            if place and not rows and self._room_left(lows, burden, held, a, place) >= 0:
                continue  # the cheaper ones do all of it
            if place < fallback and self._secured(lows, burden, held, a, fallback, place):
                exposed = min(exposed, max(0.0, ends + DETECTED - self.horizon))
            found += _outlasts(max(0.0, self.horizon - ends), sync.hazard * exposed, sync.option.pace.outage)
        for claim in self.claims:
            if claim.source in cause or claim.chance <= NEGLIGIBLE or self._sync(claim.source):
                continue
            if self._room_left(lows, burden + claim.rows, held, a, fallback) < 0:
                found += claim.chance
        return min(1.0, found)

    def _ends(self, burden: float, held: Sequence[int], a: float, fallback: int, place: int) -> float:
        """When an option is usually done with what it has and, in the fallback, with its share of the rest."""
        sync = self.sync_options[place]
        if sync.rate <= 0:
            return math.inf
        own = sync.option.pace.seconds_for(held[place]) if held[place] else 0.0
        if burden <= 0 or place >= fallback:
            return own
        whole = sum([each.rate for each in self.sync_options[:fallback]])
        return max(own, a + sync.start + (sync.ahead / sync.rate) + burden / whole)

    def _secured(
        self, rates: Sequence[float], burden: float, held: Sequence[int], a: float, fallback: int, place: int
    ) -> bool:
        """Whether the others do all of it, were one option gone from now on, with what others have there."""
        gone, kept, option = list(rates), list(held), self.sync_options[place].option
        gone[place], kept[place] = 0.0, 0
        more = held[place] + sum([claim.rows for claim in self.claims if claim.source == option.backend])
        return self._room_left(gone, burden + more, kept, max(a, DETECTED + option.cancel_seconds), fallback) >= 0

    def _room_left(
        self, rates: Sequence[float], burden: float, held: Sequence[int], a: float, fallback: int
    ) -> float:
        room, horizon = -burden, self.horizon
        until = min(a, horizon)  # what is done behind the deadline does not count
        for place, (sync, rows, rate) in enumerate(zip(self.sync_options, held, rates, strict=True)):
            if place >= fallback:  # it does its own rows and no others, and nobody does them for it
                own = sync.between(0.0, horizon, rate) - rows
                if own < 0:
                    return own
                continue
            if rows and (rest := rows - sync.between(0.0, until, rate)) > 0.0:
                room -= rest
            room += sync.between(a, horizon, rate, warm=rows > 0)
        return room

    def room(self, held: Sequence[int], a: float, fallback: int, *, sure: bool, lasts: bool = False) -> list[float]:
        """Rows that each option of the fallback can take from `a` on, beside those held; only for as long as it
        surely `lasts`, if that is asked for."""
        found = []
        for place, (sync, rows) in enumerate(zip(self.sync_options[:fallback], held, strict=False)):
            rate, until = sync.low if sure else sync.rate, self.until(place, fallback)
            until = min(until, sync.lasts) if lasts else until
            rest = max(0.0, rows - sync.between(0.0, min(a, until), rate)) if rows else 0.0
            found.append(max(0.0, sync.between(a, until, rate, warm=rows > 0) - rest))
        return found

    def until(self, place: int, fallback: int) -> float:
        """Until when an option of the fallback may get rows: one that others can take over from is to be done a
        little before the deadline, while there is time for that; one that fails often, while that is noticed."""
        if (
            fallback < 2
            or place >= fallback
            or place == max(range(fallback), key=lambda one: self.sync_options[one].rate)
        ):
            return self.horizon
        sync = self.sync_options[place]
        fails = sync.hazard * DETECTED > (1.0 - self.target) * UNKNOWN
        return max(0.0, self.horizon - (DETECTED if fails else TURN) - sync.option.cancel_seconds)

    def fill(self, rows: int, room: Sequence[float]) -> Rows:
        """Rows by option, the cheapest first; what fits nowhere is shared by pace, so that it ends soonest."""
        left, taken = rows, [0] * len(self.sync_options)
        for place, free in enumerate(room):
            taken[place] = min(left, math.floor(free))
            left -= taken[place]
        if left:
            rates = [sync.rate for sync in self.sync_options[: len(room)]]
            whole = sum(rates)
            fastest = max(range(len(rates)), key=rates.__getitem__)
            shares = [int(left * rate / whole) if whole else 0 for rate in rates]
            for place, share in enumerate(shares):
                taken[place] += share
            taken[fastest] += left - sum(shares)
        return tuple(taken)

    def at_most(self, rows: Sequence[int]) -> Decimal:
        """What rows by option do not exceed (95 %)."""
        return sum(
            (sync.option.cost.p95 * many for sync, many in zip(self.sync_options, rows, strict=True) if many),
            Decimal(0),
        )

    def price(self, held: Sequence[int], comes: Sequence[tuple[float, float]], fallback: int) -> float:
        """What is expected to be paid: for what options hold, and for rows that come, as (when, how many).

        What an option is expected not to do in time goes on to the next, so more time is never dearer.
        """
        usual = [sync.between(0.0, self.horizon, sync.rate) for sync in self.sync_options]
        total, has = 0.0, [float(rows) for rows in held]
        left_over = 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            short = shortfall(rows, usual[place], sync.option.pace.spread) if rows and place < fallback else 0.0
            total += sync.price * (rows - short)
            left_over += short
        for when, more in ((0.0, left_over), *comes):
            total += self._poured(more, has, when, fallback)
        return total

    def _poured(self, rows: float, has: list[float], when: float, fallback: int) -> float:
        """Dollars for rows that come then, the cheapest option first; what options have grows by them."""
        total = 0.0
        for place in range(fallback):
            if rows <= 0:
                break
            sync = self.sync_options[place]
            rest = max(0.0, has[place] - sync.between(0.0, min(when, self.horizon), sync.rate))
            free = sync.between(when, self.horizon, sync.rate, warm=has[place] > 0) - rest
            short = shortfall(rows, max(0.0, free), sync.option.pace.spread) if place < fallback - 1 else 0.0
            total += sync.price * (rows - short)
            has[place] += rows - short
            rows = short
        return total

    def slowest(self, held: Sequence[int]) -> float:
        """The seconds until the last option is done with what it holds; infinite where one does not move."""
        return max(
            (sync.option.pace.seconds_for(rows) for sync, rows in zip(self.sync_options, held, strict=True)),
            default=0.0,
        )

    def slack(self, burden: float, held: Sequence[int], free_in: float, fallback: int) -> float:
        """For how many seconds nothing need be moved between options, to about a tenth."""
        wait = 0.0
        step = 60.0
        while step < self.horizon and self.fits(burden, held, max(free_in, step + self.leave(held)), fallback):
            wait, step = step, step * 1.2
        return wait

    def seconds(self, burden: float, held: Sequence[int], a: float, fallback: int) -> tuple[float, float]:
        """When all of it is done at the usual pace, and the spread of that; infinite where nothing moves."""
        rest, rate, spread, start, alone = burden, 0.0, 0.0, 0.0, 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            if place >= fallback and not rows:
                continue
            spread = max(spread, sync.option.pace.spread)
            if place >= fallback:
                alone = max(alone, sync.option.pace.seconds_for(rows))
                continue
            rest += max(0.0, rows - sync.between(0.0, a, sync.rate)) + max(0.0, sync.ahead - sync.rate * a)
            rate, start = rate + sync.rate, max(start, sync.start)
        if burden <= 0 and not any(held[:fallback]):
            return alone, spread
        return max(alone, a + start + rest / rate if rate > 0 else math.inf), spread


def capacity(
    synchronous: Sequence[SynchronousOption],
    horizon: float,
    target: float,
    claims: tuple[Claim, ...] = (),
    finishes: float = 1.0,
) -> Capacity:
    """The capacity of synchronous options, the cheapest first; of equal ones the faster, then the first by name."""
    z = NORMAL.inv_cdf(min(max(1.0 - (1.0 - target) * UNKNOWN, 1e-9), 1 - 1e-9))
    sync_options = []
    for option in sorted(synchronous, key=lambda one: (one.cost.p50, -one.pace.rate)):
        pace = option.pace
        low = pace.rate * math.exp(-z * pace.spread)
        sync_options.append(
            OptionCapacity(
                option,
                float(option.cost.p50),
                pace.rate,
                low,
                pace.ahead,
                pace.start,
                pace.hazard / HOUR,
                not pace.ahead and not pace.steps,
            )
        )
    lows = tuple(sync.low for sync in sync_options)
    return Capacity(tuple(sync_options), horizon, target, lows, claims, finishes)


def _outlasts(spare: float, outages: float, length: float) -> float:
    """P(outages together take more than the `spare` seconds), where so many are to be expected, each of which lasts
    for `length` on the mean: a compound Poisson sum."""
    stretch, found = spare / length, 0.0
    many = in_time = math.exp(-outages)
    ends, term = 0.0, math.exp(-stretch)
    for count in range(1, MOST_OUTAGES):
        # P(so many of them outlast it) is that of fewer ends than that in the time.
        ends, term = ends + term, term * stretch / count
        many *= outages / count
        in_time += many
        found += many * ends
        if many < _ROUNDED * found:
            break
    return min(1.0, found + max(0.0, 1.0 - in_time))


def _fattened(tail: float) -> float:
    """P(failure) where the forecast says `tail`: what is rare is about three times as frequent as it is told."""
    return tail * (1.0 + (1.0 / UNKNOWN - 1.0) * (1.0 - tail) ** 4)


def excess(median: float, spread: float, mark: float) -> float:
    """The expected part beyond the mark of a log-normal quantity."""
    if mark <= 0 or median <= 0 or spread <= 0 or math.isinf(median):
        return max(0.0, median - mark)
    d = math.log(median / mark) / spread
    return max(0.0, median * math.exp(spread * spread / 2) * _below(d + spread) - mark * _below(d))


def _below(quantile: float) -> float:
    """P(a standard normal quantity is less), as `NORMAL.cdf` says it in thrice the time."""
    return 0.5 * math.erfc(-quantile * _HALF_ROOT)


def shortfall(rows: float, median: float, spread: float) -> float:
    """How many of these rows are expected not to be done, where the number done is log-normal."""
    if median <= 0:
        return rows
    return max(0.0, rows - median * math.exp(spread * spread / 2) + excess(median, spread, rows))
