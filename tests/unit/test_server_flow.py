"""Concurrency that finds itself: grows where there is room, falls back where there is none, stays within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.flow import FLOOR, START, Flow, Gauges

GAUGES = st.builds(Gauges, st.integers(0, 3000), st.integers(0, 3000), st.floats(0, 1))


def grown(ceiling: int = 1024, limit: int = 256) -> Flow:
    flow = Flow(ceiling)
    while flow.limit < limit:
        flow.observe(0.0, flow.limit, Gauges(flow.limit, 0, 0.1))
    assert flow.limit == limit
    return flow


def flown(flow: Flow, now: float, seconds: float, completed: int) -> float:
    """A flight under full load without gauges: `completed` answers in `seconds`; the time at its end."""
    for _ in range(completed):
        flow.completed()
    flow.observe(now + seconds, flow.limit, None)
    return now + seconds


def test_it_starts_low_and_says_so() -> None:
    assert (Flow(1024).limit, Flow(1024).reason) == (START, "start")
    assert Flow(5).limit == 5


def test_it_doubles_while_nothing_waits() -> None:
    flow = Flow(1024)
    seen = []
    for _ in range(8):
        flow.observe(0.0, flow.limit, Gauges(flow.limit, 0, 0.1))
        seen.append(flow.limit)
    assert seen == [32, 64, 128, 256, 512, 1024, 1024, 1024]
    assert flow.reason == "room at the upstream"


NO_GROWTH = {
    "not in use": (100, Gauges(100, 0, 0.1)),
    "the KV cache is full": (256, Gauges(256, 0, 0.95)),
    "some wait": (256, Gauges(240, 16, 0.1)),
    "the upstream has not seen them yet": (256, Gauges(50, 0, 0.1)),
    "a queue, but a short one": (256, Gauges(226, 30, 0.1)),
}


@pytest.mark.parametrize(("inflight", "gauges"), NO_GROWTH.values(), ids=NO_GROWTH.keys())
def test_it_stays_where_it_is(inflight: int, gauges: Gauges) -> None:
    flow = grown(limit=256)
    flow.observe(0.0, inflight, gauges)
    assert flow.limit == 256


def test_it_grows_by_a_queue_while_few_wait() -> None:
    flow = grown(limit=256)
    flow.observe(0.0, 256, Gauges(250, 6, 0.1))
    assert flow.limit == 256 + 20


def test_it_falls_back_to_what_runs_and_a_short_queue() -> None:
    flow = grown(limit=512)
    flow.observe(0.0, 512, Gauges(100, 412, 0.5))
    assert (flow.limit, flow.reason) == (108, "412 waiting")


def test_the_requests_of_others_are_no_reason_to_send_more() -> None:
    flow = grown(limit=32)
    flow.observe(0.0, 32, Gauges(500, 400, 0.5))
    assert flow.limit == 32


def test_one_overload_cuts_once_a_flight() -> None:
    flow = grown(limit=256)
    for _ in range(50):
        flow.overloaded(now=10.0, sent_at=9.0)
    assert (flow.limit, flow.reason) == (179, "overload answered")
    flow.overloaded(now=11.0, sent_at=9.9)  # sent before the cut, refused after it
    assert flow.limit == 179
    flow.overloaded(now=12.0, sent_at=10.5)
    assert flow.limit == 125


def test_without_gauges_it_grows_while_throughput_grows() -> None:
    flow, now = Flow(1024), 0.0
    flow.observe(now, 16, None)
    now = flown(flow, now, 1.0, 40)
    assert (flow.limit, flow.reason) == (25, "throughput grew to 40/s")
    now = flown(flow, now, 1.0, 60)
    assert flow.limit == 38
    now = flown(flow, now, 2.0, 122)  # 61/s: no more than before, but for noise
    assert flow.limit == 38
    flown(flow, now, 1.0, 100)
    assert flow.limit == 58


@pytest.mark.parametrize(("seconds", "completed"), [(0.4, 1000), (5.0, 31)], ids=["too short", "too few answers"])
def test_without_gauges_it_waits_for_a_sample_that_says_something(seconds: float, completed: int) -> None:
    flow = Flow(1024)
    flow.observe(0.0, 16, None)
    flown(flow, 0.0, seconds, completed)
    assert flow.limit == 16


def test_without_gauges_a_pause_in_the_load_starts_a_new_sample() -> None:
    flow = Flow(1024)
    flow.observe(0.0, 16, None)
    flow.observe(1.0, 3, None)
    flown(flow, 1.0, 1.0, 100)  # begins the sample, whose answers are not counted
    assert flow.limit == 16
    flown(flow, 2.0, 1.0, 32)
    assert flow.limit == 25


STEPS = st.lists(
    st.tuples(st.just("overloaded"), st.floats(0, 2), st.none())
    | st.tuples(st.just("observe"), st.floats(0, 2), st.none() | GAUGES)
    | st.tuples(st.just("completed"), st.floats(0, 100), st.none()),
    max_size=40,
)


@settings(max_examples=150)
@given(st.integers(1, 2000), st.booleans(), STEPS)
def test_the_limit_stays_between_floor_and_ceiling(
    ceiling: int, busy: bool, steps: list[tuple[str, float, Gauges | None]]
) -> None:
    flow, now = Flow(ceiling), 0.0
    for what, amount, gauges in steps:
        before = flow.limit
        if what == "completed":
            for _ in range(int(amount)):
                flow.completed()
        elif what == "overloaded":
            now += amount
            flow.overloaded(now, now)
            assert flow.limit <= before
        else:
            now += amount
            flow.observe(now, flow.limit if busy else 0, gauges)
            assert busy or flow.limit <= before
        assert min(FLOOR, ceiling) <= flow.limit <= ceiling
        assert flow.reason


@settings(max_examples=100)
@given(st.integers(2, 2000), GAUGES)
def test_a_long_queue_never_makes_it_grow(inflight: int, gauges: Gauges) -> None:
    flow = grown(limit=256)
    flow.observe(0.0, inflight, gauges)
    assert flow.limit <= 256 or gauges.waiting <= 128
