"""How fast an engine, or a provider's synchronous API, answers rows; and how that may change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import DAY, HOUR, MINUTE

NORMAL = NormalDist()
_PRIOR = 5.0
"""How many times of one's own weigh as much as what is assumed; which counts the less the more there are."""
_PRIOR_POINTS = 24
_PRIOR_SPREAD = 0.6
_HALF_LIFE = 30.0 * DAY
_FADE = 0.93
"""What each newer one leaves of the weight of those before it."""
_KERNEL = tuple(NORMAL.inv_cdf((part + 0.5) / 9) for part in range(9))
"""A normal spread of one, in as many marks."""
_PRIOR_SEEN = 2.0
"""What the assumed spread weighs beside that of what was seen."""
_ALONE = 3.0
"""What took more than so many times as long as any other is believed that far, until it happens again."""


class Wait(Struct, frozen=True):
    """How long something took that began `at`, in seconds."""

    at: datetime
    seconds: float


def longest(
    seen: Sequence[Wait], *, assumed: float, at: datetime, chance: float = 0.99, smoothed: bool = False
) -> float:
    """What such a wait does not exceed with this chance, in seconds.

    A quantile of what was seen, recent ones first, mixed with what is `assumed` to be the longest. A single one that
    stands out counts only so far, and all of them fade, so nothing is learned for good. Where it is `smoothed`, the
    longest that was seen is not taken for the longest there is: for waits that differ widely, of which few are seen.
    """
    known = _weighed(seen, assumed, at)
    marks = _marks(_smoothed(known) if smoothed else known, assumed, len(known))
    bound = chance * sum(weight for _, weight in marks)
    so_far = 0.0
    for seconds, weight in marks:
        so_far += weight
        if so_far >= bound:
            return seconds
    return marks[-1][0]


def beyond(seconds: float, seen: Sequence[Wait], *, assumed: float, at: datetime) -> float:
    """P(such a wait takes longer than this), where the longest that was seen is not the longest there is."""
    known = _weighed(seen, assumed, at)
    marks = _marks(_smoothed(known), assumed, len(known))
    return sum(weight for mark, weight in marks if mark > seconds) / sum(weight for _, weight in marks)


def _marks(known: Iterable[tuple[float, float]], assumed: float, count: int) -> list[tuple[float, float]]:
    """How long it may take, each with its weight, the shortest first, where so many were seen."""
    return sorted([*_prior(assumed, _PRIOR / (1.0 + count / 2.0)), *known])


