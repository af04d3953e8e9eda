"""How many engines rows are worth where each costs by the hour."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.engines import EngineState, ModelDemand
from orchestrator.policy.engine_switches import EngineView, EngineWish, FleetTerms, ModelTerms, steps
from orchestrator.policy.fleet_size import FINISH_SECONDS, MARGIN, RateWatch, engines_for

HOUR = 3600.0
NOW = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("due", "running", "wanted"),
    [
        ([], 0, 0),
        ([(10 * HOUR, 3600)], 0, 1),  # an hour of work until tomorrow: one engine
        ([(10 * HOUR, 3600)], 4, 1),  # and no more because more are there
        ([(2 * HOUR, 7200)], 0, 2),
        ([(2 * HOUR, 7200)], 1, 2),
        ([(HOUR, 36_000)], 0, 15),  # 45,000 s of work, 3,180 s for each behind its start
        ([(HOUR, 36_000)], 5, 14),  # those that run need no start
        ([(HOUR, 36_000_000)], 0, 64),  # it cannot hold: all that there may be
        ([(60.0, 1)], 0, 64),  # due before one could start
        ([(60.0, 0)], 3, 0),
        # A later deadline's rows come behind those of an earlier one, whichever is named first.
        ([(10 * HOUR, 36_000), (HOUR, 1800)], 0, 2),
        ([(HOUR, 1800), (10 * HOUR, 36_000)], 0, 2),
    ],
)
def test_the_fewest_that_keep_every_deadline(due: list[tuple[float, int]], running: int, wanted: int) -> None:
    assert engines_for(due, rate=1.0, start=300.0, running=running, most=64, now=0.0) == wanted


@given(
    due=st.lists(st.tuples(st.floats(600, 1e5), st.integers(0, 100_000)), max_size=5),
    running=st.integers(0, 20),
    start=st.floats(0, 500),
    rate=st.floats(0.01, 100),
)
def test_no_deadline_is_missed_for_want_of_engines_nor_one_too_many(
    due: list[tuple[float, int]], running: int, start: float, rate: float
) -> None:
    most = 1000
    found = engines_for(due, rate=rate, start=start, running=running, most=most, now=0.0)

    def holds(engines: int) -> bool:
        rows = 0
        for deadline, more in sorted(due):
            rows += more
            left = deadline - FINISH_SECONDS
            there = min(engines, running) * left + max(0, engines - running) * max(0.0, left - start)
            if MARGIN * rows / rate > there * (1 + 1e-9):
                return False
        return True

    assert 0 <= found <= most
    if found < most:
        assert holds(found)
    if found:
        assert not holds(found - 1) or found == most


def demand(waiting: int, hours: float) -> ModelDemand:
    deadline = NOW.timestamp() + hours * HOUR
    return ModelDemand("m", waiting, 0, deadline, ((deadline, waiting),))


def view(slot: int, state: EngineState = EngineState.WARM, idle: float = 0.0) -> EngineView:
    return EngineView("m", (slot,), state, 100.0, idle)


def test_a_model_with_slots_of_its_own_gets_what_its_deadline_asks_for() -> None:
    terms = FleetTerms((0, 1, 2, 3), (ModelTerms("m", rate=1.0, own=(0, 1, 2, 3)),), idle_seconds=300)
    assert [one.slots for one in steps(terms, [], [demand(9_000, 24)], NOW)] == [(0,)]
    assert [one.slots for one in steps(terms, [], [demand(9_000, 1)], NOW)] == [(0,), (1,), (2,), (3,)]
    # One that waits for a machine is asked for once.
    waiting = [view(slot, EngineState.PENDING) for slot in range(4)]
    assert steps(terms, waiting, [demand(9_000, 1)], NOW) == []
    # Those that run go on while rows wait, though fewer would do; without rows they end after a while.
    running = [view(slot) for slot in range(4)]
    assert steps(terms, running, [demand(100, 24)], NOW) == []
    idle = [view(slot, idle=301) for slot in range(4)]
    assert [(one.kind, one.cause) for one in steps(terms, idle, [], NOW)] == [("stop", "idle")] * 4


def test_as_many_as_there_are_to_be_at_least() -> None:
    terms = FleetTerms((0, 1, 2), (ModelTerms("m", rate=1.0, own=(0, 1, 2), least=2),), idle_seconds=300)
    assert [one.slots for one in steps(terms, [], [], NOW)] == [(0,), (1,)]
    idle = [view(slot, idle=400) for slot in range(2)]
    assert steps(terms, idle, [], NOW) == []
    assert [one.slots for one in steps(terms, idle, [], NOW, {"m": EngineWish.STOP})] == [(0,), (1,)]


def test_a_rate_is_that_of_engines_at_work() -> None:
    watch = RateWatch()
    assert watch.rate is None
    for second in range(70):
        watch.observe(float(second), "a", 10 * second, 4)
        watch.observe(float(second), "b", 30 * second, 4)
        watch.observe(float(second), "idle", 0, 0)
    assert watch.rate == pytest.approx(20)
    # A pause is no slowness: what was seen before it does not count behind it, and the last rate stands.
    watch.observe(70.0, "a", 700, 0)
    watch.keep(["a"])
    assert watch.rate == pytest.approx(20)
    for second in range(600, 620):
        watch.observe(float(second), "a", 700 + 5 * (second - 600), 2)
    assert watch.rate == pytest.approx(5)
