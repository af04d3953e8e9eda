"""What may be believed of a batch that was acknowledged: that it is gone, that its answers exist, that its files are
whole. Pure.

One answer is not proof. A provider's replicas lag, its gateways answer for it, its files are written while they are
read. What is taken for gone or missing is asked for again and paid twice if it turns up after all; so each claim
needs several answers over some time, and each wait has an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.core.wire import BatchStatus

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

DENIALS = 4
"""So often a backend must say that it does not know a batch, or show a list without it."""
DENIED_FOR = 30 * MINUTE
UNLISTED_FOR = 6 * HOUR
"""Where its list cannot be read, its denials must last for so long instead."""
HURRIED_DENIALS, HURRIED_FOR = 2, 5 * MINUTE
"""The same for a batch whose rows are needed elsewhere in time."""

FILES_APPEAR = 15 * MINUTE
"""A batch may be told as over before its files are named, and a file be named before it can be read."""
SETTLES = MINUTE
ANSWERS_KEPT = DAY
"""Answers that exist are waited for no longer than this, however far the deadline is."""
ASSUMED_REASK_SHARE = 2 * HOUR
"""How long it takes to ask rows again, where no batch has shown it."""

LISTED_AFTER = 15 * MINUTE
"""Where a batch cannot be retrieved for so long, its backend's list may show how it is."""

OVERDUE = DAY
OVERRUN = 6 * DAY
"""So long behind its window a batch is asked to end, at a provider that lets batches run on behind it."""
LONG = DAY
NO_ANSWER = 10 * MINUTE
"""Rows that are rerouted from a backend that has not answered for so long are let go after `LAST_CALL`."""
LAST_CALL = MINUTE
"""A backend that is silent has so long to say what became of rows that are needed elsewhere."""


@dataclass(frozen=True, slots=True)
class EvidenceVerdict:
    """What a claim comes to. `why` is what is waited for, for people; None where nothing has to be waited for."""

    why: str | None = None

    @property
    def holds(self) -> bool:
        """Whether there is evidence enough."""
        return self.why is None


@dataclass(frozen=True, slots=True)
class Denied:
    """How often a backend has said that it does not know a batch, and since when.

    `is_unlisted` says that its list was read to the end without it; None where the list could not be read.
    """

    since: datetime
    times: int = 1
    is_unlisted: bool | None = None


def gone(denied: Denied, backend: str, now: datetime, *, is_needed: bool) -> EvidenceVerdict:
    """Whether a batch is gone that a backend does not know: `is_needed` where its rows have to go on in time."""
    times, least = (HURRIED_DENIALS, HURRIED_FOR) if is_needed else (DENIALS, DENIED_FOR)
    if denied.is_unlisted is None:
        least = FILES_APPEAR if is_needed else UNLISTED_FOR
    at = denied.since + least
    if denied.times >= times and now >= at:
        return EvidenceVerdict()
    return EvidenceVerdict(
        f"{backend} has said since {denied.since:%H:%M} UTC that it does not know the batch; it counts as gone "
        f"at {at:%H:%M} UTC unless it reappears"
    )


@dataclass(frozen=True, slots=True)
class BatchLife:
    """A batch between its creation and its end, as far as it is known.

    `made`, `window` and `overruns` say how long it may run, `shown` when its backend last showed it, `failing_since`
    since when every look has failed (None: the last one did not). `ends_from` is when its end was decided, `asked`
    when it was first asked for. Times of looks are those of this process: who was away for days has asked nobody.
    `is_needed` says that its rows have to go on elsewhere in time.
    """

    made: datetime
    window: timedelta
    overruns: bool
    shown: datetime
    failing_since: datetime | None = None
    ends_from: datetime | None = None
    asked: datetime | None = None
    is_needed: bool = False

    @property
    def overdue(self) -> datetime:
        """From then on it is asked to end."""
        return self.made + self.window + (OVERRUN if self.overruns else OVERDUE)

    def lost(self, now: datetime) -> str | None:
        """Why nobody waits for it any longer; None while somebody does."""
        failing = None if self.failing_since is None else now - self.failing_since
        if failing is not None:
            needed = self.is_needed and self.ends_from is not None and now >= self.ends_from + LAST_CALL
            if needed and failing >= NO_ANSWER:
                return f"its backend has not listed it since {self.shown:%H:%M} UTC, and its rows are needed in time"
            if now >= self.made + self.window and _is_long(failing, now - self.shown):
                return f"its backend has not listed it for {_days(now - self.shown)}"
            return None
        ends_from = min(self.ends_from or self.overdue, self.overdue)
        if self.asked is not None and _is_long(now - self.asked, now - ends_from):
            return f"it has not ended, {_days(now - ends_from)} after it should have"
        return None


def _is_long(seen: timedelta, told: timedelta) -> bool:
    """Whether something has lasted: for a day under our eyes, or for an hour and, by what is told, for days."""
    return seen >= LONG or (seen >= HOUR and told >= 3 * LONG)


def _days(span: timedelta) -> str:
    days = round(span / DAY)
    return "a day" if days <= 1 else f"{days} days"


