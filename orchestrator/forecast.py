"""What to expect of answers, batches and upstreams: learned from what was seen, on priors where little was. Pure.

Every forecast says where it comes from: `assumed`, `from 312 rows`, or both. Times are seconds, rates rows a second.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from statistics import NormalDist

from orchestrator.durations import DAY, HOUR, MINUTE

NORMAL = NormalDist()

# --- how long answers are


@dataclass(frozen=True, slots=True)
class Lengths:
    """Output tokens of one row: the mean, two quantiles, and where they come from."""

    mean: float
    p50: int
    p95: int
    source: str


_PRIOR_ROWS = 10


def output_lengths(seen: Mapping[int, int], max_tokens: int) -> Lengths:
    """Output tokens of rows of one task and prompt version that may have up to `max_tokens`.

    `seen` counts rows by their output tokens. The prior is ten rows, evenly from a tenth of `max_tokens` to all of it.
    """
    count = sum(seen.values())
    rows: dict[int, int] = defaultdict(int)
    for tokens, many in seen.items():
        rows[min(tokens, max_tokens)] += many
    for part in range(1, _PRIOR_ROWS + 1):
        rows[math.ceil(max_tokens * part / _PRIOR_ROWS)] += 1
    whole = count + _PRIOR_ROWS
    mean = sum(tokens * many for tokens, many in rows.items()) / whole
    return Lengths(mean, _part(rows, whole * 0.5), _part(rows, whole * 0.95), _source(count, "rows", 100))


def _part(rows: Mapping[int, int], rank: float) -> int:
    so_far = 0
    for tokens in sorted(rows):
        so_far += rows[tokens]
        if so_far >= rank:
            break
    return tokens


def _source(count: int, what: str, enough: int) -> str:
    if not count:
        return "assumed"
    told = f"from {count:,} {what if count > 1 else what[:-1]}"
    return told if count >= enough else f"{told}, else assumed"


# --- how long hosted batches take

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


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch as it was seen: `seconds` from its submission `at` to its end, or so far where it has not `ended`.

    One that expired, or that was cancelled before its end, has not ended by itself: it tells that it takes longer.
    """

    at: datetime
    seconds: float
    ended: bool
    rows: int


@dataclass(frozen=True, slots=True)
class Turnaround:
    """How long a batch takes: `left[i]` is P(it runs longer than the i-th mark of a fixed logarithmic grid)."""

    left: tuple[float, ...]
    source: str

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
        pairs = zip(marks, marks[1:], strict=False)
        return total + sum((b - a) * (self.longer(a) + self.longer(b)) / 2 for a, b in pairs) / running


def turnaround(seen: Iterable[Seen], *, rows: int, at: datetime) -> Turnaround:
    """What to expect of a batch of so many rows that is sent `at`, by batches of the same backend and model.

    Batches of like size and hour, and recent ones, weigh more. Those of one night are slow together: the slowest that
    was sent in an hour stands for all of that hour, and a night weighs one at most. This is a Kaplan-Meier estimate
    with `PRIOR_NIGHTS` assumed ones mixed in, so what still runs counts for as long as it has run.
    """
    weighed = _weighed(seen, rows, at)
    ends, risks = [0.0] * len(_GRID), [0.0] * (len(_GRID) + 1)
    for weight, seconds, ended in weighed:
        step = bisect_left(_GRID, seconds)
        if step < len(_GRID) and ended:
            ends[step] += weight
            risks[step] += weight
        elif step:
            risks[step - 1] += weight  # it outlived the mark before; of the one after nothing is known
    at_risk = sum(risks)
    left, before, curve = 1.0, 1.0, []
    for step, prior in enumerate(_PRIOR_LEFT):
        die = PRIOR_NIGHTS * (before - prior) + ends[step]
        live = PRIOR_NIGHTS * before + at_risk
        left *= 1.0 - die / live if live > 1e-12 else 1.0
        at_risk -= risks[step]
        before = prior
        curve.append(max(0.0, left))
    nights = len({_night(one.at) for one in seen}) if isinstance(seen, Sequence) else len(weighed)
    return Turnaround(tuple(curve), _source(nights, "nights", ENOUGH_NIGHTS))
