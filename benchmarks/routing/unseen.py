"""Worlds of families that the forecasts do not assume: does what is told of a deadline come true there?"""

from __future__ import annotations

import math
import random

from benchmarks.routing.night import BatchNight, Job, Night, Speed, SynchronousNight, Windows
from benchmarks.routing.scenarios import FLEX, HOUR, Scenario, batch, local, one, outage, realtime, stands

MINUTE = 60.0


def _day_users(chance: random.Random, at: int, count: int, state: float) -> Night:
    speed = ((0.0, 1.0), (6 * HOUR, 0.3))
    sync_options = (local(chance, 0.0003, 0.42, speed=speed), realtime(chance))
    return one(at, 9_000, 8 * HOUR, (batch(chance),), sync_options, hour=22)


def _some_day_users(chance: random.Random, at: int, count: int, state: float) -> Night:
    begin = 6 * HOUR + chance.gauss(0.0, 20 * MINUTE)
    speed = ((0.0, 1.0), (begin, 0.3)) if chance.random() < 0.6 else ((0.0, 1.0),)
    sync_options = (local(chance, 0.0003, 0.42, speed=speed), realtime(chance))
    return one(at, 9_000, 8 * HOUR, (batch(chance, median=2 * HOUR),), sync_options, hour=22)


def _only_engine_slows(chance: random.Random, at: int, count: int, state: float) -> Night:
    speed = ((0.0, 1.0), (6 * HOUR, 0.3))
    return one(at, 8_000, 8 * HOUR, (batch(chance),), (local(chance, 0.0007, 1.0, speed=speed),), hour=22)


def _gpu_dies(chance: random.Random, at: int, count: int, state: float) -> Night:
    speed: Speed = ((0.0, 1.0),)
    if chance.random() < 0.25:
        speed = ((0.0, 1.0), (chance.uniform(0.0, 5 * HOUR), 0.0))
    sync_options = (local(chance, 0.0002, 0.8, speed=speed), realtime(chance, rate=4.0))
    return one(at, 8_000, 5 * HOUR, (batch(chance),), sync_options)


def _two_rescues(chance: random.Random, at: int, count: int, state: float) -> Night:
    jobs = (Job("one", 6_000, 6 * HOUR), Job("two", 6_000, 6 * HOUR, at=120.0))
    return Night(at, jobs, (batch(chance, bad=0.2),), (local(chance, 0.0010, 2.0, spread=0.12),))


def _two_rescues_apart(chance: random.Random, at: int, count: int, state: float) -> Night:
    jobs = (Job("late", 6_000, 6 * HOUR), Job("early", 5_000, 5.4 * HOUR, at=300.0))
    return Night(at, jobs, (batch(chance, bad=0.2),), (local(chance, 0.0010, 2.0, spread=0.12),))


def _shared_dies(chance: random.Random, at: int, count: int, state: float) -> Night:
    speed: Speed = ((0.0, 1.0),)
    if chance.random() < 0.2:
        speed = ((0.0, 1.0), (chance.uniform(0.0, 5 * HOUR), 0.0))
    jobs = (Job("one", 6_000, 6 * HOUR), Job("two", 6_000, 6 * HOUR, at=60.0))
    return Night(at, jobs, (), (local(chance, 0.0003, 0.9, speed=speed), realtime(chance, rate=3.0)))


def _refusing(chance: random.Random, share: float = 0.35) -> SynchronousNight:
    """Flex that refuses everything for minutes, again and again."""
    marks, now = [(0.0, 1.0)], 0.0
    while now < 12 * HOUR:
        now += chance.expovariate(1 / (40 * MINUTE))
        marks.append((now, 0.0))
        now += chance.expovariate(1 / (40 * MINUTE * share / (1 - share)))
        marks.append((now, 1.0))
    return SynchronousNight("flex", FLEX, 4.0 * chance.lognormvariate(0.0, 0.25), 4.0, start=5.0, speed=tuple(marks))


def _flex_refuses(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 4 * HOUR, (batch(chance, bad=0.15),), (_refusing(chance), realtime(chance, rate=4.0)))


