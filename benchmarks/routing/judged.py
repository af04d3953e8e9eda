"""Worlds in which decisions are judged, each of about 2,000 rows a night: a row costs $0.001 row by row, half of
that in a batch. Engines are paid by the hour, so a policy knows their price once it knows their speed."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import partial

from benchmarks.routing.night import FULL, BatchNight, Job, Night, Speed, SynchronousNight, Windows
from benchmarks.routing.scenarios import BATCH, FLEX, HOUR, REALTIME, Scenario, one, stands

MINUTE = 60.0
ROWS = 2_000


def batch(
    chance: random.Random, low: float, high: float, *, down: Windows = (), room: int | None = None,
    cancel: float = 120.0, name: str = "batch", silent: Windows = (), halves: float = math.inf,
) -> BatchNight:  # fmt: skip
    """Batches that take from so many minutes to so many."""
    seconds = chance.uniform(low, high) * MINUTE
    jitter = tuple(chance.lognormvariate(0.0, 0.1) for _ in range(8))
    return BatchNight(
        name, BATCH, seconds, jitter, chance.uniform(0.1, 0.6), chance.uniform(0.6, 1.5) * cancel,
        down=down, room=room, silent=silent, halves=halves,
    )  # fmt: skip


def realtime(
    chance: random.Random, rate: float, *, stated: bool = True, speed: Speed = FULL, name: str = "realtime",
    prices: tuple[tuple[float, float], ...] = (),
) -> SynchronousNight:  # fmt: skip
    """A provider's API, of which a rate limit is stated or nothing. Nobody announces its `prices`."""
    drawn = rate * chance.lognormvariate(0.0, 0.1)
    stated_rate = rate if stated else None
    return SynchronousNight(
        name, REALTIME, drawn, stated_rate, start=5.0, speed=speed, prices=prices, surprise=bool(prices)
    )


def engine(
    chance: random.Random, price: float, rate: float, *, stated: bool = False, start: float = 60.0,
    cools: float = 10 * MINUTE, speed: Speed = FULL,
) -> SynchronousNight:  # fmt: skip
    """An engine that costs so much a row if it is as fast as that."""
    drawn = rate * chance.lognormvariate(0.0, 0.08)
    return SynchronousNight(
        "engine", price, drawn, rate if stated else None, start=start, cools=cools, speed=speed, location="local",
        hourly=price * rate * HOUR,
    )  # fmt: skip


def _outage(chance: random.Random, share: float, within: float, least: float, most: float) -> Windows:
    if chance.random() >= share:
        return ()
    begin = chance.uniform(0.0, within)
    return ((begin, begin + chance.uniform(least, most)),)


def _bimodal(chance: random.Random, at: int, count: int, state: float) -> Night:
    hours = (17 * 60, 23 * 60) if chance.random() < 0.3 else (4, 15)
    return one(at, ROWS, 6 * HOUR, (batch(chance, *hours),), (realtime(chance, 3.0),))


def _users(falls: float, chance: random.Random, at: int) -> Night:
    speed = ((0.0, 1.0), (falls - HOUR, 0.3))
    options = (engine(chance, 0.0003, 0.08, speed=speed), realtime(chance, 3.0))
    return one(at, ROWS, 8.5 * HOUR, (batch(chance, 60, 400),), options, hour=1)


def _people(chance: random.Random, at: int, count: int, state: float) -> Night:
    return _users(7.5 * HOUR, chance, at)


