"""Concurrency that finds itself: grows where there is room, falls back where there is none, stays within bounds."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.concurrency_limiter import (
    FLOOR,
    INTERACTIVE_SECONDS,
    LONGEST_CLOSED,
    START,
    START_WITH_GAUGES,
    ConcurrencyLimiter,
    Gauges,
    Move,
)
from tests.support.examples import ample

GAUGES = st.builds(Gauges, st.integers(0, 3000), st.integers(0, 3000), st.floats(0, 1), st.floats(0, 1e6))


def grown(ceiling: int = 1024, limit: int = 256) -> ConcurrencyLimiter:
    limiter = ConcurrencyLimiter(ceiling, learned=limit)
    limiter.observe(0.0, limit // 2, Gauges(limit, 0, 0.1))
    assert limiter.limit == limit
    return limiter


def test_it_starts_low_and_says_so() -> None:
    assert (ConcurrencyLimiter(1024).limit, ConcurrencyLimiter(1024).reason, ConcurrencyLimiter(1024).move) == (
        START,
        "start",
        Move.START,
    )
    assert ConcurrencyLimiter(5).limit == 5


def test_it_starts_where_it_was_right_before() -> None:
    limiter = ConcurrencyLimiter(1024, learned=280)
    assert (limiter.limit, limiter.move) == (280, Move.LEARNED)
    assert ConcurrencyLimiter(100, learned=280).limit == 100


def test_it_doubles_while_nothing_waits() -> None:
    limiter = ConcurrencyLimiter(1024)
    seen = []
    for _ in range(8):
        limiter.observe(0.0, limiter.limit, Gauges(limiter.limit, 0, 0.1))
        seen.append(limiter.limit)
    assert seen == [64, 128, 256, 512, 1024, 1024, 1024, 1024]
    assert (limiter.reason, limiter.move) == ("512 run, 0 wait", Move.ROOM)
    assert limiter.growing


def test_it_goes_no_higher_than_twice_what_ever_ran_and_a_queue() -> None:
    limiter = ConcurrencyLimiter(1024)
    for _ in range(8):
        limiter.observe(0.0, limiter.limit, Gauges(min(limiter.limit, 40), max(0, limiter.limit - 40 - 30), 0.1))
    assert limiter.limit <= 2 * 40 + 8


NO_GROWTH = {
    "not in use": (100, Gauges(100, 0, 0.1)),
    "the KV cache is full": (256, Gauges(256, 0, 0.95)),
    "some wait": (256, Gauges(240, 16, 0.1)),
    "the upstream has not seen them yet": (256, Gauges(50, 0, 0.1)),
    "a queue, but a short one": (256, Gauges(226, 30, 0.1)),
}


@pytest.mark.parametrize(("inflight", "gauges"), NO_GROWTH.values(), ids=NO_GROWTH.keys())
def test_it_stays_where_it_is(inflight: int, gauges: Gauges) -> None:
    limiter = grown(limit=256)
    limiter.observe(0.0, inflight, gauges)
    assert limiter.limit == 256


def test_it_grows_by_a_queue_while_few_wait() -> None:
    limiter = grown(limit=256)
    limiter.observe(0.0, 256, Gauges(250, 6, 0.1))
    assert limiter.limit == 256 + 20


def test_it_falls_back_to_what_runs_and_a_short_queue() -> None:
    limiter = grown(limit=512)
    limiter.observe(0.0, 512, Gauges(100, 412, 0.5))
    assert (limiter.limit, limiter.reason, limiter.move) == (108, "412 waiting", Move.QUEUE)
    assert not limiter.growing


def test_the_requests_of_others_are_no_reason_to_send_more() -> None:
    limiter = grown(limit=32)
    limiter.observe(0.0, 32, Gauges(500, 400, 0.5))
    assert limiter.limit == 32


def test_preemptions_at_two_looks_in_a_row_cut_it() -> None:
    limiter = grown(limit=256)
    for preemptions in (0, 9):  # the first that come may be chance
        limiter.observe(1.0, 256, Gauges(240, 16, 0.8, preemptions))
    assert limiter.limit == 256
    limiter.observe(2.0, 256, Gauges(240, 16, 0.97, 12))
    assert (limiter.limit, limiter.move) == (179, Move.PREEMPTION)


def test_one_overload_cuts_once_a_flight() -> None:
    limiter = grown(limit=256)
    for _ in range(50):
        limiter.overloaded(now=10.0, sent_at=9.0)
    assert (limiter.limit, limiter.reason) == (179, "overload answered")
    limiter.overloaded(now=11.0, sent_at=9.9)  # sent before the cut, refused after it
    assert limiter.limit == 179
    limiter.timed_out(now=12.0, sent_at=10.5)
    assert (limiter.limit, limiter.move) == (125, Move.TIMEOUT)


def test_retry_after_closes_it_for_a_while() -> None:
    limiter = grown(limit=100)
    limiter.overloaded(now=10.0, sent_at=9.0, retry_after=3.0)
    assert (limiter.room(12.9, 0), limiter.room(13.0, 0)) == (0, 70)


def test_who_refuses_everything_is_asked_less_and_less() -> None:
    limiter, now, asked = ConcurrencyLimiter(1024), 0.0, []
    while now < 60.0:
        if limiter.room(now, 0):
            asked.append(now)
            limiter.overloaded(now, now)
        now += 0.01
    assert len(asked) < 30
    assert asked[-1] - asked[-2] == pytest.approx(LONGEST_CLOSED, abs=0.1)
    limiter.completed(now, 1)
    assert limiter.room(now, 0) == FLOOR


def test_one_row_that_is_told_to_wait_for_long_does_not_stop_the_others_for_long() -> None:
    limiter = grown(limit=100)
    limiter.overloaded(now=10.0, sent_at=9.0, retry_after=3600.0)
    assert limiter.room(10.0 + LONGEST_CLOSED, 0) == 70


def test_people_who_wait_get_most_of_it_and_a_little_longer() -> None:
    limiter = grown(limit=100)
    assert limiter.room(1.0, 1) == 25
    assert limiter.room(1.0 + INTERACTIVE_SECONDS * 0.9, 0) == 25
    assert limiter.room(1.0 + INTERACTIVE_SECONDS * 1.1, 0) == 100
    limiter.room(90.0, 1)
    limiter.observe(90.1, 100, Gauges(100, 0, 0.1))
    assert limiter.limit == 100  # nothing is learned beside them


class Endpoint:
    """An endpoint of `slots` that takes `seconds` a row, driven as the fan-out does it; time is simulated."""

    def __init__(self, slots: int, seconds: float, *, gauges: bool, limiter: ConcurrencyLimiter) -> None:
        self.slots, self.seconds, self.gauges, self.limiter = slots, seconds, gauges, limiter
        self.running: list[tuple[float, float]] = []
        self.waiting: deque[float] = deque()
        self.most = 0

    def run(self, rows: int) -> float:
        """The seconds that so many rows took."""
        now, look, left = 0.0, 0.0, rows
        while left or self.running:
            while left and len(self.running) + len(self.waiting) < self.limiter.room(now, 0):
                left -= 1
                self.waiting.append(now)
            while self.waiting and len(self.running) < self.slots:
                heapq.heappush(self.running, (now + self.seconds, self.waiting.popleft()))
            inflight = len(self.running) + len(self.waiting)
            self.most = max(self.most, inflight)
            if self.running and self.running[0][0] <= look:
                now, sent_at = heapq.heappop(self.running)
                self.limiter.completed(now, inflight, now - sent_at)
                continue
            now = look
            seen = Gauges(len(self.running), len(self.waiting), 0.3) if self.gauges else None
            self.limiter.observe(now, inflight, seen)
            look += 0.1 if self.limiter.growing else 1.0
        return now


@pytest.mark.parametrize(("gauges", "least"), [(True, 0.90), (False, 0.86)], ids=["with gauges", "without gauges"])
@pytest.mark.parametrize(("slots", "seconds"), [(256, 0.5), (500, 0.5), (32, 2.0), (4, 1.0)])
def test_an_endpoint_of_unknown_capacity_is_used_well(slots: int, seconds: float, gauges: bool, least: float) -> None:
    rows = 20 * slots
    endpoint = Endpoint(slots, seconds, gauges=gauges, limiter=ConcurrencyLimiter(1024))
    assert rows * seconds / slots / endpoint.run(rows) > least
    assert endpoint.most <= max(START_WITH_GAUGES, 4.5 * slots)


@pytest.mark.parametrize("gauges", [True, False])
def test_what_was_learned_is_used_from_the_first_row_on(gauges: bool) -> None:
    endpoint = Endpoint(256, 0.5, gauges=gauges, limiter=ConcurrencyLimiter(1024, learned=270))
    assert 5000 * 0.5 / 256 / endpoint.run(5000) > 0.95


def test_without_gauges_it_stands_where_throughput_stopped_growing() -> None:
    endpoint = Endpoint(100, 0.5, gauges=False, limiter=ConcurrencyLimiter(1024))
    endpoint.run(5000)
    assert 100 <= endpoint.limiter.limit <= 176
    assert endpoint.limiter.move in (Move.PLATEAU, Move.THROUGHPUT)


def in_turn(limiter: ConcurrencyLimiter, now: float, rows: int, seconds: float, abreast: int) -> float:
    """A flight whose rows an endpoint answers `abreast` at a time; returns when it is over."""
    limiter.observe(now, 0, None)
    for row in range(rows):
        limiter.completed(now + (row // abreast + 1) * seconds, limiter.limit, (row // abreast + 1) * seconds)
    now += -(-rows // abreast) * seconds
    limiter.observe(now, limiter.limit, None)
    return now


def test_without_gauges_it_leaps_only_where_all_rows_ran_side_by_side() -> None:
    limiter = ConcurrencyLimiter(1024)
    now = in_turn(limiter, 0.0, START, 0.5, START)
    assert (limiter.limit, limiter.move) == (4 * START, Move.THROUGHPUT)
    in_turn(limiter, now, 4 * START, 0.5, 2 * START)  # half of them had to wait: it was too far
    assert limiter.limit == 2 * START

    slow = ConcurrencyLimiter(1024)
    in_turn(slow, 0.0, START, 0.5, START // 4)
    assert slow.limit == 2 * START

    known = ConcurrencyLimiter(1024, learned=40)
    in_turn(known, 0.0, 40, 0.5, 40)
    assert known.limit == 80


@pytest.mark.parametrize("fail", [ConcurrencyLimiter.overloaded, ConcurrencyLimiter.timed_out])
def test_an_endpoint_that_falls_over_by_a_leap_gets_no_more_than_twice_what_it_took(
    fail: Callable[[ConcurrencyLimiter, float, float], None],
) -> None:
    limiter = ConcurrencyLimiter(1024)
    now = in_turn(limiter, 0.0, START, 0.5, START)
    for _ in range(4 * START):
        fail(limiter, now + 0.1, now)
    assert limiter.limit == 2 * START
    for _ in range(5):
        now = in_turn(limiter, now + 1.0, limiter.limit, 0.5, limiter.limit)
    assert limiter.limit <= 2 * START, "it leaps no more"


@pytest.mark.long
def test_without_gauges_it_follows_an_endpoint_that_grew() -> None:
    endpoint = Endpoint(64, 0.2, gauges=False, limiter=ConcurrencyLimiter(1024))
    endpoint.run(5000)
    assert endpoint.limiter.limit < 150
    endpoint.slots = 512
    endpoint.run(200_000)
    assert endpoint.limiter.limit > 400


STEPS = st.lists(
    st.tuples(st.just("overloaded"), st.floats(0, 2), st.none())
    | st.tuples(st.just("observe"), st.floats(0, 2), st.none() | GAUGES)
    | st.tuples(st.just("completed"), st.floats(0, 100), st.none()),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=ample(150))
@given(st.integers(1, 2000), st.booleans(), STEPS)
def test_the_limit_stays_between_floor_and_ceiling(
    ceiling: int, busy: bool, steps: list[tuple[str, float, Gauges | None]]
) -> None:
    limiter, now = ConcurrencyLimiter(ceiling), 0.0
    for what, amount, gauges in steps:
        before = limiter.limit
        if what == "completed":
            for _ in range(int(amount)):
                limiter.completed(now, before if busy else 0)
        elif what == "overloaded":
            now += amount
            limiter.overloaded(now, now)
            assert limiter.limit <= before
        else:
            now += amount
            limiter.observe(now, limiter.limit if busy else 0, gauges)
            assert busy or gauges is None or limiter.limit <= before or limiter.move is Move.START
        assert min(FLOOR, ceiling) <= limiter.limit <= ceiling
        assert limiter.reason
        assert limiter.moves.keys() <= set(Move)


@settings(max_examples=ample(100))
@given(st.integers(2, 2000), GAUGES)
def test_a_long_queue_never_makes_it_grow(inflight: int, gauges: Gauges) -> None:
    limiter = grown(limit=256)
    limiter.observe(0.0, inflight, gauges)
    assert limiter.limit <= 256 or gauges.waiting <= 128
