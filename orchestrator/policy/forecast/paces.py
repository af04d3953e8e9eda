"""Rate of an engine or a synchronous API, and the distribution of short waits: a cancel, a start, a merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import DAY, HOUR, MINUTE

NORMAL = NormalDist()
_PRIOR_WEIGHT = 5.0
"""Weight of the prior without observations. It falls as 1 / (1 + count / 2)."""
_PRIOR_POINTS = 24
_PRIOR_SPREAD = 0.6
_HALF_LIFE = 30.0 * DAY
_DECAY = 0.93
"""Exponential decay weight: each newer observation multiplies the weight of all older ones by this."""
_KERNEL_STEPS = tuple(NORMAL.inv_cdf((part + 0.5) / 9) for part in range(9))
"""Mid-quantiles of a standard normal kernel, in nine equal parts."""
_SPREAD_PRIOR_WEIGHT = 2.0
"""Weight of the prior variance, as a number of observations."""
_OUTLIER_FACTOR = 3.0
"""Factor that caps the longest wait, which may be an outlier.

The cap is this multiple of the second longest wait, but at least the assumed wait.
"""


class Wait(Struct, frozen=True):
    """A wait of `seconds` that began `at`."""

    at: datetime
    seconds: float


def wait_quantile(
    seen: Sequence[Wait], *, assumed: float, at: datetime, chance: float = 0.99, smoothed: bool = False
) -> float:
    """Return the quantile at `chance` of a wait, in seconds, based on the waits in `seen`.

    The distribution mixes weighted observations with a log-normal prior, whose 99 % quantile is `assumed`. An
    observation loses weight with age and with each newer observation. The longest wait is capped, because it may be
    an outlier. `smoothed` applies a log-normal kernel, so the tail may exceed the longest observation. Use `smoothed`
    for few, widely spread waits.
    """
    observed = _weighted_waits(seen, assumed, at)
    marks = _distribution(_smooth(observed) if smoothed else observed, assumed, len(observed))
    bound = chance * sum(weight for _, weight in marks)
    cumulative = 0.0
    for seconds, weight in marks:
        cumulative += weight
        if cumulative >= bound:
            return seconds
    return marks[-1][0]


def exceedance(seconds: float, seen: Sequence[Wait], *, assumed: float, at: datetime) -> float:
    """Return P(a wait exceeds `seconds`), from the kernel-smoothed distribution of the waits in `seen`."""
    observed = _weighted_waits(seen, assumed, at)
    marks = _distribution(_smooth(observed), assumed, len(observed))
    return sum(weight for mark, weight in marks if mark > seconds) / sum(weight for _, weight in marks)


def _distribution(points: Iterable[tuple[float, float]], assumed: float, count: int) -> list[tuple[float, float]]:
    return sorted([*_prior_points(assumed, _PRIOR_WEIGHT / (1.0 + count / 2.0)), *points])


def _smooth(observed: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield each observation as a log-normal kernel with a bandwidth of spread · n^(-1/5)."""
    if not observed:
        return
    total = sum(weight for _, weight in observed)
    mean = sum(weight * math.log(seconds) for seconds, weight in observed) / total
    squares = sum(weight * (math.log(seconds) - mean) ** 2 for seconds, weight in observed)
    spread = (
        math.sqrt((_SPREAD_PRIOR_WEIGHT * _PRIOR_SPREAD**2 + squares) / (_SPREAD_PRIOR_WEIGHT + total))
        * len(observed) ** -0.2
    )
    for seconds, weight in observed:
        yield from ((seconds * math.exp(spread * step), weight / len(_KERNEL_STEPS)) for step in _KERNEL_STEPS)


def _prior_points(assumed: float, weight: float) -> list[tuple[float, float]]:
    """Return (seconds, weight) points of a log-normal distribution whose 99 % quantile is `assumed`."""
    middle = assumed * math.exp(-_PRIOR_SPREAD * NORMAL.inv_cdf(0.99))
    parts = [(part + 0.5) / _PRIOR_POINTS for part in range(_PRIOR_POINTS)]
    marks = [middle * math.exp(_PRIOR_SPREAD * NORMAL.inv_cdf(part)) for part in parts]
    return [(mark, weight / (_PRIOR_POINTS + 1)) for mark in (*marks, assumed)]


def _weighted_waits(seen: Sequence[Wait], assumed: float, at: datetime) -> list[tuple[float, float]]:
    observed = sorted((one for one in seen if math.isfinite(one.seconds)), key=lambda one: one.at, reverse=True)
    if not observed:
        return []
    longest = max(observed, key=lambda one: one.seconds)
    cap = _OUTLIER_FACTOR * max(
        (one.seconds for one in observed if one is not longest), default=assumed / _OUTLIER_FACTOR
    )
    weighted = []
    for newer, one in enumerate(observed):
        age = max(0.0, (at - one.at).total_seconds())
        weight = _DECAY**newer * 0.5 ** (age / _HALF_LIFE)
        weighted.append((max(1.0, min(one.seconds, max(cap, assumed)) if one is longest else one.seconds), weight))
    return weighted


