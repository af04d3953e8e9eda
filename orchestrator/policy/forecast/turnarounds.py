"""Survival curve of hosted batches: a Kaplan-Meier estimate mixed with a prior."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise

from msgspec import Struct

from orchestrator.core.durations import DAY, HOUR, MINUTE
from orchestrator.policy.forecast.observed_nights import night_of
from orchestrator.policy.forecast.words import source

# Conservative: OpenRouter published a median of 7 minutes and 90 % within the hour; users report 8 to 24 hours.
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
"""Weight of the prior curve, as a number of observed nights."""
TONIGHT_WEIGHT = 4.0
"""Weight of the current night, as a multiple of all other nights and the prior together."""
_PRIOR_SQUARES = 2.0
"""Weight of the prior that nights are independent, as a sum of squared deviations of the run time's logarithm."""
ENOUGH_NIGHTS = 30
"""From this number of nights on, the forecast's source text no longer mentions the prior."""

_FIRST, _RATIO = float(MINUTE), 1.1
_LOG_RATIO = math.log(_RATIO)
_GRID = tuple(_FIRST * _RATIO**step for step in range(math.ceil(math.log(4 * DAY / _FIRST, _RATIO)) + 1))


def _prior(seconds: float) -> float:
    """Return the prior P(a batch is done within `seconds`), interpolated on a logarithmic time scale."""
    before, share = _FIRST, 0.0
    for mark, at_mark in _PRIOR:
        if seconds < mark:
            return share + (at_mark - share) * max(0.0, math.log(seconds / before)) / math.log(mark / before)
        before, share = mark, at_mark
    return 1.0


_PRIOR_SURVIVAL = tuple(1.0 - _prior(mark) for mark in _GRID)


class SeenBatch(Struct, frozen=True):
    """An observed batch: `seconds` from its submission `at` to its end, or to now if it still runs.

    `ended` is False for a censored observation: the batch still runs, expired, or was cancelled.
    """

    at: datetime
    seconds: float
    ended: bool
    rows: int


class Turnaround(Struct, frozen=True):
    """Survival function of a batch's run time, on a fixed logarithmic grid.

    `survival[i]` is P(a batch runs longer than mark i of the grid). `is_known` is True if enough nights were
    observed.
    """

    survival: tuple[float, ...]
    source: str
    is_known: bool = False

    def longer(self, seconds: float) -> float:
        """Return the survival function: P(a batch runs longer than `seconds`)."""
        if seconds <= _FIRST:
            return 1.0 - (1.0 - self.survival[0]) * max(0.0, seconds) / _FIRST
        place = math.log(seconds / _FIRST) / _LOG_RATIO
        step = int(place)
        if step >= len(self.survival) - 1:
            return self.survival[-1]
        low, high = self.survival[step], self.survival[step + 1]
        return low + (high - low) * (place - step)

    def by(self, seconds: float, after: float = 0.0) -> float:
        """Return P(a batch is done within `seconds` of its submission), given that it still ran after `after`
        seconds.
        """
        if seconds <= after:
            return 0.0
        running = self.longer(after) if after > 0 else 1.0
        # Past the end of the curve, the remaining time of a batch is unknown.
        return 1.0 - self.longer(seconds) / running if running > 0 else 0.0

    def within(self, chance: float, after: float = 0.0) -> float:
        """Return the quantile at `chance` of seconds from submission, given that the batch still ran after `after`
        seconds.

        Returns infinity if the curve does not reach `chance`.
        """
        bound = (1.0 - chance) * (self.longer(after) if after > 0 else 1.0)
        if self.survival[-1] > bound:
            return math.inf
        step = bisect_left(self.survival, -bound, key=lambda survival: -survival)
        return max(after, _GRID[step])

    def late(self, seconds: float, after: float = 0.0, most: float = DAY) -> float:
        """Return the expected seconds by which a batch exceeds `seconds`, given that it still ran after `after`
        seconds.

        A batch counts as ended `most` seconds after its submission.
        """
        running = self.longer(after) if after > 0 else 1.0
        start, total = max(seconds, after), max(0.0, after - seconds)
        marks = [start, *(mark for mark in _GRID if start < mark < most), most]
        if start >= most or running <= 0:
            return total
        return total + sum((b - a) * (self.longer(a) + self.longer(b)) / 2 for a, b in pairwise(marks)) / running


