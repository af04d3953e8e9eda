"""Which engines run where: tables of cases, whole nights in a simulation, and what holds whatever is asked."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.core.engines import EngineState, ModelDemand
from orchestrator.core.hours import Hours
from orchestrator.policy.engine_switches import (
    EngineStep,
    EngineView,
    EngineWish,
    FleetTerms,
    ModelTerms,
    StepCause,
    StepKind,
    steps,
)

NOW = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)
NIGHT = Hours(time(20), time(7), UTC)
A, B = ModelTerms("a", rate=1.0), ModelTerms("b", rate=1.0)
ONE_SLOT = FleetTerms((0,), (A, B))


def rows(model: str | None, waiting: int, hours: float = 24.0, out: int = 0) -> ModelDemand:
    return ModelDemand(model, waiting + out, out, (NOW + timedelta(hours=hours)).timestamp())


def warm(model: str, *slots: int, idle: float = 0.0, state: EngineState = EngineState.WARM) -> EngineView:
    return EngineView(model, slots or (0,), state, 100.0, idle)


def told(found: list[EngineStep]) -> list[tuple[str, str, str]]:
    return [(step.kind.value, step.model, step.cause.value) for step in found]


def test_nothing_runs_that_nobody_asks_for() -> None:
    assert steps(ONE_SLOT, [], [], NOW) == []
    assert told(steps(ONE_SLOT, [], [rows("a", 5)], NOW)) == [("start", "a", "rows")]


def test_the_one_that_is_due_first_starts_first() -> None:
    assert told(steps(ONE_SLOT, [], [rows("a", 100), rows("b", 100, 5.0)], NOW)) == [("start", "b", "rows")]


def test_what_is_loaded_goes_on_to_its_last_row() -> None:
    asked = [rows("a", 3000, 24), rows("b", 3000, 8)]
    assert steps(ONE_SLOT, [warm("a")], asked, NOW) == []
    assert steps(ONE_SLOT, [warm("a", idle=1)], [rows("b", 3000, 8)], NOW) == []
    assert told(steps(ONE_SLOT, [warm("a", idle=6)], [rows("b", 3000, 8)], NOW)) == [("stop", "a", "swap")]
    assert steps(ONE_SLOT, [warm("a", idle=6, state=EngineState.DRAINING)], [rows("b", 3000, 8)], NOW) == []


def test_it_switches_earlier_where_a_deadline_asks_for_it() -> None:
    asked = [rows("a", 3000, 24), rows("b", 3000, 1.5)]
    assert told(steps(ONE_SLOT, [warm("a")], asked, NOW)) == [("stop", "a", "deadline")]
    # Back again only when b is done: its own deadline is later.
    assert steps(ONE_SLOT, [warm("b")], asked, NOW) == []


def test_an_engine_on_each_slot_that_there_is_work_for() -> None:
    four = FleetTerms((0, 1, 2, 3), (A, replace(B, size=4)))
    assert [step.slots for step in steps(four, [], [rows("a", 10_000)], NOW)] == [(0,), (1,), (2,), (3,)]
    assert [step.slots for step in steps(four, [], [rows("a", 90)], NOW)] == [(0,), (1,)]
    assert [step.slots for step in steps(four, [], [rows("b", 9)], NOW)] == [(0, 1, 2, 3)]
    # The rest of a's rows needs one engine: b has to wait for it, the three others of a are idle.
    running = [warm("a", slot) for slot in range(4)]
    assert steps(four, running, [rows("a", 20), rows("b", 9)], NOW) == []


def test_slots_that_one_model_has_no_use_for_are_another_ones() -> None:
    two = FleetTerms((0, 1), (A, B))
    found = steps(two, [], [rows("a", 20, 5), rows("b", 20)], NOW)
    assert [(step.model, step.slots) for step in found] == [("a", (0,)), ("b", (1,))]


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("19:59", [("stop", "a", "hours")]),
        ("20:00", []),
        ("06:57", []),
        ("06:58", [("stop", "a", "hours")]),
        ("07:00", [("stop", "a", "hours")]),
    ],
)
def test_outside_the_hours_nothing_runs_and_rows_come_back_before_their_end(
    clock: str, expected: list[tuple[str, str, str]]
) -> None:
    hour, minute = map(int, clock.split(":"))
    at = datetime(2026, 11, 23, hour, minute, tzinfo=UTC)
    terms = replace(ONE_SLOT, hours=NIGHT)
    asked = [rows("a", 1000)]
    assert told(steps(terms, [warm("a")], asked, at)) == expected
    assert bool(steps(terms, [], asked, at)) is (clock == "20:00")
    for step in steps(terms, [warm("a")], asked, at):
        assert at + timedelta(seconds=step.drain) <= datetime(2026, 11, 23, 7, tzinfo=UTC) or step.drain == 0


def test_one_that_would_end_before_it_had_done_anything_is_not_started() -> None:
    terms = replace(ONE_SLOT, hours=NIGHT, models=(replace(A, start_seconds=600.0),))
    assert steps(terms, [], [rows("a", 9)], datetime(2026, 11, 23, 6, 50, tzinfo=UTC)) == []
    assert steps(terms, [], [rows("a", 9)], datetime(2026, 11, 23, 6, 30, tzinfo=UTC)) != []


def test_idle_ones_end_after_a_while_and_those_that_sleep_for_another_stay() -> None:
    assert steps(ONE_SLOT, [warm("a", idle=599)], [], NOW) == []
    assert told(steps(ONE_SLOT, [warm("a", idle=600)], [], NOW)) == [("stop", "a", "idle")]
    sleeping = replace(ONE_SLOT, models=(replace(A, sleeps=True), B))
    assert told(steps(sleeping, [warm("a", idle=6)], [rows("b", 9)], NOW)) == [("sleep", "a", "swap")]
    asleep = warm("a", idle=6000, state=EngineState.ASLEEP)
    assert told(steps(sleeping, [asleep], [rows("b", 9)], NOW)) == [("start", "b", "rows")]
    assert told(steps(sleeping, [asleep, warm("b", idle=6)], [rows("a", 9)], NOW)) == [("stop", "b", "swap")]
    assert told(steps(sleeping, [asleep], [rows("a", 9)], NOW)) == [("wake", "a", "rows")]
    assert told(steps(sleeping, [asleep], [], NOW)) == [("stop", "a", "idle")]


def test_what_a_person_asks_for() -> None:
    def asked(wish: EngineWish, engines: list[EngineView], waiting: int = 0) -> list[tuple[str, str, str]]:
        return told(steps(ONE_SLOT, engines, [rows("a", waiting)], NOW, {"a": wish}))

    assert asked(EngineWish.START, []) == [("start", "a", "asked")]
    assert asked(EngineWish.START, [warm("a", idle=6000)]) == []
    assert asked(EngineWish.STOP, [warm("a")], 50) == [("stop", "a", "asked")]
    assert asked(EngineWish.STOP, [], 50) == []
    assert asked(EngineWish.SLEEP, [warm("a")], 50) == [("stop", "a", "asked")]  # it does not sleep
    # Rows of another model do not wait for what a person started without any.
    wanted = steps(ONE_SLOT, [warm("a", idle=9)], [rows("b", 9)], NOW, {"a": EngineWish.START})
    assert told(wanted) == [("stop", "a", "swap")]
    outside = replace(ONE_SLOT, hours=Hours(time(1), time(2), UTC))
    assert steps(outside, [], [], NOW, {"a": EngineWish.START}) == []


def test_one_that_was_given_up_is_tried_again_after_a_while() -> None:
    given_up = EngineView("a", (0,), EngineState.GIVEN_UP, 599.0)
    assert steps(ONE_SLOT, [given_up], [rows("a", 9)], NOW) == []
    again = replace(given_up, seconds=600.0)
    assert told(steps(ONE_SLOT, [again], [rows("a", 9)], NOW)) == [("stop", "a", "retry")]


def test_rows_for_any_model_start_the_first_and_no_other_one() -> None:
    assert told(steps(ONE_SLOT, [], [rows(None, 9)], NOW)) == [("start", "a", "rows")]
    assert steps(ONE_SLOT, [warm("b")], [rows(None, 9)], NOW) == []


def night(terms: FleetTerms, work: dict[str, tuple[int, float]], start: float = 60.0) -> list[tuple[str, float]]:
    """A night with one slot, a second a step: when which model was started. Rows go at one a second."""
    left = {name: many for name, (many, _) in work.items()}
    engine: EngineView | None = None
    idle, found, at = 0.0, [], 0.0
    while any(left.values()) and at < 100_000:
        now = NOW + timedelta(seconds=at)
        due = {name: hours for name, (_, hours) in work.items()}
        asked = [rows(name, many, due[name]) for name, many in left.items() if many]
        there = [] if engine is None else [replace(engine, idle_seconds=idle)]
        for step in steps(terms, there, asked, now):
            if step.kind is StepKind.STOP:
                engine = None
            else:
                engine = EngineView(step.model, step.slots, EngineState.STARTING, 0.0)
                found.append((step.model, at))
        at += 1
        if engine is not None:
            engine = replace(engine, seconds=engine.seconds + 1)
            if engine.state is EngineState.STARTING and engine.seconds >= start:
                engine = replace(engine, state=EngineState.WARM)
            if engine.state is EngineState.WARM and left[engine.model]:
                left[engine.model] -= 1
            idle = 0.0 if left[engine.model] else idle + 1
    assert not any(left.values())
    return found


@pytest.mark.long
def test_two_models_on_one_slot_are_two_starts() -> None:
    assert [name for name, _ in night(ONE_SLOT, {"a": (3000, 24.0), "b": (3000, 24.0)})] == ["a", "b"]
    assert [name for name, _ in night(ONE_SLOT, {"a": (3000, 24.0), "b": (3000, 1.2)})] == ["b", "a"]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from("ab"), st.tuples(st.integers(1, 600), st.floats(0.0, 1.0)), min_size=1))
def test_no_night_switches_to_and_fro(work: dict[str, tuple[int, float]]) -> None:
    assert len(night(ONE_SLOT, work)) <= 3


engines_st = st.builds(
    EngineView,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from([(0,), (1,), (0, 1)]),
    st.sampled_from(EngineState),
    st.floats(0, 10_000),
    st.floats(0, 10_000),
)


@given(
    st.lists(engines_st, max_size=4, unique_by=lambda one: (one.model, one.slots)),
    st.lists(
        st.builds(rows, st.sampled_from(["a", "b", None]), st.integers(0, 10_000), st.floats(-5, 30)), max_size=3
    ),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from(EngineWish)),
    st.integers(0, 24 * 60),
)
def test_what_holds_whatever_is_asked(
    engines: list[EngineView], demands: list[ModelDemand], wishes: dict[str, EngineWish], minutes: int
) -> None:
    terms = FleetTerms((0, 1), (replace(A, sleeps=True), replace(B, size=2)), NIGHT)
    now = NOW + timedelta(minutes=minutes)
    found = steps(terms, engines, demands, now, wishes)
    assert len({(step.model, step.slots) for step in found}) == len(found)
    opening = NIGHT.span(now)
    coming = [step for step in found if step.kind in (StepKind.START, StepKind.WAKE)]
    if not opening.opens <= now < opening.closes:
        assert coming == []
    busy = [
        slot
        for one in engines
        for slot in one.slots
        if one.state in (EngineState.STARTING, EngineState.WARM, EngineState.DRAINING)
    ]
    for step in coming:
        # No slot is given away while something runs on it, and none twice.
        assert not set(step.slots) & set(busy)
        busy += step.slots
    for step in found:
        there = [one.state for one in engines if (one.model, one.slots) == (step.model, step.slots)]
        if step.kind in (StepKind.STOP, StepKind.SLEEP):
            assert there[0] not in (EngineState.COLD, EngineState.DRAINING)
        assert step.reason
        assert isinstance(step.cause, StepCause)


@given(st.integers(0, 366 * 24 * 60), st.sampled_from(["20:00-07:00", "02:30-03:30"]))
def test_hours_open_and_close_in_turn_whatever_the_clocks_do(minutes: int, text: str) -> None:
    hours = replace(Hours.parse(text), tz=ZoneInfo("Europe/Berlin"))
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    span = hours.span(now)
    assert span.opens < span.closes
    assert now < span.closes
    assert span.opens - now < timedelta(days=1, hours=1, minutes=1)
    ahead = hours.steps(now)
    assert [seconds for seconds, _ in ahead] == sorted(seconds for seconds, _ in ahead)
    assert all(one[1] != other[1] for one, other in pairwise(ahead))
    assert ahead[0][1] == (0.0 if span.opens <= now else 1.0)


@pytest.mark.parametrize("text", ["", "20-07", "24:00-07:00", "20:00-20:00", "20:00", "20:00-07:60"])
def test_what_are_no_hours(text: str) -> None:
    with pytest.raises(ValueError, match=r"hours|time"):
        Hours.parse(text)