LEAST_SPREAD = 0.05
"""Lower bound of every spread: the standard deviation of a rate's logarithm."""
ASSUMED_HAZARD = 0.0002
"""Assumed outages per hour before any outage was observed."""
ASSUMED_OUTAGE = HOUR
"""Assumed length of an outage, in seconds, before any outage was observed."""
_NOISE_SECONDS = 10.0 * MINUTE
"""Seconds of measurement to which the `noise` of `Pace.now` refers. Noise variance falls as 1 / seconds."""
_CHANGE_SIGMAS = 2.5
"""A measured rate this many standard deviations from the forecast replaces the forecast: the engine has changed."""
_CHANGED_SPREAD = 0.3
"""Spread of a rate that changed tonight, and so may change again."""


class Pace(Struct, frozen=True):
    """Log-normal rate of an upstream: median `rate` in rows a second, `spread` of its logarithm.

    `source` describes the data behind the forecast. `ahead` rows of other jobs are done first. A stopped engine needs
    `start` seconds to start. `hazard` is the expected number of outages an hour, `observed_hazard` the observed
    number. An outage lasts `outage` seconds on average. `steps` is the hourly profile: (seconds from now, factor on
    `rate`). `is_known` is True if at least `ENOUGH_NIGHTS` nights were observed. `stands` is P(a standstill seen
    tonight still lasts), or 0 if no standstill was seen. In a standstill, an engine finishes no row.
    """

    rate: float
    spread: float
    source: str
    ahead: float = 0.0
    start: float = 0.0
    hazard: float = ASSUMED_HAZARD
    outage: float = ASSUMED_OUTAGE
    steps: tuple[tuple[float, float], ...] = ()
    is_known: bool = False
    observed_hazard: float = 0.0
    stands: float = 0.0

    def equivalent_seconds(self, seconds: float) -> float:
        """Return the integral of the hourly profile over the next `seconds`, as seconds at the present rate."""
        if not self.steps:
            return seconds
        total, at, factor = 0.0, 0.0, 1.0
        for begin, each in self.steps:
            if begin >= seconds:
                break
            total, at, factor = total + factor * (begin - at), begin, each
        return total + factor * (seconds - at)

    def _time_of(self, full: float) -> float:
        """Return the seconds from now that do as much work as `full` seconds at the present rate.

        This is the inverse of `equivalent_seconds`.
        """
        at, factor = 0.0, 1.0
        for begin, each in self.steps:
            part = factor * (begin - at)
            if part >= full:
                break
            full, at, factor = full - part, begin, each
        return at + full / factor if factor > 0 else math.inf

    def seconds_for(self, rows: float, chance: float = 0.5) -> float:
        """Return the quantile at `chance` of the seconds until `rows` rows are done. Returns infinity if the rate is
        0.
        """
        if rows <= 0:
            return 0.0
        if self.rate <= 0:
            return math.inf
        slow = math.exp(NORMAL.inv_cdf(chance) * self.spread)
        return self._time_of(self.equivalent_seconds(self.start) + slow * (self.ahead + rows) / self.rate)

    def within(self, openings: tuple[tuple[float, float], ...]) -> Pace:
        """Restrict the rate to opening hours. `openings` alternates (seconds from now, 1 for open or 0 for closed).

        An engine that is closed now starts at its next opening.
        """
        if not openings:
            return self
        is_open = not openings[0][1]
        turns = ((0.0, float(is_open)), *openings)
        base = ((0.0, 1.0), *self.steps)
        times = sorted({at for at, _ in (*turns, *base)})
        steps = tuple((at, _factor_at(turns, at) * _factor_at(base, at)) for at in times)
        start = self.start if is_open else openings[0][0] + self.start
        return replace(self, steps=steps, start=start)

    def now(self, rate: float, seconds: float, *, noise: float = LEAST_SPREAD, drift: float = LEAST_SPREAD) -> Pace:
        """Return the forecast updated with tonight's `rate`, measured over the last `seconds`.

        The result is the normal posterior of the logarithm, with the forecast as its prior. `noise` is half the
        spread of a rate measured over ten minutes. `drift` is the standard deviation of the rate's logarithm within a
        night. If `rate` is 0 or far from the forecast, it replaces the forecast.
        """
        if rate <= 0 or self.rate <= 0:
            return replace(self, rate=max(0.0, rate), source="measured as zero" if rate <= 0 else "measured")
        usual = max(self.spread, LEAST_SPREAD) ** 2
        today = drift**2 + (2 * noise) ** 2 * _NOISE_SECONDS / max(seconds, 1.0)
        deviation = math.log(rate / self.rate)
        if abs(deviation) > _CHANGE_SIGMAS * math.sqrt(usual + today):
            return replace(self, rate=rate, spread=max(_CHANGED_SPREAD, math.sqrt(today)), source="measured")
        mean = math.log(self.rate) + deviation * usual / (usual + today)
        posterior = usual * today / (usual + today)
        spread = max(LEAST_SPREAD, math.sqrt(posterior + drift**2))
        return replace(self, rate=math.exp(mean), spread=min(spread, max(self.spread, drift)), source="measured")


def within_hours(pace: Pace, usual: Pace, openings: tuple[tuple[float, float], ...], start: float) -> Pace:
    """Return the pace of an engine that has opening hours and takes `start` seconds to start.

    `pace` is tonight's forecast, `usual` the forecast from earlier nights. While the engine is closed, `usual`
    counts: tonight's standstill says nothing about its speed.
    """
    if openings and openings[0][1]:
        return replace(usual, ahead=pace.ahead, start=start).within(openings)
    return replace(pace, start=min(pace.start, start)).within(openings)


def _factor_at(steps: tuple[tuple[float, float], ...], seconds: float) -> float:
    return next(factor for begin, factor in reversed(steps) if begin <= seconds)
