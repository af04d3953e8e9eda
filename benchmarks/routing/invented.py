"""Worlds of families that stand nowhere else: made to see if what is told comes true there, too."""

from __future__ import annotations

import math
import random

from benchmarks.routing.judged import MINUTE, ROWS, batch, engine, realtime
from benchmarks.routing.night import FULL, Job, Night, Speed
from benchmarks.routing.scenarios import HOUR, REALTIME, Scenario, one

WEEK = 7


def _weekend(chance: random.Random, at: int, count: int, state: float) -> Night:
    """On two nights of seven a provider has little: batches take four times as long, its API has 40 %."""
    is_weekend = at % WEEK >= 5
    slow = 4.0 if is_weekend else 1.0
    speed: Speed = ((0.0, 0.4 if is_weekend else 1.0),)
    options = (engine(chance, 0.0009, 0.4), realtime(chance, 3.0, speed=speed))
    return one(at, ROWS, 5 * HOUR, (batch(chance, 30 * slow, 80 * slow),), options)


def _price_rise(chance: random.Random, at: int, count: int, state: float) -> Night:
    """On a third of nights the API costs twice as much from some time on, and nobody said so."""
    rise = ((chance.uniform(0.2, 2.0) * HOUR, 2 * REALTIME),) if chance.random() < 0.33 else ((99 * HOUR, REALTIME),)
    return one(at, ROWS, 3 * HOUR, (), (engine(chance, 0.0014, 0.6), realtime(chance, 0.3, prices=rise)))


def _quota_night(chance: random.Random, at: int, count: int, state: float) -> Night:
    """On every second night the queue halves within the first hours, while the job's batches wait in it."""
    halves = chance.uniform(0.5, 3.0) * HOUR if chance.random() < 0.5 else math.inf
    batches = (batch(chance, 25, 50, room=600, halves=halves),)
    return one(at, ROWS, 4 * HOUR, batches, (engine(chance, 0.0009, 0.35), realtime(chance, 3.0)))


def _warming(chance: random.Random, at: int, count: int, state: float) -> Night:
    """An engine has a quarter of its speed for its first 20 to 40 minutes, at any hour."""
    speed = ((0.0, 0.25), (chance.uniform(20, 40) * MINUTE, 1.0))
    options = (engine(chance, 0.0003, 0.4, speed=speed), realtime(chance, 3.0))
    return one(at, ROWS, 2.5 * HOUR, (batch(chance, 60, 200),), options, hour=chance.randrange(24))


def _storms(chance: random.Random, at: int, count: int, state: float) -> Night:
    """Outages come in weeks: a provider that stood still last night mostly stands still again."""
    down = ((begin := chance.uniform(0.2, 1.5) * HOUR, begin + chance.uniform(1, 4) * HOUR),) if state else ()
    stands: Speed = ((0.0, 1.0), (down[0][0], 0.0), (down[0][1], 1.0)) if down else ((0.0, 1.0),)
    options = (engine(chance, 0.0009, 0.35), realtime(chance, 3.0, speed=stands))
    return one(at, ROWS, 6 * HOUR, (batch(chance, 20, 90, down=down),), options)


def _storm_path(chance: random.Random, count: int) -> list[float]:
    state, path = 0.0, []
    for _ in range(count):
        state = float(chance.random() < (0.75 if state else 0.06))
        path.append(state)
    return path


def _engine_back(chance: random.Random, at: int, count: int, state: float) -> Night:
    """A cheap engine stops for more than an hour on two nights of five: a dear API has its rows when it is back."""
    down = ((0.0, 1.0), (10 * MINUTE, 0.0), (chance.uniform(80, 100) * MINUTE, 1.0))
    speed = down if chance.random() < 0.4 else FULL
    options = (engine(chance, 0.0002, 0.5, speed=speed), realtime(chance, 0.35))
    return one(at, ROWS, 3 * HOUR, (), options)


def _two_sizes(chance: random.Random, at: int, count: int, state: float) -> Night:
    """A job of eight times the usual rows on one night of six."""
    rows = 8_000 if chance.random() < 1 / 6 else 1_000
    job = Job("job", rows, 4 * HOUR)
    options = (engine(chance, 0.0003, 0.5), realtime(chance, 3.0))
    return Night(at, (job,), (batch(chance, 20, 90 + rows / 60),), options)


INVENTED: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("weekend", "a provider is slow on two nights of seven, 5 h", _weekend),
        Scenario("price-rise", "an API doubles its price mid-job on a third of nights, 3 h", _price_rise),
        Scenario("quota-night", "the queue halves in the night on every second night, 4 h", _quota_night),
        Scenario("warming", "an engine is slow for half an hour after its start, 2.5 h", _warming),
        Scenario("storms", "outages of a provider come in weeks, 6 h", _storms, path=_storm_path),
        Scenario("engine-back", "an engine stops for more than an hour on two nights of five, 3 h", _engine_back),
        Scenario("two-sizes", "one job of six has eight times the rows, 4 h", _two_sizes),
    )
}  # fmt: skip
