"""How long hosted batches take."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise

from msgspec import Struct

from orchestrator.core.durations import DAY, HOUR, MINUTE
from orchestrator.policy.forecast.words import source

# Conservative: OpenRouter published a median of 7 minutes and 90 % within the hour; users tell of 8 to 24 hours.
_PRIOR = (
    (5 * MINUTE, 0.05),
    (10 * MINUTE, 0.15),
    (20 * MINUTE, 0.35),
    (40 * MINUTE, 0.55),
    (1 * HOUR, 0.65),
    (2 * HOUR, 0.78),
    (4 * HOUR, 0.87),
    (8 * HOUR, 0.93),
    (16 * HOUR, 0.96),
    (DAY, 0.98),
    (4 * DAY, 1.0),
)
PRIOR_NIGHTS = 6.0
"""How many nights of one's own weigh as much as what is assumed."""
TONIGHT = 4.0
"""What the night itself has shown so far, in a batch that is done or still runs, to all that other nights did."""
ENOUGH_NIGHTS = 30

_FIRST, _RATIO = float(MINUTE), 1.1
_LOG_RATIO = math.log(_RATIO)
_GRID = tuple(_FIRST * _RATIO**step for step in range(math.ceil(math.log(4 * DAY / _FIRST, _RATIO)) + 1))


def _prior(seconds: float) -> float:
    """P(a batch is done by then), as assumed; straight between the marks on a logarithmic scale."""
    before, share = _FIRST, 0.0
    for mark, at_mark in _PRIOR:
        if seconds < mark:
            return share + (at_mark - share) * max(0.0, math.log(seconds / before)) / math.log(mark / before)
        before, share = mark, at_mark
    return 1.0


_PRIOR_LEFT = tuple(1.0 - _prior(mark) for mark in _GRID)


class SeenBatch(Struct, frozen=True):
    """A batch as it was seen: `seconds` from its submission `at` to its end, or so far where it has not `ended`.

    One that expired, or that was cancelled before its end, has not ended by itself: it tells that it takes longer.
    """

    at: datetime
    seconds: float
    ended: bool
    rows: int


class Turnaround(Struct, frozen=True):
    """How long a batch takes: `left[i]` is P(it runs longer than the i-th mark of a fixed logarithmic grid).

    `is_known` tells what was seen from what is mostly assumed.
    """

    left: tuple[float, ...]
    source: str
    is_known: bool = False

    def longer(self, seconds: float) -> float:
        """P(a batch runs longer than this)."""
        if seconds <= _FIRST:
            return 1.0 - (1.0 - self.left[0]) * max(0.0, seconds) / _FIRST
        place = math.log(seconds / _FIRST) / _LOG_RATIO
        step = int(place)
        if step >= len(self.left) - 1:
            return self.left[-1]
        low, high = self.left[step], self.left[step + 1]
        return low + (high - low) * (place - step)

    def by(self, seconds: float, after: float = 0.0) -> float:
        """P(a batch is done within `seconds` of its submission), given that it was not `after` so many."""
        if seconds <= after:
            return 0.0
        running = self.longer(after) if after > 0 else 1.0
        # What has outlived all that is known of says nothing about its end.
        return 1.0 - self.longer(seconds) / running if running > 0 else 0.0

    def within(self, chance: float, after: float = 0.0) -> float:
        """The seconds from submission by which a batch is done with this chance; infinite where none is known."""
        bound = (1.0 - chance) * (self.longer(after) if after > 0 else 1.0)
        if self.left[-1] > bound:
            return math.inf
        step = bisect_left(self.left, -bound, key=lambda left: -left)
        return max(after, _GRID[step])

    def late(self, seconds: float, after: float = 0.0, most: float = DAY) -> float:
        """Expected seconds by which a batch ends later than `seconds`, at most `most` after its submission."""
        running = self.longer(after) if after > 0 else 1.0
        start, total = max(seconds, after), max(0.0, after - seconds)
        marks = [start, *(mark for mark in _GRID if start < mark < most), most]
        if start >= most or running <= 0:
            return total
        return total + sum((b - a) * (self.longer(a) + self.longer(b)) / 2 for a, b in pairwise(marks)) / running


def turnaround(seen: Sequence[SeenBatch], *, rows: int, at: datetime) -> Turnaround:
    """What to expect of a batch of so many rows that is sent `at`, by batches of the same backend and model.

    Batches of like size and hour, and recent ones, weigh more. Those of one night are slow together: the slowest that
    was sent in an hour stands for all of that hour, and a night weighs one at most, but that of `at` more than all
    others. This is a Kaplan-Meier estimate with `PRIOR_NIGHTS` assumed nights mixed in, so what still runs counts for
    as long as it has run.
    """
    ends, risks = [0.0] * len(_GRID), [0.0] * len(_GRID)
    for weight, one in _weighed(seen, rows, at):
        step = bisect_left(_GRID, one.seconds)
        if one.ended and step < len(_GRID):
            ends[step] += weight
            risks[step] += weight
        elif step:
            risks[step - 1] += weight  # it outlived the mark before; of the one after nothing is known
    at_risk, left, before, curve = sum(risks), 1.0, 1.0, []
    for prior, ended, gone in zip(_PRIOR_LEFT, ends, risks, strict=True):
        running = PRIOR_NIGHTS * before + at_risk
        left *= max(0.0, 1.0 - (PRIOR_NIGHTS * (before - prior) + ended) / running) if running > 1e-9 else 1.0
        at_risk, before = at_risk - gone, prior
        curve.append(left)
    count = len({_night(one.at) for one in seen})
    return Turnaround(tuple(curve), source(count, "nights", ENOUGH_NIGHTS), count >= ENOUGH_NIGHTS)


_HALF_LIFE = 30.0 * DAY


def _weighed(seen: Sequence[SeenBatch], rows: int, at: datetime) -> list[tuple[float, SeenBatch]]:
    """The slowest batch of each hour with what it weighs; the hours of a night weigh one together, or less.

    Those of the very night weigh more than all others.
    """
    nights: dict[date, dict[datetime, list[SeenBatch]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        nights[_night(one.at)][one.at.replace(minute=0, second=0, microsecond=0)].append(one)
    found, tonight = [], []
    for night, hours in nights.items():
        slowest = [max(batches, key=lambda one: (one.seconds, not one.ended)) for batches in hours.values()]
        likeness = [_likeness(one, rows, at) for one in slowest]
        whole = max(1.0, sum(likeness))
        weighed = [(weight / whole, one) for weight, one in zip(likeness, slowest, strict=True)]
        if night == _night(at):
            tonight = weighed
        else:
            found += weighed
    others = PRIOR_NIGHTS + sum(weight for weight, _ in found)
    return found + [(weight * TONIGHT * others, one) for weight, one in tonight]


def _night(at: datetime) -> date:
    return (at - timedelta(hours=12)).date()


def _likeness(one: SeenBatch, rows: int, at: datetime) -> float:
    """Half for ten times the size, half for six hours of the day away, half for a month ago."""
    size = abs(math.log10(max(1, one.rows) / max(1, rows)))
    apart = abs((one.at - at).total_seconds())
    hour = min(apart % DAY, DAY - apart % DAY) / (6 * HOUR)
    return float(0.5 ** (size + hour + apart / _HALF_LIFE))
