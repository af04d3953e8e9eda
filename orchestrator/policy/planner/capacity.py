"""How much the paced routes get done by when, what that costs, and how sure it is. Seconds from now; pure arithmetic.

An engine's pace is not known beforehand. `sure` figures take every pace at its low quantile at once: engines that are
slow together are the safe assumption, and a sum of them stays monotone in time and in the number of routes. Beside
that, one engine at a time may fail altogether (`risk`): what it has then is done by the others, or it is a risk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.core.durations import HOUR
from orchestrator.policy.forecast import NORMAL
from orchestrator.policy.planner.values import Claim, SynchronousOption

UNKNOWN = 1 / 3
"""The part of what may fail by the target that known paces may use up; the rest is left for what is not known."""
DETECTED = 600.0
"""Seconds until an engine that stands still is known to, and its rows are elsewhere."""
TURN = 60.0
"""Seconds for a look or two, until it shows that a lane does not do the last of its rows."""
NEGLIGIBLE = 1e-5
Rows = tuple[int, ...]
"""Rows by paced option, in the order of the ground."""


@dataclass(frozen=True, slots=True)
class OptionCapacity:
    """A paced option in floats; `low` is its pace at the low quantile, `hazard` its outages a second."""

    option: SynchronousOption
    price: float
    rate: float
    low: float
    ahead: float
    start: float
    hazard: float

    def between(self, a: float, b: float, rate: float, *, warm: bool = False) -> float:
        """Rows done from `a` to `b` at this rate, where ours come at `a`: it starts, and others go first.

        One that is `warm` has had rows from now on.
        """
        begin = max(a, self.start) if warm else a + self.start
        if b <= begin or rate <= 0.0:
            return 0.0
        full = self.option.pace.full
        ahead = self.ahead - rate * full(a) if self.ahead else 0.0
        rows = rate * (full(b) - full(begin)) - (ahead if ahead > 0.0 else 0.0)
        return rows if rows > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The paced options of one planning, the cheapest first, and the `horizon`: the seconds until the deadline.

    `claims` are what other jobs may come to need of them, `finishes` is P(the job ends in time once its rows are
    answered by then).
    """

    lanes: tuple[OptionCapacity, ...]
    horizon: float
    target: float
    claims: tuple[Claim, ...] = ()
    finishes: float = 1.0

    def leave(self, held: Sequence[int]) -> float:
        """Seconds until rows that leave a lane are free."""
        return max(
            (lane.option.cancel_seconds for lane, rows in zip(self.lanes, held, strict=True) if rows), default=0.0
        )

    def fits(
        self,
        burden: float,
        held: Sequence[int],
        a: float,
        cover: int,
        *,
        tail: float = 0.0,
        cause: Collection[str] = (),
    ) -> bool:
        """Whether `burden` rows that come at `a` and what is left of those `held` are surely done by the deadline.

        Only the first `cover` lanes take what comes; what is held elsewhere is done there or not at all. `tail` is
        the P(failure) of what comes before; what others claim for the same `cause` comes for certain.
        """
        burden, a = burden + self._certain(cause), max(a, self.leave(held))
        lows = [lane.low for lane in self.lanes]
        if self._room_left(lows, burden, held, a, cover) < 0:
            return False
        risk = tail + (1.0 - self.finishes) + self.risk(burden, held, a, cover, cause)
        if risk <= NEGLIGIBLE:
            return True
        left = (1.0 - self.target - risk) * UNKNOWN
        if left <= 1e-9:
            return False
        z = -NORMAL.inv_cdf(left)
        rates = [lane.rate * math.exp(-z * lane.option.pace.spread) for lane in self.lanes]
        return self._room_left(rates, burden, held, a, cover) >= 0

    def chance(
        self, burden: float, held: Sequence[int], a: float, cover: int, *, cause: Collection[str] = ()
    ) -> float:
        """P(that)."""
        if burden <= 0 and not any(held):
            return 1.0
        burden, a = burden + self._certain(cause), max(a, self.leave(held))
        likely = self._paced(burden, held, a, cover) - self.risk(burden, held, a, cover, cause)
        return max(0.0, likely) * self.finishes

    def _paced(self, burden: float, held: Sequence[int], a: float, cover: int) -> float:
        """P(paces are enough): the quantile at which it just fits, less what is not known of quantiles."""
        bottom, top = -4.0, 4.0
        for _ in range(14):
            middle = (bottom + top) / 2
            rates = [lane.rate * math.exp(-middle * lane.option.pace.spread) for lane in self.lanes]
            if self._room_left(rates, burden, held, a, cover) >= 0:
                bottom = middle
            else:
                top = middle
        return 1.0 - _fattened(NORMAL.cdf(-bottom)) if bottom > -4.0 else 0.0

    def _certain(self, cause: Collection[str]) -> float:
        """Rows of others that come for certain: for the same cause, or since the lane that has them is too slow."""
        total = 0.0
        for claim in self.claims:
            if claim.source in cause:
                total += claim.rows
            elif (lane := self._lane(claim.source)) is not None:
                does = lane.low * lane.option.pace.full(max(0.0, self.horizon - lane.start))
                total += max(0.0, claim.rows - does)
        return total

    def _lane(self, backend: str) -> OptionCapacity | None:
        return next((lane for lane in self.lanes if lane.option.backend == backend), None)

    def risk(self, burden: float, held: Sequence[int], a: float, cover: int, cause: Collection[str] = ()) -> float:
        """P(an engine fails, or others need it, and the rest of the cover cannot make up for it)."""
        lows = [lane.low for lane in self.lanes]
        found = 0.0
        for place, (lane, rows) in enumerate(zip(self.lanes, held, strict=True)):
            if lane.hazard <= 0.0 or lane.rate <= 0.0 or not (rows or (burden > 0 and place < cover)):
                continue
            begin = 0.0 if rows else a - min(a, lane.option.pace.outage)
            ends = min(self.horizon, self._ends(burden, held, a, cover, place))
            exposed = max(0.0, ends - begin)
            if lane.hazard * exposed <= NEGLIGIBLE:
                continue
            if place < cover and self._secured(lows, burden, held, a, cover, place):
                exposed = min(exposed, max(0.0, ends + DETECTED - self.horizon))
            found += 1.0 - math.exp(-lane.hazard * exposed)
        for claim in self.claims:
            if claim.source in cause or claim.chance <= NEGLIGIBLE or self._lane(claim.source):
                continue
            if self._room_left(lows, burden + claim.rows, held, a, cover) < 0:
                found += claim.chance
        return min(1.0, found)

    def _ends(self, burden: float, held: Sequence[int], a: float, cover: int, place: int) -> float:
        """When a lane is usually done with what it has and, where it is of the cover, with its part of the rest."""
        lane = self.lanes[place]
        if lane.rate <= 0:
            return math.inf
        own = lane.option.pace.seconds_for(held[place]) if held[place] else 0.0
        if burden <= 0 or place >= cover:
            return own
        whole = sum(each.rate for each in self.lanes[:cover])
        return max(own, a + lane.start + (lane.ahead / lane.rate) + burden / whole)

    def _secured(
        self, rates: Sequence[float], burden: float, held: Sequence[int], a: float, cover: int, place: int
    ) -> bool:
        """Whether the others do all of it, were one lane gone from now on, with what others have there."""
        gone = [0.0 if other == place else rate for other, rate in enumerate(rates)]
        kept = [0 if other == place else rows for other, rows in enumerate(held)]
        more = sum(claim.rows for claim in self.claims if claim.source == self.lanes[place].option.backend)
        freed = max(a, DETECTED + self.lanes[place].option.cancel_seconds)
        return self._room_left(gone, burden + held[place] + more, kept, freed, cover) >= 0

    def _room_left(self, rates: Sequence[float], burden: float, held: Sequence[int], a: float, cover: int) -> float:
        room, horizon = -burden, self.horizon
        until = min(a, horizon)  # what is done behind the deadline does not count
        for place, (lane, rows, rate) in enumerate(zip(self.lanes, held, rates, strict=True)):
            if place >= cover:  # it does its own rows and no others, and nobody does them for it
                own = lane.between(0.0, horizon, rate) - rows
                if own < 0:
                    return own
                continue
            if rows:
                room -= max(0.0, rows - lane.between(0.0, until, rate))
            room += lane.between(a, horizon, rate, warm=rows > 0)
        return room

    def room(self, held: Sequence[int], a: float, cover: int, *, sure: bool) -> list[float]:
        """Rows that each lane of the cover can take from `a` on, beside those held."""
        found = []
        for place, (lane, rows) in enumerate(zip(self.lanes[:cover], held, strict=False)):
            rate, until = lane.low if sure else lane.rate, self.until(place, cover)
            rest = max(0.0, rows - lane.between(0.0, min(a, until), rate)) if rows else 0.0
            found.append(max(0.0, lane.between(a, until, rate, warm=rows > 0) - rest))
        return found

    def until(self, place: int, cover: int) -> float:
        """Until when a lane of the cover may be given rows to do: one that others can take over from is to be done a
        little before the deadline, while there is time for that."""
        if cover < 2 or place >= cover or place == max(range(cover), key=lambda one: self.lanes[one].rate):
            return self.horizon
        return max(0.0, self.horizon - TURN - self.lanes[place].option.cancel_seconds)

    def fill(self, rows: int, room: Sequence[float]) -> Rows:
        """Rows by lane, the cheapest first; what fits nowhere is shared by pace, so that it ends soonest."""
        left, taken = rows, [0] * len(self.lanes)
        for place, free in enumerate(room):
            taken[place] = min(left, math.floor(free))
            left -= taken[place]
        if left:
            rates = [lane.rate for lane in self.lanes[: len(room)]]
            whole = sum(rates)
            fastest = max(range(len(rates)), key=rates.__getitem__)
            shares = [int(left * rate / whole) if whole else 0 for rate in rates]
            for place, share in enumerate(shares):
                taken[place] += share
            taken[fastest] += left - sum(shares)
        return tuple(taken)

    def at_most(self, rows: Sequence[int]) -> Decimal:
        """What rows by lane do not exceed (95 %)."""
        return sum(
            (lane.option.cost.p95 * many for lane, many in zip(self.lanes, rows, strict=True) if many), Decimal(0)
        )

    def price(self, held: Sequence[int], comes: Sequence[tuple[float, float]], cover: int) -> float:
        """What is expected to be paid: for what lanes hold, and for rows that come, as (when, how many).

        What a lane is expected not to do in time goes on to the next, so more time is never dearer.
        """
        usual = [lane.between(0.0, self.horizon, lane.rate) for lane in self.lanes]
        total, has = 0.0, [float(rows) for rows in held]
        left_over = 0.0
        for place, (lane, rows) in enumerate(zip(self.lanes, held, strict=True)):
            short = shortfall(rows, usual[place], lane.option.pace.spread) if rows and place < cover else 0.0
            total += lane.price * (rows - short)
            left_over += short
        for when, more in ((0.0, left_over), *comes):
            total += self._poured(more, has, when, cover)
        return total

    def _poured(self, rows: float, has: list[float], when: float, cover: int) -> float:
        """Dollars for rows that come then, the cheapest lane first; what lanes have grows by them."""
        total = 0.0
        for place in range(cover):
            if rows <= 0:
                break
            lane = self.lanes[place]
            rest = max(0.0, has[place] - lane.between(0.0, min(when, self.horizon), lane.rate))
            free = lane.between(when, self.horizon, lane.rate, warm=has[place] > 0) - rest
            short = shortfall(rows, max(0.0, free), lane.option.pace.spread) if place < cover - 1 else 0.0
            total += lane.price * (rows - short)
            has[place] += rows - short
            rows = short
        return total

    def slowest(self, held: Sequence[int]) -> float:
        """The seconds until the last lane is done with what it holds; infinite where one does not move."""
        return max(
            (lane.option.pace.seconds_for(rows) for lane, rows in zip(self.lanes, held, strict=True)), default=0.0
        )

    def slack(self, burden: float, held: Sequence[int], free_in: float, cover: int) -> float:
        """For how many seconds nothing need be moved between lanes, to about a tenth."""
        wait = 0.0
        step = 60.0
        while step < self.horizon and self.fits(burden, held, max(free_in, step + self.leave(held)), cover):
            wait, step = step, step * 1.2
        return wait

    def seconds(self, burden: float, held: Sequence[int], a: float, cover: int) -> tuple[float, float]:
        """When all of it is done at the usual pace, and the spread of that; infinite where nothing moves."""
        rest, rate, spread, start, alone = burden, 0.0, 0.0, 0.0, 0.0
        for place, (lane, rows) in enumerate(zip(self.lanes, held, strict=True)):
            if place >= cover and not rows:
                continue
            spread = max(spread, lane.option.pace.spread)
            if place >= cover:
                alone = max(alone, lane.option.pace.seconds_for(rows))
                continue
            rest += max(0.0, rows - lane.between(0.0, a, lane.rate)) + max(0.0, lane.ahead - lane.rate * a)
            rate, start = rate + lane.rate, max(start, lane.start)
        if burden <= 0 and not any(held[:cover]):
            return alone, spread
        return max(alone, a + start + rest / rate if rate > 0 else math.inf), spread


