"""What is believed of a batch, as tables: gone or not, until when answers are waited for, named, whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from orchestrator.core.batch_api import BatchStatus
from orchestrator.policy.batch_evidence import (
    Denied,
    EndedBatch,
    FileReading,
    answers_until,
    gone,
    named,
    nothing,
    nothing_until,
    unnamed,
    whole,
)
from orchestrator.policy.overdue import BatchLife

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
T = datetime(2026, 11, 3, 12, tzinfo=UTC)
FAR = T + DAY


# times denied, whether its list lacks it, whether its rows are needed: from when on it counts as gone
GONE = {
    "one denial never does": (1, True, False, None),
    "three do not either": (3, True, False, None),
    "four over half an hour": (4, True, False, 30 * MINUTE),
    "a list that cannot be read needs hours": (4, None, False, 6 * HOUR),
    "two where its rows are needed": (2, True, True, 5 * MINUTE),
    "one is too few even then": (1, True, True, None),
    "needed, and no list": (2, None, True, 15 * MINUTE),
}


@pytest.mark.parametrize(("times", "unlisted", "needed", "after"), GONE.values(), ids=GONE.keys())
def test_gone(times: int, unlisted: bool | None, needed: bool, after: timedelta | None) -> None:
    denied = Denied(T, times, unlisted)
    if after is None:
        assert not gone(denied, "openai", T + 9 * DAY, is_needed=needed).holds
        return
    early = gone(denied, "openai", T + after - SECOND, is_needed=needed)
    assert early.why is not None
    assert f"it counts as gone at {T + after:%H:%M} UTC" in early.why
    assert gone(denied, "openai", T + after, is_needed=needed).holds


# the deadline, how long asking again takes: until when answers that exist are waited for
UNTIL = {
    "a day without a deadline": (None, None, DAY),
    "a day where the deadline is far": (3 * DAY, HOUR, DAY),
    "as long as asking again is in time": (10 * HOUR, 3 * HOUR, 7 * HOUR),
    "two hours where nothing tells": (10 * HOUR, None, 8 * HOUR),
    "a quarter of an hour at least": (75 * MINUTE, HOUR, 15 * MINUTE),
    "too late to ask again: nothing to hurry for": (74 * MINUTE, HOUR, DAY),
    "behind the deadline": (-HOUR, HOUR, DAY),
}


@pytest.mark.parametrize(("deadline", "again", "until"), UNTIL.values(), ids=UNTIL.keys())
def test_answers_until(deadline: timedelta | None, again: timedelta | None, until: timedelta) -> None:
    assert answers_until(T, None if deadline is None else T + deadline, again) == T + until


DONE, CUT = BatchStatus.COMPLETED, BatchStatus.CANCELLED
# what an ended batch tells: from when on its files count as named
NAMED = {
    "a failed one has none": (EndedBatch(BatchStatus.FAILED), 0 * MINUTE),
    "both are there": (EndedBatch(DONE, 2, 1, has_output=True, has_errors=True), 0 * MINUTE),
    "no errors, no error file": (EndedBatch(DONE, 3, has_output=True), 0 * MINUTE),
    "answers without a file are waited for to the end": (EndedBatch(DONE, 3), DAY),
    "though errors are there": (EndedBatch(CUT, 1, 2, has_errors=True), DAY),
    "errors without a file": (EndedBatch(DONE, 2, 1, has_output=True), 15 * MINUTE),
    "completed and nothing named": (EndedBatch(DONE), 15 * MINUTE),
    "counts not told": (EndedBatch(CUT, is_counted=False), 15 * MINUTE),
    "counts not told, and never begun": (EndedBatch(CUT, is_counted=False, has_begun=False), 0 * MINUTE),
    "counts of nothing": (EndedBatch(CUT), MINUTE),
    "cancelled before it began": (EndedBatch(CUT, has_begun=False), 0 * MINUTE),
    "a file nobody counted": (EndedBatch(CUT, has_output=True), 0 * MINUTE),
}


@pytest.mark.parametrize(("told", "after"), NAMED.values(), ids=NAMED.keys())
def test_named(told: EndedBatch, after: timedelta) -> None:
    if after:
        early = named(told, T, FAR, T + after - SECOND).why
        assert early is not None
        assert f"the batch is {told.status}" in early
        assert f"waiting until {T + after:%a %H:%M} UTC" in early
    assert named(told, T, FAR, T + after).holds


ALL, LESS = FileReading(10, 1000), FileReading(6, 600)
# a reading, how many rows are expected: from when on its files count as whole
WHOLE = {
    "every row": (ALL, 10, 0 * MINUTE),
    "every row, whatever the length": (replace(ALL, told=7), 10, 0 * MINUTE),
    "every row, though it broke off behind them": (replace(ALL, cut="reset"), 10, 0 * MINUTE),
    "nothing was expected": (FileReading(), 0, 0 * MINUTE),
    "nothing was expected, and a file is absent": (FileReading(absent=("error",)), 0, DAY),
    "as long as told: when it has not grown for a while": (replace(LESS, told=600), 10, 15 * MINUTE),
    "as long as told now, and more than before": (replace(LESS, told=600, has_grown=True), 10, DAY),
    "shorter than told": (replace(LESS, told=1000), 10, DAY),
    "longer than told": (replace(LESS, told=500), 10, DAY),
    "nobody tells the length": (LESS, 10, DAY),
    "broken off": (replace(LESS, told=600, cut="reset"), 10, DAY),
    "not there": (replace(LESS, told=600, absent=("output",)), 10, DAY),
    "as long as told, and of something else": (FileReading(0, 600, 600), 10, DAY),
}


@pytest.mark.parametrize(("reading", "expected", "after"), WHOLE.values(), ids=WHOLE.keys())
def test_whole(reading: FileReading, expected: int, after: timedelta) -> None:
    if after:
        assert not whole(reading, expected, T, FAR, T + after - SECOND).holds
    assert whole(reading, expected, T, FAR, T + after).holds


def test_a_file_that_has_grown_is_waited_for_anew() -> None:
    assert not whole(replace(LESS, told=600), 10, T + HOUR, FAR, T + HOUR + 14 * MINUTE).holds
    assert LESS.is_more_than(None)
    assert ALL.is_more_than(LESS)
    assert not LESS.is_more_than(LESS)
    assert LESS.is_more_than(replace(LESS, absent=("error",)))


RUNS = BatchLife(made=T, window=DAY, overruns=False, shown=T)
# a batch's course: when nobody waits for it any longer
LOST = {
    "one that is shown never is": (RUNS, None),
    "failing within its window": (replace(RUNS, failing_since=T), DAY),
    "seen to fail for a day behind its window": (replace(RUNS, failing_since=T + 20 * HOUR), 44 * HOUR),
    "away for days, and still failing an hour on": (replace(RUNS, failing_since=T + 5 * DAY), 5 * DAY + HOUR),
    "its rows are needed": (
        replace(RUNS, failing_since=T, ends_from=T + HOUR, is_needed=True),
        HOUR + MINUTE,
    ),
    "needed, and failing for a moment": (
        replace(RUNS, failing_since=T + HOUR, ends_from=T + HOUR, is_needed=True),
        HOUR + 10 * MINUTE,
    ),
    "asked to end, and it does not": (replace(RUNS, ends_from=T + HOUR, asked=T + HOUR), 25 * HOUR),
    "its cancel hangs, and its rows are needed from then on": (
        replace(RUNS, ends_from=T + HOUR, asked=T + HOUR, is_needed=True, given_up_at=T + 2 * HOUR),
        2 * HOUR,
    ),
    "needed, and its cancel was asked for a moment ago": (
        replace(RUNS, ends_from=T + HOUR, asked=T + HOUR, is_needed=True, given_up_at=T + HOUR),
        HOUR + MINUTE,
    ),
    "its cancel hangs, and nobody needs its rows": (
        replace(RUNS, ends_from=T + HOUR, asked=T + HOUR, given_up_at=T + 2 * HOUR),
        25 * HOUR,
    ),
    "overdue, and never asked": (RUNS, None),
    "overdue, and asked": (replace(RUNS, asked=T + 2 * DAY), 3 * DAY),
    "one that may overrun": (replace(RUNS, overruns=True, asked=T + 7 * DAY), 8 * DAY),
}


@pytest.mark.parametrize(("course", "after"), LOST.values(), ids=LOST.keys())
def test_lost(course: BatchLife, after: timedelta | None) -> None:
    if after is None:
        assert course.lost(T + 90 * DAY) is None
        return
    assert course.lost(T + after - SECOND) is None
    assert course.lost(T + after) is not None


@pytest.mark.parametrize(("is_needed", "after"), [(False, 7 * DAY), (True, 10 * MINUTE)])
def test_a_backend_that_refuses_is_waited_for_until_its_rows_are_needed(is_needed: bool, after: timedelta) -> None:
    course = replace(RUNS, ends_from=T, is_needed=is_needed)
    for now, is_over in ((T + after - SECOND, False), (T + after, True)):
        assert (course.unreported("it is too busy", now - T, now) is not None) == is_over


@pytest.mark.parametrize(
    ("late", "waits"),
    [(None, HOUR), (timedelta(0), 15 * MINUTE), (-HOUR, 15 * MINUTE), (40 * MINUTE, 40 * MINUTE), (DAY, HOUR)],
)
def test_a_batch_that_did_nothing_is_waited_for_as_long_as_files_were_ever_late(
    late: timedelta | None, waits: timedelta
) -> None:
    until = nothing_until(T, late)
    assert until == T + waits
    assert not nothing("openai", 3, until, until - SECOND).holds
    assert nothing("openai", 3, until, until).holds
    assert not unnamed("completed", until, until - SECOND).holds
    assert unnamed("completed", until, until).holds
