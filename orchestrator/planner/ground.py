"""How much the paced routes get done by when, what that costs, and how sure it is. Seconds from now; pure arithmetic.

An upstream's pace is not known beforehand. `sure` figures take every pace at its low quantile at once: upstreams that
are slow together are the safe assumption, and a sum of them stays monotone in time and in the number of routes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.forecast import NORMAL
from orchestrator.planner.values import PacedOption

UNKNOWN = 1 / 3
Rows = tuple[int, ...]
"""Rows by paced option, in the order of the ground."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A paced option in floats; `low` is its pace at the low quantile."""

    option: PacedOption
    price: float
    rate: float
    low: float
    ahead: float
    start: float

    def between(self, a: float, b: float, rate: float) -> float:
        """Rows done from `a` to `b` at this rate, where ours come at `a`: it starts, and others go first."""
        ahead = self.ahead - rate * a
        rows = rate * (b - a - self.start) - (ahead if ahead > 0.0 else 0.0)
        return rows if rows > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Ground:
    """The paced options of one planning, the cheapest first, and the `horizon`: the seconds until the deadline."""

    lanes: tuple[Lane, ...]
    horizon: float
    target: float

    def fits(self, burden: float, held: Sequence[int], a: float, cover: int) -> bool:
        """Whether `burden` rows that come at `a` and what is left of those `held` are surely done by the deadline.

        Only the first `cover` lanes take what comes; what is held elsewhere is done there or not at all.
        """
        return self._room_left([lane.low for lane in self.lanes], burden, held, a, cover) >= 0

    def chance(self, burden: float, held: Sequence[int], a: float, cover: int) -> float:
        """P(that): the quantile at which it just fits."""
        if burden <= 0 and not any(held):
            return 1.0
        bottom, top = -4.0, 4.0
        for _ in range(14):
            middle = (bottom + top) / 2
            rates = [lane.rate * math.exp(-middle * lane.option.pace.spread) for lane in self.lanes]
            if self._room_left(rates, burden, held, a, cover) >= 0:
                bottom = middle
            else:
                top = middle
        return NORMAL.cdf(bottom) if bottom > -4.0 else 0.0

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
            room += lane.between(a, horizon, rate)
        return room

    def room(self, held: Sequence[int], a: float, cover: int, *, sure: bool) -> list[float]:
        """Rows that each lane of the cover can take from `a` on, beside those held."""
        found = []
        for lane, rows in zip(self.lanes[:cover], held, strict=False):
            rate = lane.low if sure else lane.rate
            rest = max(0.0, rows - lane.between(0.0, min(a, self.horizon), rate)) if rows else 0.0
            found.append(max(0.0, lane.between(a, self.horizon, rate) - rest))
        return found

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

    def price(self, rows: Sequence[int]) -> float:
        """What rows by lane are expected to cost."""
        return sum(lane.price * many for lane, many in zip(self.lanes, rows, strict=True))

    def at_most(self, rows: Sequence[int]) -> Decimal:
        """What they do not exceed (95 %)."""
        return sum(
            (lane.option.cost.p95 * many for lane, many in zip(self.lanes, rows, strict=True) if many), Decimal(0)
        )

    def overrun(self, held: Sequence[int], cover: int) -> float:
        """Dollars for what is expected to go on to the dearest of the cover, as lanes may be too slow."""
        dearest = self.lanes[cover - 1].price if cover else 0.0
        total = 0.0
        for lane, rows in zip(self.lanes, held, strict=True):
            if rows and dearest > lane.price:
                usual = lane.between(0.0, self.horizon, lane.rate)
                total += shortfall(rows, usual, lane.option.pace.spread) * (dearest - lane.price)
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
        while step < self.horizon and self.fits(burden, held, max(free_in, step), cover):
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


def ground(paced: Sequence[PacedOption], horizon: float, target: float) -> Ground:
    """The ground for paced options, the cheapest first; of equal ones the faster, then the one named first.

    Routes are called sure where a third of what may fail by the target is left for what no forecast knows.
    """
    z = NORMAL.inv_cdf(min(max(1.0 - (1.0 - target) * UNKNOWN, 1e-9), 1 - 1e-9))
    lanes = []
    for option in sorted(paced, key=lambda one: (one.cost.p50, -one.pace.rate)):
        pace = option.pace
        low = pace.rate * math.exp(-z * pace.spread)
        lanes.append(Lane(option, float(option.cost.p50), pace.rate, low, pace.ahead, pace.start))
    return Ground(tuple(lanes), horizon, target)


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
