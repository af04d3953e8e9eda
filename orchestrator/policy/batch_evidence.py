"""Evidence about an acknowledged batch: is it gone, does it have answers, are its files complete? Pure.

One response is not proof. A provider's replicas lag, gateways answer for the provider, and files may be read while
they are written. Rows that count as gone or missing are requested again, and paid twice if their answers turn up
after all. So each claim needs several responses over some time, and each wait has an end.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import number_of

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)

DENIALS = 4
"""Number of denials after which a batch counts as gone, if they lasted long enough.

A denial is a response that the batch does not exist, or a list without the batch.
"""
DENIED_FOR = 30 * MINUTE
UNLISTED_FOR = 6 * HOUR
"""Minimum duration of the denials if the backend's list cannot be read.

If the rows are needed at another backend, `FILES_APPEAR` replaces this duration.
"""
HURRIED_DENIALS, HURRIED_FOR = 2, 5 * MINUTE
"""Number and minimum duration of denials for a batch whose rows would otherwise be late at other backends.

If the backend's list cannot be read, `FILES_APPEAR` replaces this duration.
"""

FILES_APPEAR = 15 * MINUTE
"""Longest wait for files after a batch ends. Files may be named late, and become readable even later."""
SETTLES = MINUTE
ANSWERS_KEPT = DAY
"""Longest wait for existing answers, even if the deadline is later."""
ASSUMED_REASK_TIME = 2 * HOUR
"""Assumed time for asking rows again, before any batch has shown the real time."""


class EvidenceVerdict(Struct, frozen=True):
    """The verdict on a claim. `why` says what orch still waits for; None if it need not wait."""

    why: str | None = None

    @property
    def holds(self) -> bool:
        """True if there is enough evidence."""
        return self.why is None


class Denied(Struct, frozen=True):
    """A backend's denials that a batch exists: their number, and the time of the first denial.

    `is_unlisted` is None if the backend's list could not be read. It is true if the whole list lacks the batch.
    """

    since: datetime
    times: int = 1
    is_unlisted: bool | None = None


def gone(denied: Denied, backend: str, now: datetime, *, is_needed: bool) -> EvidenceVerdict:
    """Judge if a batch that its backend does not know is gone.

    `is_needed` is true if its rows are needed at another backend to be in time.
    """
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


def answers_until(ended: datetime, deadline: datetime | None, again: timedelta | None) -> datetime:
    """Return the latest time to wait for an ended batch's existing answers.

    `again` is how long it usually takes to ask rows again, None if unknown. orch waits until asking again would miss
    the deadline, but at most a day. If asking again would be late in any case, orch waits the whole day.
    """
    last = ended + ANSWERS_KEPT
    if deadline is None:
        return last
    latest = deadline - (again or ASSUMED_REASK_TIME)
    return min(last, latest) if latest >= ended + FILES_APPEAR else last


def waits_until(
    until: datetime, ended: datetime, now: datetime, *, watched: timedelta, told: timedelta | None
) -> datetime:
    """Return the latest time to wait for answers. It is later than `until` if only this machine's clock has passed
    that time.

    This machine's clock can be adjusted, and may have been wrong when the batch `ended`. So the wait must also have
    passed by the backend's clock, or while this process `watched`. `told` is the time since the end by the backend's
    clock, None if unknown.
    """
    left = until - ended - max(watched, timedelta())
    if now < until or left <= timedelta() or told is None or told >= until - ended:
        return until
    return now + min(left, until - ended - told)


class EndedBatch(Struct, frozen=True):
    """A backend's report on an ended batch's rows and files.

    `is_counted` is true if the backend stated row counts. `has_begun` is true if at least one row may have run.
    """

    status: BatchStatus
    completed: int = 0
    failed: int = 0
    is_counted: bool = True
    has_output: bool = False
    has_errors: bool = False
    has_begun: bool = True


def nothing_until(ended: datetime, late: timedelta | None) -> datetime:
    """Return the latest time to look for a batch's files if its provider says that the batch did nothing.

    Three facts say so: counts of zero, no usage, and empty files. `late` is the longest delay of the provider's files
    after a batch's end, None if unknown. The wait is at most an hour, even without `late`.
    """
    return ended + (HOUR if late is None else min(HOUR, max(FILES_APPEAR, late)))


def nothing(backend: str, rows: int, until: datetime, now: datetime) -> EvidenceVerdict:
    """Judge whether to take back the rows of a batch that did nothing according to its provider (`nothing_until`)."""
    told = f"{backend} says that the batch is completed, with 0 of {number_of(rows, 'row')}, no usage and empty files"
    return _until(told, until, now)


def unnamed(status: str | None, until: datetime, now: datetime) -> EvidenceVerdict:
    """Judge if a batch's missing output file will never be named. At `until`, orch gives up its answers."""
    return _until(f"the batch is {status}, and names no file with its answers", until, now)


