"""When an engine that stood still, or nearly, gets rows again, lived through in `benchmarks.routing`."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import pytest
from msgspec.structs import replace

from benchmarks.routing.night import FULL, BatchNight, Job, Night, Score, Speed, SynchronousNight
from benchmarks.routing.ours import Ours
from benchmarks.routing.world import World
from orchestrator.policy.planner import Open, replan
from tests.unit.test_planner import NOW, batch, synchronous, terms

HOUR, MINUTE = 3600.0, 60.0
ROWS = 2_000
ENGINE, REALTIME = 0.0002, 0.001
STOPS = 10 * MINUTE
RETURNS = (80.0, 95.0, 85.0, 90.0, 82.0, 98.0, 87.0, 92.0)
"""Minutes after which the engine was well again on earlier nights."""
NEVER = 1_000.0
A_FEW = 0.05 * ROWS
SPEEDS = [pytest.param(0.3, marks=pytest.mark.slow), pytest.param(0.35, marks=pytest.mark.slow), 0.4]
"""Rows a second of the other route. The slower it is, the more plans a night has."""


def night(number: int, speed: Speed, realtime: float) -> Night:
    engine = SynchronousNight(
        "engine", ENGINE, 0.5, None, start=60.0, cools=600.0, speed=speed, location="local",
        hourly=ENGINE * 0.5 * HOUR,
    )  # fmt: skip
    api = SynchronousNight("realtime", REALTIME, realtime, 0.35, start=5.0)
    return Night(number, (Job("job", ROWS, 3 * HOUR),), (), (engine, api))


def stops(until: float) -> Speed:
    """The engine stands still from the tenth minute on, until so many minutes are over."""
    return ((0.0, 1.0), (STOPS, 0.0), (until * MINUTE, 1.0))


@cache
def experienced(realtime: float) -> Ours:
    """Live through sixteen nights on which the engine was well or came back."""
    ours = Ours()
    for number, speed in enumerate(speed for back in RETURNS for speed in (FULL, stops(back))):
        World(night(number, speed, realtime)).live(ours)
    return ours


def lived(until: float, realtime: float) -> Score:
    """Return a night after those."""
    [score] = World(night(2 * len(RETURNS), stops(until), realtime)).live(deepcopy(experienced(realtime)))
    return score


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize("realtime", SPEEDS)
@pytest.mark.parametrize("until", [NEVER, 150.0, 110.0, 80.0])
def test_a_job_does_not_rely_on_an_engine_that_stands_still(until: float, realtime: float) -> None:
    score = lived(until, realtime)
    assert score.in_time
    assert score.by_route["engine"] < ROWS / 2 or until != NEVER


@pytest.mark.thinned(3)
@pytest.mark.parametrize("realtime", SPEEDS)
def test_an_engine_that_answers_again_gets_the_rows_that_are_left(realtime: float) -> None:
    score = lived(80.0, realtime)
    assert score.in_time
    assert score.by_route["engine"] > ROWS / 4


@pytest.mark.parametrize("job", [Open(synchronous=(("engine", 20),)), Open(waiting=20)], ids=["there", "back"])
def test_the_rows_of_a_probe_are_not_the_last_to_be_done(job: Open) -> None:
    engine = synchronous("engine", "0.0002", 0.5, spread=0.1, location="local")
    engine = replace(engine, pace=replace(engine.pace, rate=0.0))
    found = replan(job, [engine, synchronous("realtime", "0.001", 0.35, spread=0.1)], terms(3), NOW)
    assert [(one.backend, one.rows) for one in found.sends] == [("realtime", 20)]


@pytest.mark.parametrize("waiting", [0, 1_600], ids=["they are at the other one", "they wait"])
@pytest.mark.parametrize(
    ("hours", "price", "outage", "to"),
    [
        (3.0, "0.0002", HOUR, "engine"),
        (1.85, "0.0002", HOUR, "realtime"),
        (3.0, "0.00095", HOUR, "realtime"),
        (3.0, "0.0002", 30 * HOUR, "realtime"),
    ],
    ids=["there is time", "there is none", "it costs as much", "it stands still for days"],
)
def test_rows_wait_for_a_cheap_engine_as_long_as_another_route_surely_does_them(
    hours: float, price: str, outage: float, to: str, waiting: int
) -> None:
    engine = synchronous("engine", price, 0.5, spread=0.1, location="local")
    engine = replace(engine, pace=replace(engine.pace, rate=0.0, outage=outage))
    api = synchronous("realtime", "0.001", 0.35, spread=0.1)
    job = Open(waiting=waiting, synchronous=(("engine", 20), ("realtime", 1_600 - waiting)))
    found = replan(job, [engine, api], terms(hours), NOW)
    assert found.chance >= terms(hours).target
    sent = {one.backend: one.rows for one in found.sends}
    assert sent == ({to: 1_600} if waiting or to == "engine" else {})


@pytest.mark.parametrize("there", [0, 4_000], ids=["they wait", "they are there"])
@pytest.mark.parametrize(
    ("hours", "price", "outage", "realtime", "to"),
    [
        (5.0, "0.0005", HOUR, 4.0, "engine"),
        (5.0, "0.0005", 30 * HOUR, 4.0, "batch"),
        (5.0, "0.000305", HOUR, 4.0, "batch"),
        (1.5, "0.0005", HOUR, 4.0, "batch"),
    ],
    ids=["there is time", "it stands still for days", "it costs as much", "a later batch would end late"],
)
def test_rows_wait_for_a_cheap_engine_before_they_go_to_a_batch(
    hours: float, price: str, outage: float, realtime: float, to: str, there: int
) -> None:
    engine = synchronous("engine", "0.0003", 0.7, spread=0.1, location="local")
    engine = replace(engine, pace=replace(engine.pace, rate=0.0, outage=outage))
    options = [batch("batch", price, 2_400.0), engine, synchronous("realtime", "0.001", realtime, spread=0.1)]
    job = Open(waiting=4_000 - there, synchronous=(("engine", there),) if there else ())
    found = replan(job, options, terms(hours), NOW)
    assert found.chance >= terms(hours).target
    sent = {one.backend: one.rows for one in found.sends}
    stays = {} if there else {"engine": 4_000}
    waits = "4,000 rows wait until engine answers again, or the last moment for a reroute; "
    assert found.reason.startswith(waits) == (to == "engine"), found.reason
    assert sent.get("batch", 0) >= 3_900 if to == "batch" else sent == stays


@pytest.mark.thinned(3)
@pytest.mark.parametrize("realtime", SPEEDS)
def test_a_dear_route_does_few_rows_before_a_cheap_engine_is_back(realtime: float) -> None:
    """It is slower than was thought only until it has done some rows tonight."""
    score = lived(95.0, realtime)
    assert score.in_time
    assert score.by_route.get("realtime", 0) < 2 / 3 * (95 * MINUTE - STOPS) * realtime


@pytest.mark.slow
def test_rows_leave_an_engine_that_stands_still_though_no_plan_is_sure() -> None:
    """On an early night little is known of the API. Each wait costs a little chance, and all of it at last."""
    ours = Ours()
    World(night(0, FULL, 0.3)).live(ours)
    [score] = World(night(1, stops(NEVER), 0.3)).live(ours)
    assert score.in_time


@pytest.mark.parametrize("stands", [0.4, 0.05, 0.0])
def test_how_sure_an_engine_is_well_again_shows_in_what_is_told(stands: float) -> None:
    """Nothing else could do its rows if it still stands."""
    engine = synchronous("engine", "0.0002", 1.0, spread=0.1, location="local")
    engine = replace(engine, pace=replace(engine.pace, stands=stands))
    api = synchronous("realtime", "0.001", 0.1)
    job = Open(synchronous=(("engine", 3_000),))
    told = replan(job, [engine, api], terms(2), NOW).chance
    assert told == pytest.approx(1.0 - stands, abs=0.02)
    rescue = replan(job, [engine, synchronous("realtime", "0.001", 3.0)], terms(2), NOW).chance
    assert rescue > 0.99, "another route does them in time"


@pytest.mark.parametrize("rates", [(0.1, 0.2), (0.2, 0.2), (0.05, 0.4)])
def test_rows_that_must_move_anyway_move_at_once_though_no_plan_is_sure(rates: tuple[float, float]) -> None:
    """Two little-known options: what one will not do in time is no safer there than at the other, which is idle."""
    slow = synchronous("engine", "0.0002", rates[0], spread=0.3, location="local")
    idle = synchronous("realtime", "0.001", rates[1], spread=0.6)
    rows = int(0.9 * sum(rates) * 3 * HOUR)
    found = replan(Open(synchronous=(("engine", rows),)), [slow, idle], terms(3), NOW)
    assert found.chance < terms(3).target
    moved = sum(one.rows for one in found.sends if one.source == "engine" and one.backend == "realtime")
    assert moved >= 0.5 * (rows - rates[0] * 3 * HOUR)


@pytest.mark.parametrize(
    ("price", "sent"), [("0.0003", {"engine": 20, "batch": 7_980}), ("0.0006", {"batch": 8_000})]
)
def test_a_cheap_option_that_is_too_slow_for_more_gets_a_few_rows(price: str, sent: dict[str, int]) -> None:
    """They cost less there, and tell when it is fast again."""
    engine = synchronous("engine", price, 0.01, spread=0.3, location="local")
    options = [batch("batch", "0.0005", 900.0), engine, synchronous("realtime", "0.001", 8.0)]
    found = replan(Open(waiting=8_000), options, terms(5), NOW)
    assert {one.backend: one.rows for one in found.sends} == sent
    assert found.chance >= terms(5).target


@pytest.mark.long
def test_a_cheap_engine_that_is_fast_again_is_seen_to_be() -> None:
    """Nobody needs it while it is slow: batches do all rows in time."""
    ours = Ours()

    def does(number: int, rate: float) -> int:
        api = SynchronousNight("realtime", REALTIME, 3.0, 3.0, start=5.0)
        engine = SynchronousNight("engine", ENGINE, rate, None, location="local")
        batches = (BatchNight("batch", 0.0005, 600.0, (1.0,)),)
        [score] = World(Night(number, (Job("job", ROWS, 3 * HOUR),), batches, (engine, api))).live(ours)
        assert score.in_time
        return score.by_route.get("engine", 0)

    assert [does(number, 0.01) for number in range(8)][-1] < ROWS / 8
    assert max(does(number, 1.0) for number in range(8, 14)) == ROWS