def answers_until(ended: datetime, deadline: datetime | None, again: timedelta | None) -> datetime:
    """Until when answers that exist are waited for: as long as asking again could still be in time; a day at most.

    `again` is how long that usually takes. Where it could not be in time any more there is nothing to hurry for.
    """
    last = ended + ANSWERS_KEPT
    if deadline is None:
        return last
    latest = deadline - (again or ASSUMED_REASK_SHARE)
    return min(last, latest) if latest >= ended + FILES_APPEAR else last


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """What an ended batch tells of its rows and files. `is_counted`: its counts are told, and not left out.

    `has_begun`: a row of it may have run.
    """

    status: BatchStatus
    completed: int = 0
    failed: int = 0
    is_counted: bool = True
    has_output: bool = False
    has_errors: bool = False
    has_begun: bool = True


def nothing_until(ended: datetime, late: timedelta | None) -> datetime:
    """Until when the files of a batch are looked at that did nothing by its provider's own word.

    Its provider says three times that there is nothing: counts of zero, no usage, empty files. `late` is the longest
    that its files have ever come after the end, None where no batch has shown it: then, and at most, an hour.
    """
    return ended + (HOUR if late is None else min(HOUR, max(FILES_APPEAR, late)))


def nothing(backend: str, rows: int, until: datetime, now: datetime) -> EvidenceVerdict:
    """Whether the rows of a batch go back that did nothing by its provider's own word; see `nothing_until`."""
    told = f"{backend} says that the batch is completed and did nothing: 0 of {rows:,} rows, no usage, empty files"
    return EvidenceVerdict() if now >= until else EvidenceVerdict(f"{told}; its rows go back at {until:%a %H:%M} UTC")


def named(batch: EndedBatch, since: datetime, until: datetime, now: datetime) -> EvidenceVerdict:
    """Whether all files are named that a batch has; `until` is when answers that exist are given up."""
    if batch.status is BatchStatus.FAILED:
        return EvidenceVerdict()
    if batch.completed and not batch.has_output:
        told = f"the batch is {batch.status} and counts {batch.completed:,} answers; its output file is not named yet"
        return _until(told, until, now)
    if batch.failed and not batch.has_errors:
        return _until(f"the batch is {batch.status}; its error file is not named yet", since + FILES_APPEAR, now)
    if batch.has_output or batch.has_errors or batch.completed or batch.failed:
        return EvidenceVerdict()
    told = f"the batch is {batch.status}; its output or error file is not named yet"
    if batch.status is BatchStatus.COMPLETED or (not batch.is_counted and batch.has_begun):
        return _until(told, since + FILES_APPEAR, now)
    # Counts of zero are an answer. Rows that ran a moment before the end may not be in them yet.
    return _until(told, since + SETTLES, now) if batch.has_begun else EvidenceVerdict()


@dataclass(frozen=True, slots=True)
class FileReading:
    """What a reading of a batch's files brought: `rows` that have a line, `bytes` as they came.

    `told` is the size that the backend says, None where it does not; `has_grown`: it has said a smaller one before.
    `cut` is why a transfer broke off, `absent` are the files that are named and not there.
    """

    rows: int = 0
    bytes: int = 0
    told: int | None = None
    has_grown: bool = False
    cut: str | None = None
    absent: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if each file that is named is there and holds no byte."""
        return not (self.rows or self.bytes or self.told or self.absent or self.cut)

    def is_more_than(self, other: FileReading | None) -> bool:
        """Whether something has come since that one."""
        if other is None:
            return True
        return (self.rows, self.bytes, -len(self.absent)) > (other.rows, other.bytes, -len(other.absent))


def whole(
    reading: FileReading, expected: int, unchanged_since: datetime, until: datetime, now: datetime
) -> EvidenceVerdict:
    """Whether a batch's files are all there: rows as many as `expected`, or nothing more comes.

    What is exactly as long as its backend says is believed once it has not grown for a while, unless the backend has
    said otherwise before: then its size is that of what is written by now. What is of another or no known length,
    broken off, not there or of something else is waited for while that makes sense.
    """
    if reading.rows >= expected and (expected or not (reading.absent or reading.cut)):
        return EvidenceVerdict()
    if reading.absent:
        told = f"its {' and '.join(reading.absent)} file cannot be read yet"
        return _until(told, until, now)
    has = f"its files have {reading.rows:,} of {expected:,} rows"
    if reading.cut is not None:
        return _until(f"{has}: the transfer breaks off ({reading.cut})", until, now)
    if reading.told is not None and reading.bytes < reading.told:
        return _until(f"{has} and {reading.bytes:,} of {reading.told:,} bytes", until, now)
    is_as_long = reading.told == reading.bytes and reading.rows > 0 and not reading.has_grown
    return _until(f"{has}, and may grow", min(until, unchanged_since + FILES_APPEAR) if is_as_long else until, now)


def _until(told: str, at: datetime, now: datetime) -> EvidenceVerdict:
    return EvidenceVerdict() if now >= at else EvidenceVerdict(f"{told}; waiting until {at:%a %H:%M} UTC")