def ground(
    paced: Sequence[SynchronousOption],
    horizon: float,
    target: float,
    claims: tuple[Claim, ...] = (),
    finishes: float = 1.0,
) -> Capacity:
    """The ground for paced options, the cheapest first; of equal ones the faster, then the one named first."""
    z = NORMAL.inv_cdf(min(max(1.0 - (1.0 - target) * UNKNOWN, 1e-9), 1 - 1e-9))
    lanes = []
    for option in sorted(paced, key=lambda one: (one.cost.p50, -one.pace.rate)):
        pace = option.pace
        low = pace.rate * math.exp(-z * pace.spread)
        lanes.append(
            OptionCapacity(option, float(option.cost.p50), pace.rate, low, pace.ahead, pace.start, pace.hazard / HOUR)
        )
    return Capacity(tuple(lanes), horizon, target, claims, finishes)


def _fattened(tail: float) -> float:
    """P(failure) where the forecast says `tail`: what is rare is about three times as frequent as it is told."""
    return tail * (1.0 + (1.0 / UNKNOWN - 1.0) * (1.0 - tail) ** 4)


def excess(median: float, spread: float, mark: float) -> float:
    """The expected part beyond the mark of a log-normal quantity."""
    if mark <= 0 or median <= 0 or spread <= 0 or math.isinf(median):
        return max(0.0, median - mark)
    d = math.log(median / mark) / spread
    return max(0.0, median * math.exp(spread * spread / 2) * NORMAL.cdf(d + spread) - mark * NORMAL.cdf(d))


def shortfall(rows: float, median: float, spread: float) -> float:
    """How many of these rows are expected not to be done, where the number done is log-normal."""
    if median <= 0:
        return rows
    return max(0.0, rows - median * math.exp(spread * spread / 2) + excess(median, spread, rows))
