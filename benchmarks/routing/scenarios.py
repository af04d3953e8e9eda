"""What nights are like. A scenario draws nights from a seed; add one by adding a function to `SCENARIOS`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.routing.night import FULL, BatchNight, Job, Night, Speed, SynchronousNight, Windows

HOUR = 3600.0
MONTH = 30
"""Nights of a month."""
BATCH, REALTIME, FLEX = 0.0005, 0.0010, 0.0006

Draw = Callable[[random.Random, int, int, float], Night]
"""A generator, the number of the night, how many there are, and what the night has from those before it."""
Path = Callable[[random.Random, int], list[float]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Nights of one kind. `path` draws what each night has from those before it; with `forgets`, every night is the
    first of its home. All nights of a month share a budget of `monthly` dollars."""

    name: str
    about: str
    draw: Draw
    path: Path | None = None
    forgets: bool = False
    monthly: float | None = None

    def nights(self, seed: int, count: int) -> list[Night]:
        """The nights of this seed, each from a generator of its own."""
        path = [0.0] * count
        if self.path is not None:
            path = self.path(random.Random(f"{seed}/{self.name}"), count)
        return [self.draw(random.Random(f"{seed}/{self.name}/{at}"), at, count, path[at]) for at in range(count)]


def batch(
    chance: random.Random,
    *,
    price: float = BATCH,
    median: float = 900.0,
    spread: float = 1.0,
    bad: float = 0.06,
    stuck: float = 0.015,
    down: Windows = (),
    room: int | None = None,
    name: str = "batch",
    cancel: float = 150.0,
    silent: Windows = (),
    hidden: bool = False,
) -> BatchNight:
    """A hosted batch: a log-normal time on most nights, hours on a bad one, and on a few it does not end at all."""
    draw = chance.random()
    if draw < stuck:
        seconds = 40 * HOUR
    elif draw < stuck + bad:
        seconds = chance.lognormvariate(math.log(5 * HOUR), 0.7)
    else:
        seconds = chance.lognormvariate(math.log(median), spread)
    jitter = tuple(chance.lognormvariate(0.0, 0.15) for _ in range(16))
    lag, takes = chance.uniform(0.2, 0.9), chance.lognormvariate(math.log(cancel), 0.5)
    return BatchNight(
        name, price, seconds, jitter, lag, min(takes, 4 * cancel), down=down, room=room, silent=silent, hidden=hidden,
        poll=chance.uniform(60.0, 150.0),
    )  # fmt: skip


def realtime(chance: random.Random, *, rate: float = 8.0, down: Windows = ()) -> SynchronousNight:
    """A provider's synchronous API under its rate limit."""
    drawn = rate * chance.lognormvariate(0.0, 0.12)
    return SynchronousNight("realtime", REALTIME, drawn, rate, start=5.0, speed=stands(down))


def stands(*windows: Windows) -> Speed:
    """At full speed but in these windows, where it stands still."""
    marks = {0.0: 1.0}
    for begin, end in sorted(window for one in windows for window in one):
        marks[begin] = 0.0
        marks[end] = 1.0
    return tuple(sorted(marks.items()))


def flex(chance: random.Random) -> SynchronousNight:
    """Cheap, as fast as there is room, and at times there is none."""
    down = outage(chance, 0.4, 4 * HOUR, HOUR, 2 * HOUR)
    return SynchronousNight("flex", FLEX, 4.0 * chance.lognormvariate(0.0, 0.5), 4.0, start=5.0, speed=stands(down))


def local(
    chance: random.Random,
    price: float,
    rate: float,
    *,
    spread: float = 0.2,
    ahead: float = 0.0,
    speed: Speed = FULL,
    start: float = 90.0,
    nominal: float | None = 0.0,
    cools: float = math.inf,
) -> SynchronousNight:
    """One's own GPU; `nominal` is what its operator states, the rate unless told otherwise."""
    drawn, stated = rate * chance.lognormvariate(0.0, spread), rate if nominal == 0.0 else nominal
    return SynchronousNight(
        "local", price, drawn, stated, ahead=ahead, start=start, speed=speed, location="local", cools=cools
    )


def outage(chance: random.Random, share: float, within: float, least: float, most: float) -> Windows:
    """One outage with this probability, that begins within so many seconds."""
    if chance.random() >= share:
        return ()
    begin = chance.uniform(0, within)
    return ((begin, begin + chance.uniform(least, most)),)


def one(
    number: int,
    rows: int,
    deadline: float,
    batches: tuple[BatchNight, ...],
    sync_options: tuple[SynchronousNight, ...],
    *,
    hour: int = 20,
    slow: float = 1.0,
    budget: float | None = None,
    local_only: bool = False,
    reduces: int = 0,
    again: float = 0.0,
) -> Night:
    """A night of one job."""
    job = Job("job", rows, deadline, budget=budget, local_only=local_only, reduces=reduces, again=again)
    return Night(number, (job,), batches, sync_options, hour, slow)


def _evening(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 8 * HOUR, (batch(chance),), (local(chance, 0.0008, 1.0), realtime(chance)))


def _hour(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, HOUR, (batch(chance),), (local(chance, 0.0008, 1.5), realtime(chance)))


def _three_hours(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 3 * HOUR, (batch(chance),), (flex(chance), realtime(chance)))


