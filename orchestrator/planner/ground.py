"""How much the paced routes get done by when, what that costs, and how sure it is. Seconds from now; pure arithmetic.

An upstream's pace is not known beforehand. `sure` figures take every pace at its low quantile at once: upstreams that
are slow together are the safe assumption, and a sum of them stays monotone in time and in the number of routes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from orchestrator.forecast import NORMAL
from orchestrator.planner.values import PacedOption

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
        """Rows done from `a` to `b` at this rate, where nothing of ours is there before: it starts, others go first."""
        return max(0.0, rate * (b - a - self.start) - max(0.0, self.ahead - rate * a))


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
        room = 0.0
        for place, lane in enumerate(self.lanes):
            rows = held[place]
            if rows:
                burden += max(0.0, rows - lane.between(0.0, a, lane.low))
            elif place >= cover:
                continue
            room += lane.between(a, self.horizon, lane.low)
        return burden <= room

    def chance(self, burden: float, held: Sequence[int], a: float, cover: int) -> float:
        """P(that): the quantile at which it just fits."""
        if burden <= 0 and not any(held):
            return 1.0
        bottom, top = -4.0, 4.0
        for _ in range(14):
            middle = (bottom + top) / 2
            slower = tuple(
                replace(lane, low=lane.rate * math.exp(-middle * lane.option.pace.spread)) for lane in self.lanes
            )
            if replace(self, lanes=slower).fits(burden, held, a, cover):
                bottom = middle
            else:
                top = middle
        return NORMAL.cdf(bottom) if bottom > -4.0 else 0.0

    def room(self, held: Sequence[int], a: float, cover: int, *, sure: bool) -> list[float]:
        """Rows that each lane of the cover can take from `a` on, beside those held."""
        found = []
        for lane, rows in zip(self.lanes[:cover], held, strict=False):
            rate = lane.low if sure else lane.rate
            rest = max(0.0, rows - lane.between(0.0, a, rate)) if rows else 0.0
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
        """What is expected to go on to the dearest of the cover, as lanes may be too slow for what they hold, in dollars."""
        dearest = self.lanes[cover - 1].price if cover else 0.0
        total = 0.0
        for lane, rows in zip(self.lanes, held, strict=True):
            if rows and dearest > lane.price:
                usual = lane.between(0.0, self.horizon, lane.rate)
                total += shortfall(rows, usual, lane.option.pace.spread) * (dearest - lane.price)
        return total

    def seconds(self, burden: float, held: Sequence[int], a: float, cover: int) -> tuple[float, float]:
        """When all of it is done at the usual pace, and the spread of that; infinite where nothing moves."""
        rest, rate, spread, start = burden, 0.0, 0.0, 0.0
        for place, lane in enumerate(self.lanes):
            if place < cover or held[place]:
                rest += max(0.0, held[place] - lane.between(0.0, a, lane.rate)) + max(0.0, lane.ahead - lane.rate * a)
                rate += lane.rate
                spread, start = max(spread, lane.option.pace.spread), max(start, lane.start)
        if burden <= 0 and not any(held):
            return 0.0, spread
        return (a + start + rest / rate, spread) if rate > 0 else (math.inf, spread)


def ground(paced: Sequence[PacedOption], horizon: float, target: float) -> Ground:
    """The ground for paced options, the cheapest first; of equal ones the faster, then the one named first."""
    z = NORMAL.inv_cdf(min(max(target, 1e-9), 1 - 1e-9))
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