def _smoothed(known: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The same, each spread out as far as so few tell of those to come."""
    if not known:
        return
    whole = sum(weight for _, weight in known)
    mean = sum(weight * math.log(seconds) for seconds, weight in known) / whole
    off = sum(weight * (math.log(seconds) - mean) ** 2 for seconds, weight in known)
    spread = math.sqrt((_PRIOR_SEEN * _PRIOR_SPREAD**2 + off) / (_PRIOR_SEEN + whole)) * len(known) ** -0.2
    for seconds, weight in known:
        yield from ((seconds * math.exp(spread * step), weight / len(_KERNEL)) for step in _KERNEL)


def _prior(assumed: float, weight: float) -> list[tuple[float, float]]:
    """A log-normal wait whose longest (99 %) is the one assumed, as marks with their weights."""
    middle = assumed * math.exp(-_PRIOR_SPREAD * NORMAL.inv_cdf(0.99))
    parts = [(part + 0.5) / _PRIOR_POINTS for part in range(_PRIOR_POINTS)]
    marks = [middle * math.exp(_PRIOR_SPREAD * NORMAL.inv_cdf(part)) for part in parts]
    return [(mark, weight / (_PRIOR_POINTS + 1)) for mark in (*marks, assumed)]


def _weighed(seen: Sequence[Wait], assumed: float, at: datetime) -> list[tuple[float, float]]:
    known = sorted((one for one in seen if math.isfinite(one.seconds)), key=lambda one: one.at, reverse=True)
    if not known:
        return []
    top = max(known, key=lambda one: one.seconds)
    most = _ALONE * max((one.seconds for one in known if one is not top), default=assumed / _ALONE)
    found = []
    for newer, one in enumerate(known):
        age = max(0.0, (at - one.at).total_seconds())
        weight = _FADE**newer * 0.5 ** (age / _HALF_LIFE)
        found.append((max(1.0, min(one.seconds, max(most, assumed)) if one is top else one.seconds), weight))
    return found


LEAST_SPREAD = 0.05
ASSUMED_HAZARD = 0.0002
"""Outages an hour, of what was never seen to have one."""
ASSUMED_OUTAGE = HOUR
_SETTLED = 10.0 * MINUTE
_CHANGED = 2.5
"""A rate this many standard deviations off what is expected is another rate, not luck."""
_UNSURE = 0.3
"""The spread of a rate that has changed before our eyes: it may change again."""


class Pace(Struct, frozen=True):
    """What an upstream does: `rate` rows a second (the median), `spread` of its logarithm.

    `ahead` rows of others go first; `start` seconds pass before anything does, where it does not run yet. `hazard` is
    the number of outages an hour, of about `outage` seconds each. `steps` say by how much it is usually faster or
    slower later on: (seconds from now, factor). `is_known` tells what was seen from what is assumed. `often` is how
    many outages an hour were seen: those few may be bad luck, so `hazard` is less.
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
    often: float = 0.0

    def full(self, seconds: float) -> float:
        """Seconds at its present rate that do as much as the next `seconds` do."""
        if not self.steps:
            return seconds
        total, at, factor = 0.0, 0.0, 1.0
        for begin, each in self.steps:
            if begin >= seconds:
                break
            total, at, factor = total + factor * (begin - at), begin, each
        return total + factor * (seconds - at)

    def _until(self, full: float) -> float:
        """By when it has done as much as in so many seconds at its present rate."""
        at, factor = 0.0, 1.0
        for begin, each in self.steps:
            part = factor * (begin - at)
            if part >= full:
                break
            full, at, factor = full - part, begin, each
        return at + full / factor if factor > 0 else math.inf

    def seconds_for(self, rows: float, chance: float = 0.5) -> float:
        """By when so many rows are done, with this chance; infinite where nothing moves."""
        if rows <= 0:
            return 0.0
        if self.rate <= 0:
            return math.inf
        slow = math.exp(NORMAL.inv_cdf(chance) * self.spread)
        return self._until(self.full(self.start) + slow * (self.ahead + rows) / self.rate)

    def within(self, openings: tuple[tuple[float, float], ...]) -> Pace:
        """The same where nothing is done outside some hours: `openings` are (seconds from now, 1 or 0) in turn.

        What has not started yet starts once they open.
        """
        if not openings:
            return self
        is_open = not openings[0][1]
        turns = ((0.0, float(is_open)), *openings)
        base = ((0.0, 1.0), *self.steps)
        times = sorted({at for at, _ in (*turns, *base)})
        steps = tuple((at, _at(turns, at) * _at(base, at)) for at in times)
        start = self.start if is_open else openings[0][0] + self.start
        return replace(self, steps=steps, start=start)

    def now(self, rate: float, seconds: float, *, noise: float = LEAST_SPREAD, drift: float = LEAST_SPREAD) -> Pace:
        """The same on the day: it did `rate` over the last `seconds`, which says more than other days do.

        `noise` is how far a rate that is measured over ten minutes may be off, `drift` how far it moves from hour to
        hour (spreads of the logarithm).
        """
        if rate <= 0 or self.rate <= 0:
            return replace(self, rate=max(0.0, rate), source="measured as zero" if rate <= 0 else "measured")
        usual = max(self.spread, LEAST_SPREAD) ** 2
        today = drift**2 + (2 * noise) ** 2 * _SETTLED / max(seconds, 1.0)
        off = math.log(rate / self.rate)
        if abs(off) > _CHANGED * math.sqrt(usual + today):
            return replace(self, rate=rate, spread=max(_UNSURE, math.sqrt(today)), source="measured")
        mean = math.log(self.rate) + off * usual / (usual + today)
        left = usual * today / (usual + today)
        spread = max(LEAST_SPREAD, math.sqrt(left + drift**2))
        return replace(self, rate=math.exp(mean), spread=min(spread, max(self.spread, drift)), source="measured")


def within_hours(pace: Pace, usual: Pace, openings: tuple[tuple[float, float], ...], start: float) -> Pace:
    """What an engine does that has hours and starts in `start` seconds: `pace` is today's, `usual` other nights'.

    That it does nothing outside its hours says nothing of its speed, and that rows waited for them nothing of how
    long it takes to start.
    """
    if openings and openings[0][1]:
        return replace(usual, ahead=pace.ahead, start=start).within(openings)
    return replace(pace, start=min(pace.start, start)).within(openings)


def _at(steps: tuple[tuple[float, float], ...], seconds: float) -> float:
    """The factor that holds at a time."""
    return next(factor for begin, factor in reversed(steps) if begin <= seconds)
