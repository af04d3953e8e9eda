"""When a batch is looked at again, and what is said of one that takes long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.batch_api import BatchStatus
from orchestrator.pipeline.poll_schedule import LONGEST, next_look
from orchestrator.policy.overdue import Usual, stall, usual_of
from tests.support.examples import ample

MIN, HOUR, DAY = 60.0, 3600.0, 86_400.0
KNOWN = Usual(validating_p90=3 * MIN, total_p50=20 * MIN, total_p90=70 * MIN, samples=5)


def bounds(base: float, polls: int, ends_in: float | None = None) -> tuple[float, float]:
    found = [next_look(base, polls, seed=str(seed), ends_in=ends_in) for seed in range(200)]
    return min(found), max(found)


PAUSES = {
    "at first": ((60, 0, None), 60),
    "half as long again": ((60, 1, None), 90),
    "and again": ((60, 2, None), 135),
    "no more than five times": ((60, 9, None), 300),
    "no more than ten minutes": ((200, 9, None), 600),
    "what was set longer is kept to": ((1200, 9, None), 1200),
    "the end is far off": ((60, 9, 7200), 300),
    "the end comes before that": ((60, 9, 150), 150),
    "the end is near": ((60, 9, 10), 60),
    "the end should have been": ((60, 9, -299), 60),
    "the end should have been long ago": ((60, 9, -300), 300),
}


@pytest.mark.parametrize(("asked", "pause"), PAUSES.values(), ids=PAUSES.keys())
def test_the_pause_to_the_next_look(asked: tuple[float, int, float | None], pause: float) -> None:
    least, most = bounds(*asked)
    longest = max(asked[0], min(5 * asked[0], LONGEST))
    assert pause * 0.8 <= least < pause * 0.85
    assert min(pause * 1.15, longest) <= most <= min(pause * 1.2, longest)


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(st.floats(0.1, 5000), st.integers(0, 10**6), st.text(max_size=9), st.none() | st.floats(-1e6, 1e6))
def test_no_look_is_too_soon_or_too_late(base: float, polls: int, seed: str, ends_in: float | None) -> None:
    pause = next_look(base, polls, seed=seed, ends_in=ends_in)
    assert base * 0.79 <= pause <= max(base, LONGEST)
    assert pause == next_look(base, polls, seed=seed, ends_in=ends_in)


def say(
    status: str, in_status: float, *, made: float | None = None, moved: float | None = None, window: float = DAY,
    overruns: bool = False, usual: Usual = KNOWN,
) -> str | None:  # fmt: skip
    return stall(
        status,
        in_status=in_status,
        since_submission=in_status if made is None else made,
        since_progress=moved,
        window=window,
        overruns=overruns,
        usual=usual,
    )


SAID = {
    "validating": (say("validating", 41 * MIN), "validating for 41 min; usual p90 3 min"),
    "validating, no longer than twice the usual": (say("validating", 6 * MIN), None),
    "validating, a second longer": (say("validating", 6 * MIN + 1), "validating for 6 min 1 s; usual p90 3 min"),
    "validating, where it takes no time": (say("validating", 5 * MIN, usual=Usual(1.0, 5.0, 9.0, 50)), None),
    "validating, nothing is known": (
        say("validating", 41 * MIN, usual=Usual()),
        "validating for 41 min; usual p90 10 min (assumed)",
    ),
    "validating, four batches are too few": (
        say("validating", 41 * MIN, usual=Usual(3 * MIN, HOUR, HOUR, 4)),
        "validating for 41 min; usual p90 10 min (assumed)",
    ),
    "validating, not long yet": (say("validating", 20 * MIN, usual=Usual()), None),
    "finalizing": (say("finalizing", 25 * MIN), "finalizing for 25 min; usual p90 10 min (assumed)"),
    "cancelling takes up to ten minutes": (say("cancelling", 20 * MIN), None),
    "cancelling": (say("cancelling", 25 * MIN), "cancelling for 25 min; usual p90 10 min (assumed)"),
    "in progress": (say("in_progress", HOUR), None),
    "in progress, rows move": (say("in_progress", 2 * HOUR, moved=10.0), None),
    "in progress, no row more": (
        say("in_progress", 5 * HOUR, moved=2 * HOUR),
        "in progress for 5 h with no further row for 2 h; usual p90 of the whole 1 h 10 min",
    ),
    "in progress, no further row for not so long": (say("in_progress", HOUR, moved=35 * MIN), None),
    "in progress, rows move, but too slowly": (
        say("in_progress", 5 * HOUR, moved=10.0),
        "in progress for 5 h; usual p90 of the whole 1 h 10 min",
    ),
    "in progress, rows are not counted": (
        say("in_progress", 3 * HOUR),
        "in progress for 3 h; usual p90 of the whole 1 h 10 min",
    ),
    "in progress, nothing is known": (say("in_progress", 11 * HOUR, moved=11 * HOUR, usual=Usual()), None),
    "in progress, nothing is known, and nothing happens": (
        say("in_progress", 13 * HOUR, moved=13 * HOUR, usual=Usual()),
        "in progress for 13 h with no further row for 13 h; usual p90 of the whole 24 h (assumed)",
    ),
    "in progress, quick batches": (say("in_progress", 29 * MIN, moved=29 * MIN, usual=Usual(1.0, 2.0, 3.0, 9)), None),
    "a status of the provider's own": (
        say("paused_by_operator", 3 * HOUR),
        "paused by operator for 3 h; usual p90 of the whole 1 h 10 min",
    ),
    "over its window, which azure lets go on": (
        say("in_progress", 23 * HOUR, made=26 * HOUR, overruns=True),
        "running over its window of 24 h, which this provider allows",
    ),
    "over its window": (
        say("validating", 26 * HOUR),
        "running over its window of 24 h, and its provider has not ended it",
    ),
    "just over its window": (say("in_progress", MIN, made=DAY + 5 * MIN, usual=Usual(1.0, DAY, DAY, 9)), None),
    "a short window": (
        say("in_progress", 40 * MIN, window=1800, usual=Usual()),
        "running over its window of 30 min, and its provider has not ended it",
    ),
}


@pytest.mark.parametrize(("found", "expected"), SAID.values(), ids=SAID.keys())
def test_what_is_said_of_a_batch_that_takes_long(found: str | None, expected: str | None) -> None:
    assert found == expected


@pytest.mark.parametrize("status", [status for status in BatchStatus if status.is_final])
def test_nothing_is_said_of_a_batch_that_is_over(status: BatchStatus) -> None:
    assert say(status, 90 * DAY, moved=90 * DAY) is None


TIMES = st.floats(0, 1e7)


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(
    st.sampled_from(BatchStatus) | st.text(max_size=9), TIMES, TIMES, st.none() | TIMES, TIMES, st.booleans(),
    st.builds(Usual, TIMES, TIMES, TIMES, st.integers(0, 9)), TIMES,
)  # fmt: skip
def test_what_takes_longer_never_stops_being_said(
    status: str, lasting: float, made: float, moved: float | None, window: float, overruns: bool, usual: Usual,
    more: float,
) -> None:  # fmt: skip
    if say(status, lasting, made=made, moved=moved, window=window, overruns=overruns, usual=usual) is not None:
        later = None if moved is None else moved + more
        assert say(
            status, lasting + more, made=made + more, moved=later, window=window, overruns=overruns, usual=usual
        )


def test_what_is_usual_is_told_from_batches() -> None:
    assert usual_of([]) == Usual()
    assert usual_of([(2.0, 30.0)]) == Usual(2.0, 30.0, 30.0, 1)
    assert usual_of([(n, 10.0 * n) for n in range(10, 0, -1)]) == Usual(9, 50.0, 90.0, 10)


@pytest.mark.parametrize(("samples", "known"), [(0, False), (4, False), (5, True)])
def test_a_few_batches_say_nothing(samples: int, known: bool) -> None:
    assert usual_of([(1.0, 2.0)] * samples).is_known is known


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=60))
def test_p90_is_what_nine_of_ten_do_not_exceed(batches: list[tuple[float, float]]) -> None:
    found = usual_of(batches)
    assert sum(first <= found.validating_p90 for first, _ in batches) >= 0.9 * len(batches)
    assert sum(end < found.total_p90 for _, end in batches) < 0.9 * len(batches)
    assert found.total_p50 <= found.total_p90
