"""Worlds in which a route changes while nobody uses it: what is known of it is old when it is needed."""

from __future__ import annotations

import math
import random

from benchmarks.routing.night import Night
from benchmarks.routing.scenarios import HOUR, Scenario, batch, local, one, realtime

BLOCK = 14
"""Nights for which a route stays as it is."""


def _is_other(at: int) -> bool:
    return at // BLOCK % 2 == 1


def _fallback_changes(chance: random.Random, at: int, count: int, state: float) -> Night:
    rate = 0.7 if _is_other(at) else 2.0
    engine = local(chance, 0.0010, rate, spread=0.1, nominal=None)
    return one(at, 8_000, 6 * HOUR, (batch(chance, bad=0.15),), (engine,))


def _fallbacks_change(chance: random.Random, at: int, count: int, state: float) -> Night:
    rate = 0.4 if _is_other(at) else 1.5
    engine = local(chance, 0.0009, rate, spread=0.1, nominal=None)
    api = realtime(chance, rate=1.0 if _is_other(at + BLOCK // 2) else 4.0)
    return one(at, 8_000, 5 * HOUR, (batch(chance, bad=0.15),), (engine, api))


def _fallback_drifts(chance: random.Random, at: int, count: int, state: float) -> Night:
    engine = local(chance, 0.0010, 1.5 * math.exp(state), spread=0.05, nominal=None)
    return one(at, 8_000, 6 * HOUR, (batch(chance, bad=0.15),), (engine,))


def _walk(chance: random.Random, count: int) -> list[float]:
    state, path = 0.0, []
    for _ in range(count):
        state = 0.97 * state + chance.gauss(0.0, 0.12)
        path.append(state)
    return path


def _cheap_batch_changes(chance: random.Random, at: int, count: int, state: float) -> Night:
    median = 7 * HOUR if _is_other(at) else 0.25 * HOUR
    cheap = batch(chance, name="cheap", price=0.0004, median=median, spread=0.3)
    return one(at, 8_000, 5 * HOUR, (cheap, batch(chance)), (realtime(chance),))


def _cheap_engine_changes(chance: random.Random, at: int, count: int, state: float) -> Night:
    engine = local(chance, 0.0003, 0.03 if _is_other(at) else 1.0, spread=0.1, nominal=None)
    return one(at, 8_000, 5 * HOUR, (batch(chance),), (engine, realtime(chance)))


UNUSED: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("fallback-changes", "the only rescue is a third as fast every other fortnight", _fallback_changes),
        Scenario("fallbacks-change", "two rescues, each a quarter as fast every other fortnight", _fallbacks_change),
        Scenario(
            "fallback-drifts", "the speed of the only rescue wanders from night to night", _fallback_drifts, _walk
        ),
        Scenario(
            "cheap-batch-changes", "the cheaper provider takes hours every other fortnight", _cheap_batch_changes
        ),
        Scenario(
            "cheap-engine-changes", "a cheap engine that next to stands every other fortnight", _cheap_engine_changes
        ),
    )
}