def _no_choice(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(
        at, 8_000, 0.6 * HOUR, (batch(chance, median=3 * HOUR),), (local(chance, 0.0004, 0.3), realtime(chance))
    )


def _long(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 30 * HOUR, (batch(chance, stuck=0.05),), (local(chance, 0.0008, 0.5), realtime(chance)))


def _bad_nights(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(
        at, 8_000, 6 * HOUR, (batch(chance, bad=0.22, stuck=0.05),), (local(chance, 0.0008, 1.0), realtime(chance))
    )


def _outages(chance: random.Random, at: int, count: int, state: float) -> Night:
    # The whole provider stands still: its batches and its realtime API.
    down = outage(chance, 0.15, 5 * HOUR, 0.5 * HOUR, 2.5 * HOUR)
    sync_options = (local(chance, 0.0009, 0.8), realtime(chance, down=down))
    return one(at, 8_000, 5 * HOUR, (batch(chance, down=down),), sync_options)


def _quota(chance: random.Random, at: int, count: int, state: float) -> Night:
    sync_options = (local(chance, 0.0008, 1.0), realtime(chance))
    return one(at, 8_000, 6 * HOUR, (batch(chance, room=2_000, median=1200.0),), sync_options)


def _price_change(chance: random.Random, at: int, count: int, state: float) -> Night:
    price = BATCH if at < count // 2 else 0.0009
    return one(at, 8_000, 5 * HOUR, (batch(chance, price=price),), (local(chance, 0.0006, 0.8), realtime(chance)))


def _idle_gpu(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 12_000, 8 * HOUR, (batch(chance),), (local(chance, 0.0001, 0.25, spread=0.25), realtime(chance)))


def _fast_gpu(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 4 * HOUR, (batch(chance),), (local(chance, 0.0002, 2.0), realtime(chance)))


def _failing_gpu(chance: random.Random, at: int, count: int, state: float) -> Night:
    down: Windows = ()
    if chance.random() < 0.2:
        begin = chance.uniform(0, 3 * HOUR)
        down = ((begin, begin + (chance.uniform(HOUR, 2 * HOUR) if chance.random() < 0.5 else 1000 * HOUR)),)
    return one(
        at, 8_000, 5 * HOUR, (batch(chance),), (local(chance, 0.0002, 0.8, speed=stands(down)), realtime(chance))
    )


def _growing(chance: random.Random, at: int, count: int, state: float) -> Night:
    part = at / count
    rows = int(4_000 + 14_000 * part)
    sync_options = (local(chance, 0.0003, 1.0, ahead=6_000 * part * chance.uniform(0.7, 1.3)), realtime(chance))
    return one(at, rows, 4 * HOUR, (batch(chance),), sync_options)


def _slow_sure(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 6 * HOUR, (batch(chance),), (local(chance, 0.0010, 1.0, spread=0.25),))


def _local_only(chance: random.Random, at: int, count: int, state: float) -> Night:
    sync_options = (
        local(chance, 0.0008, 1.0, speed=stands(outage(chance, 0.02, 2 * HOUR, HOUR, 4 * HOUR))),
        realtime(chance),
    )
    return one(at, 8_000, 6 * HOUR, (batch(chance),), sync_options, local_only=True)


def _tight_budget(chance: random.Random, at: int, count: int, state: float) -> Night:
    # Realtime would cost $8: what the budget pays for is the batch, and the GPU in time.
    sync_options = (local(chance, 0.0006, 1.2), realtime(chance))
    return one(at, 8_000, 5 * HOUR, (batch(chance),), sync_options, budget=6.0)


def _two_providers(chance: random.Random, at: int, count: int, state: float) -> Night:
    batches = (batch(chance, room=4_000), batch(chance, price=0.00055, name="batch2", median=1800.0, room=6_000))
    return one(at, 12_000, 5 * HOUR, batches, (local(chance, 0.0008, 0.6), realtime(chance)))


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("evening", "8 h, all routes, local dearer than batch", _evening),
        Scenario("hour", "1 h", _hour),
        Scenario("three-hours", "3 h, flex with outages beside realtime", _three_hours),
        Scenario("no-choice", "36 min: only realtime makes it", _no_choice),
        Scenario("long", "30 h: beyond the batch window of 24 h", _long),
        Scenario("bad-nights", "27 % of nights take hours or do not end, 6 h", _bad_nights),
        Scenario("outages", "the provider's batches and realtime stand still together, 5 h", _outages),
        Scenario("quota", "a quarter of the rows fits the queue at a time, 6 h", _quota),
        Scenario("price-change", "half-way the batch price goes from 0.5 to 0.9, 5 h", _price_change),
        Scenario("idle-gpu", "a nearly free GPU that can do 60 % of the rows, 8 h", _idle_gpu),
        Scenario("fast-gpu", "a cheap GPU that can do all of them, 4 h", _fast_gpu),
        Scenario("failing-gpu", "a cheap GPU that stops on every fifth night, 5 h", _failing_gpu),
        Scenario("growing", "rows and the GPU's queue grow over the nights, 4 h", _growing),
        Scenario("slow-sure", "batch, and a GPU at twice its price; no realtime, 6 h", _slow_sure),
        Scenario("local-only", "a job marked local, 6 h", _local_only),
        Scenario("tight-budget", "the budget does not pay for realtime, 5 h", _tight_budget),
        Scenario("two-providers", "two batch providers with quotas, 5 h", _two_providers),
    )
}
