"""How long what is short takes: a cancel until its rows are free, an engine's start, a merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from statistics import NormalDist

from msgspec import Struct

from orchestrator.core.durations import DAY

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