def turnaround(seen: Sequence[SeenBatch], *, rows: int, at: datetime) -> Turnaround:
    """Return the survival function of a batch of `rows` rows sent `at`, from batches of the same backend and model.

    The estimate is Kaplan-Meier, with `PRIOR_NIGHTS` prior nights mixed in. Running batches are censored
    observations. Recent batches and batches of similar size and hour weigh more.

    Batches of one night are correlated. So only the slowest batch of each hour counts, and a night weighs at most 1.
    Two nights may weigh more. The newest earlier night gains weight if slow nights come in a row. The night of `at`
    weighs more than all other nights together.
    """
    ends, risks = [0.0] * len(_GRID), [0.0] * len(_GRID)
    for weight, one in _weighted_batches(seen, rows, at):
        step = bisect_left(_GRID, one.seconds)
        if one.ended and step < len(_GRID):
            ends[step] += weight
            risks[step] += weight
        elif step:
            risks[step - 1] += weight  # censored: at risk up to the mark before
    at_risk, survival, before, curve = sum(risks), 1.0, 1.0, []
    for prior, ended, leaving in zip(_PRIOR_SURVIVAL, ends, risks, strict=True):
        running = PRIOR_NIGHTS * before + at_risk
        survival *= max(0.0, 1.0 - (PRIOR_NIGHTS * (before - prior) + ended) / running) if running > 1e-9 else 1.0
        at_risk, before = at_risk - leaving, prior
        curve.append(survival)
    count = len({night_of(one.at) for one in seen})
    return Turnaround(tuple(curve), source(count, "nights", ENOUGH_NIGHTS), count >= ENOUGH_NIGHTS)


_HALF_LIFE = 30.0 * DAY


def _weighted_batches(seen: Sequence[SeenBatch], rows: int, at: datetime) -> list[tuple[float, SeenBatch]]:
    """Return the slowest batch of each hour with its weight.

    The hours of a night weigh at most 1 together. Afterwards, the newest earlier night and the night of `at` gain
    weight.
    """
    nights: dict[date, dict[datetime, list[SeenBatch]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        nights[night_of(one.at)][one.at.replace(minute=0, second=0, microsecond=0)].append(one)
    earlier, tonight = [], []
    for night, hours in nights.items():
        slowest = [max(batches, key=lambda one: (one.seconds, not one.ended)) for batches in hours.values()]
        likeness = [_likeness(one, rows, at) for one in slowest]
        total = max(1.0, sum(likeness))
        weighted = [(weight / total, one) for weight, one in zip(likeness, slowest, strict=True)]
        if night == night_of(at):
            tonight = weighted
        else:
            earlier += weighted
    others = PRIOR_NIGHTS + sum(weight for weight, _ in earlier)
    if odds := _persistence_odds(nights, at):
        last = max(night for night in nights if night < night_of(at))
        newest = sum(weight for weight, one in earlier if night_of(one.at) == last)
        more = 1.0 + odds * others / newest
        earlier = [(weight * (more if night_of(one.at) == last else 1.0), one) for weight, one in earlier]
        others = PRIOR_NIGHTS + sum(weight for weight, _ in earlier)
    return earlier + [(weight * TONIGHT_WEIGHT * others, one) for weight, one in tonight]


def _persistence_odds(nights: Mapping[date, Mapping[datetime, Sequence[SeenBatch]]], at: datetime) -> float:
    """Return the weight to add to the newest earlier night, as a multiple of all earlier nights and the prior.

    The result is large if slow nights come in a row. It is r / (1 - r), and r is the autocorrelation of run times
    from night to night. r falls with the number of days since the newest earlier night.
    """
    earlier = sorted(night for night in nights if night < night_of(at))
    if len(earlier) < 2:
        return 0.0
    slowest = [
        max((one for batches in nights[night].values() for one in batches), key=lambda one: one.seconds)
        for night in earlier
    ]
    ended = [math.log(one.seconds) for one in slowest if one.ended]
    if not ended:
        return 0.0
    mean = sum(ended) / len(ended)
    # A censored batch may have run longer, so it does not count as fast.
    deviations = [max(math.log(one.seconds) - mean, -math.inf if one.ended else 0.0) for one in slowest]
    covariance = sum(a * b for a, b in pairwise(deviations))
    share = max(0.0, covariance) / (_PRIOR_SQUARES + sum(each * each for each in deviations))
    share = math.pow(share, (night_of(at) - earlier[-1]).days)
    return share / (1.0 - share)


def _likeness(one: SeenBatch, rows: int, at: datetime) -> float:
    """Return a batch's weight: halved per factor of 10 in size, per 6 hours of time of day, and per 30 days of
    age.
    """
    size = abs(math.log10(max(1, one.rows) / max(1, rows)))
    age = abs((one.at - at).total_seconds())
    hour = min(age % DAY, DAY - age % DAY) / (6 * HOUR)
    return float(0.5 ** (size + hour + age / _HALF_LIFE))