def _flex_alone(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(at, 8_000, 6 * HOUR, (batch(chance, bad=0.15),), (_refusing(chance),))


def _cold(chance: random.Random, at: int, count: int, state: float) -> Night:
    rate = 10 ** chance.uniform(-0.4, 0.6)
    start = chance.uniform(20.0, 300.0)
    sync_options = (local(chance, 0.0003, rate, start=start, nominal=None), realtime(chance))
    return one(at, 8_000, 6 * HOUR, (batch(chance, bad=0.15),), sync_options, slow=chance.uniform(1.0, 6.0))


def _cold_engine(chance: random.Random, at: int, count: int, state: float) -> Night:
    rate = 10 ** chance.uniform(-0.1, 0.8)
    sync_options = (local(chance, 0.0010, rate, start=chance.uniform(20.0, 300.0), nominal=None),)
    return one(at, 8_000, 6 * HOUR, (batch(chance, bad=0.1),), sync_options, slow=chance.uniform(1.0, 6.0))


def _second_stage(chance: random.Random, at: int, count: int, state: float) -> Night:
    sync_options = (local(chance, 0.0008, 1.0), realtime(chance))
    return one(
        at, 8_000, 5 * HOUR, (batch(chance, bad=0.15),), sync_options, reduces=600, again=chance.uniform(0.0, 0.1)
    )


def _second_stage_local(chance: random.Random, at: int, count: int, state: float) -> Night:
    return one(
        at, 8_000, 5 * HOUR, (batch(chance, bad=0.15),), (local(chance, 0.0010, 1.5),), reduces=800, again=0.05
    )


def _silence(chance: random.Random) -> Windows:
    if chance.random() >= 0.25:
        return ()
    begin = chance.uniform(0.0, 6 * HOUR)
    return ((begin, begin + chance.uniform(0.3, 3.0) * HOUR),)


def _silent(chance: random.Random, at: int, count: int, state: float) -> Night:
    sync_options = (local(chance, 0.0008, 1.0), realtime(chance))
    return one(at, 8_000, 6 * HOUR, (batch(chance, silent=_silence(chance)),), sync_options)


def _bimodal(chance: random.Random, at: int, count: int, state: float) -> Night:
    slow = chance.random() < 0.3
    median = chance.uniform(3.5, 7.0) * HOUR if slow else 10 * MINUTE
    batches = (batch(chance, median=median, spread=0.1, bad=0.0, stuck=0.0),)
    return one(at, 8_000, 5 * HOUR, batches, (local(chance, 0.0008, 1.0), realtime(chance)))


def _walk(chance: random.Random, count: int, keeps: float, step: float) -> list[float]:
    state, path = 0.0, []
    for _ in range(count):
        state = keeps * state + chance.gauss(0.0, step)
        path.append(state)
    return path


def _autocorrelated(chance: random.Random, at: int, count: int, state: float) -> Night:
    median = 25 * MINUTE * math.exp(state)
    batches = (batch(chance, median=median, spread=0.15, bad=0.0, stuck=0.01),)
    sync_options = (local(chance, 0.0008, math.exp(-state / 3), spread=0.05), realtime(chance))
    return one(at, 8_000, 4 * HOUR, batches, sync_options)


def _regime(chance: random.Random, at: int, count: int, state: float) -> Night:
    is_new = at >= count // 2
    batches = (batch(chance, median=3 * HOUR if is_new else 12 * MINUTE, spread=0.4),)
    sync_options = (local(chance, 0.0003, 0.5 if is_new else 1.0), realtime(chance))
    return one(at, 10_000, 5 * HOUR, batches, sync_options)


def _hidden(chance: random.Random, at: int, count: int, state: float) -> Night:
    batches = (batch(chance, median=HOUR, spread=0.9, bad=0.15, hidden=True),)
    return one(at, 8_000, 4 * HOUR, batches, (local(chance, 0.0009, 1.0), realtime(chance)))


def _slow_cancel(chance: random.Random, at: int, count: int, state: float) -> Night:
    batches = (batch(chance, median=40 * MINUTE, bad=0.15, cancel=30 * MINUTE),)
    return one(at, 8_000, 5 * HOUR, batches, (local(chance, 0.0009, 1.0), realtime(chance)))


def _odd_cancel(chance: random.Random, at: int, count: int, state: float) -> Night:
    cancel = 100 * MINUTE if chance.random() < 0.05 else 2 * MINUTE
    batches = (batch(chance, median=40 * MINUTE, bad=0.15, cancel=cancel),)
    return one(at, 8_000, 5 * HOUR, batches, (local(chance, 0.0009, 1.0), realtime(chance)))


def _loading(chance: random.Random, at: int, count: int, state: float) -> Night:
    start = chance.uniform(8.0, 20.0) * MINUTE
    sync_options = (local(chance, 0.0009, 2.0, start=start, cools=20 * MINUTE),)
    return one(at, 8_000, 4 * HOUR, (batch(chance, bad=0.15),), sync_options)


def _slow_machine(chance: random.Random, at: int, count: int, state: float) -> Night:
    sync_options = (local(chance, 0.0003, 0.5), realtime(chance))
    return one(at, 8_000, 4 * HOUR, (batch(chance, bad=0.15),), sync_options, slow=chance.uniform(8.0, 20.0))


def _drifting(chance: random.Random, at: int, count: int, state: float) -> Night:
    level, marks = 0.0, []
    for step in range(40):
        level = 0.9 * level + chance.gauss(0.0, 0.18)
        marks.append((step * 15 * MINUTE, math.exp(level)))
    sync_options = (local(chance, 0.0003, 0.5, speed=tuple(marks)), realtime(chance, rate=5.0))
    return one(at, 9_000, 6 * HOUR, (batch(chance, median=2 * HOUR),), sync_options)


def _short(chance: random.Random, at: int, count: int, state: float) -> Night:
    sync_options = (local(chance, 0.0004, 1.2, spread=0.1), realtime(chance, rate=3.0))
    return one(at, 2_000, 25 * MINUTE, (batch(chance),), sync_options)


def _quota_shared(chance: random.Random, at: int, count: int, state: float) -> Night:
    jobs = (Job("first", 6_000, 3 * HOUR), Job("second", 6_000, 6 * HOUR, at=300.0))
    batches: tuple[BatchNight, ...] = (batch(chance, room=6_000, median=20 * MINUTE),)
    return Night(at, jobs, batches, (local(chance, 0.0009, 1.2), realtime(chance)))


def _engine_waves(chance: random.Random, at: int, count: int, state: float) -> Night:
    down = outage(chance, 0.5, 3 * HOUR, 20 * MINUTE, 80 * MINUTE)
    sync_options = (local(chance, 0.0003, 0.7, speed=stands(down)), realtime(chance, rate=4.0))
    return one(at, 8_000, 5 * HOUR, (batch(chance, median=HOUR),), sync_options)


UNSEEN: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("day-users", "an engine slows to 30 % two hours before the deadline", _day_users),
        Scenario("some-day-users", "the same on six nights of ten, at about that hour", _some_day_users),
        Scenario("only-engine-slows", "the same, and nothing else can rescue a batch", _only_engine_slows),
        Scenario("gpu-dies", "an engine dies for good on a quarter of the nights", _gpu_dies),
        Scenario("two-rescues", "two jobs whose rescue needs the same engine", _two_rescues),
        Scenario("two-rescues-apart", "the same with deadlines 36 minutes apart", _two_rescues_apart),
        Scenario("shared-dies", "two jobs on an engine that dies on a fifth of the nights", _shared_dies),
        Scenario("flex-refuses", "flex with stretches of refusals, realtime beside it", _flex_refuses),
        Scenario("flex-alone", "the same as the only rescue", _flex_alone),
        Scenario("cold", "every night is the first of a home", _cold, forgets=True),
        Scenario("cold-engine", "the same, with an unknown engine as the only rescue", _cold_engine, forgets=True),
        Scenario("second-stage", "requests made from answers: 600 at the end, and re-asks", _second_stage),
        Scenario("second-stage-local", "the same with one engine as the only rescue", _second_stage_local),
        Scenario("silent", "a provider that answers nothing for up to three hours", _silent),
        Scenario("bimodal", "batches take ten minutes or five hours", _bimodal),
        Scenario(
            "autocorrelated", "slow nights come in rows, for batches and engine alike", _autocorrelated,
            path=lambda chance, count: _walk(chance, count, 0.85, 0.45),
        ),
        Scenario("regime", "half-way batches take 15 times as long, and the engine is half as fast", _regime),
        Scenario("hidden", "nothing is seen of a batch until it ends", _hidden),
        Scenario("slow-cancel", "a cancel takes half an hour", _slow_cancel),
        Scenario("odd-cancel", "one cancel in twenty takes 100 minutes", _odd_cancel),
        Scenario("loading", "an engine that loads for up to 20 minutes once it is idle", _loading),
        Scenario("slow-machine", "collecting and merging take minutes", _slow_machine),
        Scenario("drifting", "an engine whose speed wanders all night", _drifting),
        Scenario("short", "25 minutes", _short),
        Scenario("quota-shared", "two jobs share what may be enqueued", _quota_shared),
        Scenario("engine-waves", "an engine that stands still for an hour on every second night", _engine_waves),
    )
}  # fmt: skip
