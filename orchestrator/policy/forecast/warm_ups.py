"""Warm-up of an engine: its slower rate in the first minutes of its work, learned from earlier nights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import compress, zip_longest

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import MINUTE
from orchestrator.policy.forecast.observed_nights import LEVEL_QUANTILE, Stint, quantile

_STEP = 10 * MINUTE
"""Length of a step of the profile, in seconds."""
_STEPS = 6
"""Maximum number of steps of the profile."""
_MIN_EFFECT = 0.3
"""Smallest effect of a warm-up step: log(usual rate / rate). The first smaller effect ends the warm-up."""
_PRIOR_NIGHTS = 0.5
"""Weight, in nights, of the prior that an engine has no warm-up."""
_SLOWEST = 0.1
"""Quantile of a step's observed rates that counts as the rate of the slowest starts."""
_COOLS = timedelta(minutes=10)
"""An engine without rows for this long may have to warm up again."""
_DECAY = 0.88
"""Each newer night multiplies the weight of all older nights by this."""


class WarmUp(Struct, frozen=True):
    """An engine's rate in each step after its start, as a share of its usual rate.

    A step has `_STEP` seconds. `shares` has the usual share of each step, `slowest` the share of the slowest starts.
    After the last step, the share is 1.
    """

    shares: tuple[float, ...] = ()
    slowest: tuple[float, ...] = ()

    def lost_seconds(self, age: float) -> float:
        """Return the time that the rest of the warm-up loses, in seconds of work at the usual rate.

        `age` is the number of seconds since the engine began to work.
        """
        spans = ((max(age, step * _STEP), (step + 1) * _STEP, share) for step, share in enumerate(self.shares))
        return sum((end - begin) * (1.0 - share) for begin, end, share in spans if end > begin)

    def at_usual_rate(self, stints: Sequence[Stint], usual: float) -> list[Stint]:
        """Return the stints with the work that the engine would have done without its warm-up.

        A rate below `usual` is raised to `usual`, but at most by the factor that the slowest starts need. So a slow
        start does not make a night slow.
        """
        if not self.slowest:
            return list(stints)
        return [
            _times(one, min(1.0 / self._least(age), max(1.0, usual / one.rate))) if one.work > 0 else one
            for age, one in zip(_ages(stints, _begins(stints)), stints, strict=True)
        ]

    def _least(self, age: float) -> float:
        step = int(age / _STEP)
        return self.slowest[step] if step < len(self.slowest) else 1.0


def warm_up(nights: Sequence[Sequence[Stint]]) -> WarmUp:
    """Learn an engine's warm-up from the windows of earlier nights, newest first."""
    by_step: list[list[tuple[float, float]]] = [[] for _ in range(_STEPS)]
    seen: list[list[tuple[float, float]]] = [[] for _ in range(_STEPS)]
    for newer, stints in enumerate(nights):
        for step, (effect, is_seen) in enumerate(_effects(stints)):
            by_step[step].append((effect, _DECAY**newer))
            if is_seen:
                seen[step].append((effect, _DECAY**newer))
    shares = tuple(_leading_shares(by_step, 0.5))
    if not shares:
        return WarmUp()
    slow = tuple(_leading_shares(seen, _SLOWEST))
    return WarmUp(shares, tuple(min(pair) for pair in zip_longest(shares, slow, fillvalue=1.0)))


def _effects(stints: Sequence[Stint]) -> Iterator[tuple[float, bool]]:
    """Yield each step's effect, and True if the night has a window in the step.

    The effect is the logarithm of the step's rate relative to the rate in later steps of the night. A step without a
    window repeats the effect of the previous step. Windows in a standstill or next to it do not count. Ends if too
    little later work remains.
    """
    rates = [one.rate for one in stints]
    works = [min(rates[max(0, place - 1) : place + 2]) > 0 for place in range(len(rates))]
    begin = [one.begin for one in stints[:1]]  # after a pause, the engine may still be warm
    ages = compress(zip(_ages(stints, begin * len(stints)), stints, strict=True), works)
    steps = [(int(age / _STEP), one) for age, one in ages]
    effect = 0.0
    for step in range(_STEPS):
        found = [one for at, one in steps if at == step]
        after = [one for at, one in steps if at > step]
        if sum(one.seconds for one in after) < _STEP:
            return
        level = quantile([(one.rate, one.seconds) for one in after], LEVEL_QUANTILE)
        if found and level > 0:
            rate = sum(one.work for one in found) / sum(one.seconds for one in found)
            effect = math.log(max(rate / level, 0.05))
        yield effect, bool(found)


def _leading_shares(by_step: Sequence[Sequence[tuple[float, float]]], part: float) -> Iterator[float]:
    """Yield the quantile at `part` of each step's share. Ends at the first step whose share is about 1."""
    for effects in by_step:
        count = sum(weight for _, weight in effects)
        effect = quantile(effects, part) * count / (count + _PRIOR_NIGHTS)
        if effect > -_MIN_EFFECT:
            return
        yield math.exp(effect)


def _times(one: Stint, factor: float) -> Stint:
    return replace(one, rows=one.rows * factor, tokens=one.tokens * factor) if factor > 1.0 else one


def age(stints: Sequence[Stint], now: datetime) -> float:
    """Return the seconds since the engine last began to work tonight. Returns 0 if it has had no rows for
    `_COOLS`.
    """
    if not stints or now - stints[-1].end > _COOLS:
        return 0.0
    return (now - _begins(stints)[-1]).total_seconds()


def _ages(stints: Sequence[Stint], begins: Sequence[datetime]) -> list[float]:
    each = zip(begins, stints, strict=True)
    return [(one.begin - begin).total_seconds() + one.seconds / 2 for begin, one in each]


def _begins(stints: Sequence[Stint]) -> list[datetime]:
    begins: list[datetime] = []
    for one, before in zip(stints, [None, *stints], strict=False):
        begins.append(one.begin if before is None or one.begin - before.end > _COOLS else begins[-1])
    return begins