def _shifted_cycle(chance: random.Random, at: int, count: int, state: float) -> Night:
    return _users((5.5 if at // 10 % 2 else 7.5) * HOUR, chance, at)


def _half_hour(chance: random.Random, at: int, count: int, state: float) -> Night:
    minutes = (6, 15) if chance.random() < 0.6 else (60, 360)
    return one(at, ROWS, 0.5 * HOUR, (batch(chance, *minutes),), (realtime(chance, 1.85),))


def _whole_day(chance: random.Random, at: int, count: int, state: float) -> Night:
    minutes = (60_000, 60_001) if chance.random() < 0.1 else (120, 240)
    options = (engine(chance, 0.0008, 0.33), realtime(chance, 3.0))
    return one(at, ROWS, 24 * HOUR, (batch(chance, *minutes),), options)


def _first_night(chance: random.Random, at: int, count: int, state: float) -> Night:
    options = (engine(chance, 0.0003, chance.choice((0.25, 1.0, 6.0))), realtime(chance, 4.0, stated=False))
    return one(at, ROWS, chance.choice((2, 6)) * HOUR, (batch(chance, 15, 240),), options)


def _brownout(chance: random.Random, at: int, count: int, state: float) -> Night:
    speed, minutes = FULL, (20.0, 90.0)
    if chance.random() < 0.15:
        begin = chance.uniform(0.0, HOUR)
        speed = ((0.0, 1.0), (begin, 0.04), (begin + chance.uniform(3, 6) * HOUR, 1.0))
        minutes = (480.0, 840.0)
    options = (engine(chance, 0.0013, 0.55), realtime(chance, 4.0, speed=speed))
    return one(at, ROWS, 4 * HOUR, (batch(chance, *minutes),), options)


def _loading(chance: random.Random, at: int, count: int, state: float) -> Night:
    options = (engine(chance, 0.0002, 6.0, start=6 * MINUTE), realtime(chance, 4.0))
    return one(at, ROWS, 45 * MINUTE, (batch(chance, 40, 90),), options)


def _two_jobs(chance: random.Random, at: int, count: int, state: float) -> Night:
    jobs = (Job("one", ROWS, 4 * HOUR), Job("two", ROWS, 4 * HOUR, at=90.0))
    minutes = (360.0, 600.0) if chance.random() < 0.25 else (15.0, 60.0)
    return Night(at, jobs, (batch(chance, *minutes),), (engine(chance, 0.0009, 0.6),))


def _three_jobs(chance: random.Random, at: int, count: int, state: float) -> Night:
    jobs = tuple(Job(f"due-{hours}", 3_000, hours * HOUR, at=20.0 * place) for place, hours in enumerate((3, 5, 8)))
    minutes = (600.0, 900.0) if chance.random() < 0.3 else (30.0, 150.0)
    return Night(at, jobs, (batch(chance, *minutes),), (engine(chance, 0.0008, 0.5), realtime(chance, 2.0)))


def _api_down(chance: random.Random, at: int, count: int, state: float) -> Night:
    silent = _outage(chance, 0.12, HOUR, 6 * HOUR, 12 * HOUR)
    return one(at, ROWS, 6 * HOUR, (batch(chance, 20, 120, silent=silent),), (engine(chance, 0.0008, 0.5),))


def _gpu_dies(chance: random.Random, at: int, count: int, state: float) -> Night:
    speed: Speed = ((0.0, 1.0), (chance.uniform(0.0, 2 * HOUR), 0.0)) if chance.random() < 0.25 else FULL
    options = (engine(chance, 0.0002, 0.4, speed=speed), realtime(chance, 3.0))
    return one(at, ROWS, 4 * HOUR, (batch(chance, 20, 150),), options)


def _two_stage(chance: random.Random, at: int, count: int, state: float) -> Night:
    options = (engine(chance, 0.0004, 0.3), realtime(chance, 3.0))
    return one(at, 1_500, 4 * HOUR, (batch(chance, 20, 150),), options, reduces=500)


def _flex(chance: random.Random, at: int, count: int, state: float) -> Night:
    marks, now = [(0.0, 1.0)], 0.0
    while now < 4 * HOUR:
        now += chance.expovariate(1 / (45 * MINUTE))
        marks.append((now, 0.0))
        now += chance.uniform(10.0, 20.0) * MINUTE
        marks.append((now, 1.0))
    flex = SynchronousNight("flex", FLEX, 2.0, 2.0, start=5.0, speed=tuple(marks))
    return one(at, ROWS, 2 * HOUR, (), (flex, realtime(chance, 3.0)))


def _flex_hours(chance: random.Random, at: int, count: int, state: float) -> Night:
    hour = chance.choice((8, 13, 15, 22))
    marks = [(0.0, 1.0)]
    for minute in range(5 * 60):
        clock = hour * 60 + minute
        is_refused = 14 * 60 <= clock < 19 * 60 and minute % 10 < 9
        marks.append((minute * MINUTE, 0.0 if is_refused else 1.0))
    flex = SynchronousNight("flex", FLEX, 2.0, 2.0, start=5.0, speed=tuple(marks))
    return one(at, ROWS, 4 * HOUR, (), (flex, realtime(chance, 3.0)), hour=hour)


def _offpeak(chance: random.Random, at: int, count: int, state: float) -> Night:
    """Cheap from 16:30 to 00:30 UTC."""
    hour = chance.choice((13.0, 15.0, 22.0, 23.5))
    night = one(at, ROWS, 8 * HOUR, (), (engine(chance, 0.0009, 0.6), realtime(chance, 3.0)), hour=int(hour))
    begin, end = (16.5 - int(hour)) * HOUR, (24.5 - int(hour)) * HOUR
    prices = ((max(0.0, begin), REALTIME / 2), (end, REALTIME))
    late = (hour - int(hour)) * HOUR
    jobs = tuple(replace(job, at=late, deadline=late + 8 * HOUR) for job in night.jobs)
    return replace(night, jobs=jobs, sync_options=tuple(
        replace(sync, prices=prices) if sync.name == "realtime" else sync for sync in night.sync_options
    ))  # fmt: skip


def _quota_halved(chance: random.Random, at: int, count: int, state: float) -> Night:
    batches = (batch(chance, 20, 60, room=700, halves=4 * HOUR),)
    return one(at, ROWS, 5 * HOUR, batches, (engine(chance, 0.0008, 0.4), realtime(chance, 3.0)))


def _budgeted(chance: random.Random, at: int, count: int, state: float) -> Night:
    """The batch costs $3, the engine $4.80, realtime $6, and $5.40 are there."""
    options = (engine(chance, 0.0008, 0.6), realtime(chance, 3.0))
    return one(at, 6_000, 6 * HOUR, (batch(chance, 20, 420),), options, budget=5.4)


def _month(chance: random.Random, at: int, count: int, state: float) -> Night:
    """Batches cost $3 a night, the engine could do all for $2.40."""
    options = (engine(chance, 0.0004, 0.35), realtime(chance, 3.0))
    return one(at, 6_000, 6 * HOUR, (batch(chance, 20, 120),), options)


def _ladder(budget: float | None, chance: random.Random, at: int, count: int, state: float) -> Night:
    """Batches cost $1 and what their answers bring about $3 more; realtime costs twice as much."""
    job = Job("job", ROWS, 5 * HOUR, again=chance.uniform(0.12, 0.18), dearer=20.0, budget=budget, purse=budget)
    return Night(at, (job,), (batch(chance, 20, 90),), (realtime(chance, 3.0),))


def _twin_outage(chance: random.Random, at: int, count: int, state: float) -> Night:
    down = _outage(chance, 0.12, 2 * HOUR, 2 * HOUR, 5 * HOUR)
    batches = (batch(chance, 20, 90, down=down), batch(chance, 30, 120, down=down, name="batch2"))
    options = (
        realtime(chance, 3.0, speed=stands(down)),
        realtime(chance, 2.0, speed=stands(down), name="realtime2"),
    )
    return one(at, ROWS, 6 * HOUR, batches, options)


JUDGED: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("judged-bimodal", "a batch takes minutes or nearly a day, 6 h", _bimodal),
        Scenario("judged-users", "an engine falls to 30 % two hours before the deadline", _people),
        Scenario("judged-shifted-cycle", "the same, two hours earlier on ten nights of twenty", _shifted_cycle),
        Scenario("judged-half-hour", "30 min, of which realtime needs 18", _half_hour),
        Scenario("judged-whole-day", "24 h; one batch in ten never ends", _whole_day),
        Scenario("judged-cold", "the first night of a home, with nothing stated", _first_night, forgets=True),
        Scenario("judged-brownout", "batches and realtime slow down together on 15 % of nights", _brownout),
        Scenario("judged-loading", "a cheap engine that loads for 6 of 45 min", _loading),
        Scenario("judged-two-jobs", "two jobs whose rescues need the same engine, 4 h", _two_jobs),
        Scenario("judged-three-jobs", "three jobs due after 3, 5, 8 h at one engine", _three_jobs),
        Scenario("judged-api-down", "a provider that answers nothing for 6 to 12 h", _api_down),
        Scenario("judged-gpu-dies", "a cheap engine that stops on a quarter of nights", _gpu_dies),
        Scenario("judged-two-stage", "500 requests are made of the answers to 1,500", _two_stage),
        Scenario("judged-flex", "flex refused for a quarter of an hour, again and again, 2 h", _flex),
        Scenario("judged-flex-hours", "flex refused nine minutes of ten from 14 to 19 UTC", _flex_hours),
        Scenario("judged-offpeak", "an API at half price from 16:30 to 00:30 UTC", _offpeak),
        Scenario("judged-budgeted", "the budget pays for batches and the engine, not for realtime, 6 h", _budgeted),
        Scenario("judged-month", "a budget of $66 a month, that $3 a night use up by day 22", _month, monthly=66.0),
        Scenario("judged-ladder", "15 % of answers go on to a model 20 times as dear, 5 h", partial(_ladder, None)),
        Scenario("judged-ladder-budget", "the same, with 1.5 times what batches cost", partial(_ladder, 6.0)),
        Scenario("judged-quota-halved", "the queue halves at midnight without a word, 5 h", _quota_halved),
        Scenario("judged-twin-outage", "two providers of one cloud stand still together", _twin_outage),
    )
}  # fmt: skip