def named(batch: EndedBatch, since: datetime, until: datetime, now: datetime) -> EvidenceVerdict:
    """Judge if all files of a batch are named. At `until`, orch gives up answers that exist."""
    if batch.status is BatchStatus.FAILED:
        return EvidenceVerdict()
    if batch.completed and not batch.has_output:
        answers = number_of(batch.completed, "answer")
        told = f"the batch is {batch.status} and counts {answers}; its output file is not named yet"
        return _until(told, until, now)
    if batch.failed and not batch.has_errors:
        return _until(f"the batch is {batch.status}; its error file is not named yet", since + FILES_APPEAR, now)
    if batch.has_output or batch.has_errors or batch.completed or batch.failed:
        return EvidenceVerdict()
    told = f"the batch is {batch.status}; its output or error file is not named yet"
    if batch.status is BatchStatus.COMPLETED or (not batch.is_counted and batch.has_begun):
        return _until(told, since + FILES_APPEAR, now)
    # Counts of zero may be final. But rows that ran a moment before the end may not be counted yet.
    return _until(told, since + SETTLES, now) if batch.has_begun else EvidenceVerdict()


class FileReading(Struct, frozen=True):
    """Result of reading a batch's files: the number of `rows` that have a line, and the `bytes` received.

    `told` is the size that the backend states, or None. With `has_grown`, the backend stated a smaller size before.
    `cut` is why a transfer broke off, or None. `absent` are files that the batch names but that cannot be read.
    """

    rows: int = 0
    bytes: int = 0
    told: int | None = None
    has_grown: bool = False
    cut: str | None = None
    absent: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if each named file exists and is empty."""
        return not (self.rows or self.bytes or self.told or self.absent or self.cut)

    def is_more_than(self, other: FileReading | None) -> bool:
        """True if this reading has more rows than the other reading.

        If the rows are equal, the bytes decide; if these are equal too, the reading with fewer missing files has
        more.
        """
        if other is None:
            return True
        return (self.rows, self.bytes, -len(self.absent)) > (other.rows, other.bytes, -len(other.absent))


def whole(
    reading: FileReading, expected: int, unchanged_since: datetime, until: datetime, now: datetime
) -> EvidenceVerdict:
    """Judge if a batch's files are complete: they have `expected` rows, or will not grow any more.

    Files of exactly the stated length count as complete once they have not grown for a while. A stated size that has
    grown before proves nothing: it covers only the bytes written so far. In all other cases, orch waits for the rest
    until `until` at most. This includes files that broke off, are missing or contain unrelated rows.
    """
    if reading.rows >= expected and (expected or not (reading.absent or reading.cut)):
        return EvidenceVerdict()
    if reading.absent:
        told = f"its {' and '.join(reading.absent)} file cannot be read yet"
        return _until(told, until, now)
    has = f"its files have {reading.rows:,} of {number_of(expected, 'row')}"
    if reading.cut is not None:
        return _until(f"{has}: the transfer breaks off ({reading.cut})", until, now)
    if reading.told is not None and reading.bytes < reading.told:
        return _until(f"{has} and {reading.bytes:,} of {reading.told:,} bytes", until, now)
    is_as_long = reading.told == reading.bytes and reading.rows > 0 and not reading.has_grown
    return _until(f"{has}, and may grow", min(until, unchanged_since + FILES_APPEAR) if is_as_long else until, now)


def _until(told: str, at: datetime, now: datetime) -> EvidenceVerdict:
    return EvidenceVerdict() if now >= at else EvidenceVerdict(f"{told}; waiting until {at:%a %H:%M} UTC")
