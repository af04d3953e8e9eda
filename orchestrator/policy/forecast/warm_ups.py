"""The warm-up of an engine: how much slower it is in the first minutes of its work, learned from earlier nights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import compress

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import MINUTE
from orchestrator.policy.forecast.observed_nights import LEVEL_QUANTILE, Stint, median, quantile

_STEP = 10 * MINUTE
"""Length of a step of the profile, in seconds."""
_STEPS = 6
"""Longest profile, in steps."""
_MIN_EFFECT = 0.3
"""A step whose rate differs from the level by less than this (logarithm) ends the warm-up."""
_PRIOR_NIGHTS = 0.5
"""Weight of the prior that an engine is as fast at first as later, in nights."""
_DECAY = 0.88
"""Each newer night multiplies the weight of all older nights by this."""


class WarmUp(Struct, frozen=True):
    """Share of its usual rate that an engine does in each step after it began to work; 1 after the last step."""

    shares: tuple[float, ...] = ()

    def share(self, age: float) -> float:
        """Return the share of the usual rate, `age` seconds after the engine began to work."""
        step = int(age / _STEP)
        return self.shares[step] if step < len(self.shares) else 1.0

    def lost_seconds(self, age: float) -> float:
        """Return the seconds at the usual rate that the rest of the warm-up costs."""
        spans = ((max(age, step * _STEP), (step + 1) * _STEP, share) for step, share in enumerate(self.shares))
        return sum((end - begin) * (1.0 - share) for begin, end, share in spans if end > begin)

    def at_usual_rate(self, stints: Sequence[Stint]) -> list[Stint]:
        """Return the stints with the work that they would have done without the warm-up."""
        if not self.shares:
            return list(stints)
        shares = [self.share(age) for age in _ages(stints)]
        return [
            one if share == 1.0 else replace(one, rows=one.rows / share, tokens=one.tokens / share)
            for one, share in zip(stints, shares, strict=True)
        ]


def warm_up(nights: Sequence[Sequence[Stint]]) -> WarmUp:
    """Return what the windows of earlier nights, newest first, tell about an engine's first minutes."""
    by_step: list[list[tuple[float, float]]] = [[] for _ in range(_STEPS)]
    for newer, stints in enumerate(nights):
        for effects, effect in zip(by_step, _effects(stints), strict=False):
            effects.append((effect, _DECAY**newer))
    return WarmUp(tuple(_leading_shares(by_step)))


def _effects(stints: Sequence[Stint]) -> Iterator[float]:
    """Yield the logarithm of each step's rate relative to the later ones of its night.

    Standstills and the windows beside them do not count. A step without other windows is as slow as the one before.
    """
    rates = [one.rate for one in stints]
    works = [min(rates[max(0, place - 1) : place + 2]) > 0 for place in range(len(rates))]
    ages = compress(zip(_ages(stints), stints, strict=True), works)
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
        yield effect


def _leading_shares(by_step: Sequence[Sequence[tuple[float, float]]]) -> Iterator[float]:
    for effects in by_step:
        count = sum(weight for _, weight in effects)
        effect = median(list(effects)) * count / (count + _PRIOR_NIGHTS)
        if effect > -_MIN_EFFECT:
            return
        yield math.exp(effect)


def age(stints: Sequence[Stint], now: datetime) -> float:
    """Return the seconds since the engine began to work tonight; 0 if it has not."""
    return (now - stints[0].begin).total_seconds() if stints else 0.0


def _ages(stints: Sequence[Stint]) -> list[float]:
    """Return how long the engine had worked at the middle of each stint."""
    return [(one.begin - stints[0].begin).total_seconds() + one.seconds / 2 for one in stints]
