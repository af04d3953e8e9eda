"""Usual durations of batches, and signs that a batch is slow, overdue or lost. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.durations import MINUTE, duration
from orchestrator.core.model import Forecast
from orchestrator.core.shards import Shard

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

LISTED_AFTER = timedelta(minutes=15)
"""If a batch cannot be retrieved for this long, orch looks for it in its backend's list of batches."""

OVERDUE = DAY
OVERRUN = 6 * DAY
"""Time after a batch's window until orch cancels the batch, at a provider that lets batches overrun."""
LONG = DAY
NO_ANSWER = timedelta(minutes=10)
"""Minimum time that a backend must be silent before orch gives up a batch whose rows are needed elsewhere.

`LAST_CALL` must have passed, too. A batch whose rows were rerouted, or whose job was cancelled, gets this time for
its answers after it ends.
"""
BUSY_FOR = timedelta(days=7)
"""Longest wait for a backend that is full or refuses the account. Only people can fix such a backend."""
LAST_CALL = timedelta(minutes=1)
"""Time that a backend gets to report on rows that are needed elsewhere, before orch gives up their batch."""
ENOUGH = 5
"""Minimum number of a backend's own batches for learned times. With fewer batches, the times are assumed."""

_OVER = frozenset(status for status in BatchStatus if status.is_final)
_BRIEF = frozenset({BatchStatus.VALIDATING, BatchStatus.FINALIZING, BatchStatus.CANCELLING})
_ASSUMED_P90 = 10.0 * MINUTE
_FACTOR = 2
_MIN_SECONDS = 5.0 * MINUTE
_MIN_QUIET = 30.0 * MINUTE


class Usual(Struct, frozen=True):
    """Usual durations of a backend's batches, in seconds: from submission to the first row, and to the end.

    `samples` counts the observed batches.
    """

    validating_p90: float = 0.0
    total_p50: float = 0.0
    total_p90: float = 0.0
    samples: int = 0

    @property
    def is_known(self) -> bool:
        """True if enough batches were observed."""
        return self.samples >= ENOUGH


def usual_of(batches: Sequence[tuple[float, float]]) -> Usual:
    """Return the usual times. Each of `batches` has its seconds from submission to the first row, and to the end."""
    began = sorted(first for first, _ in batches)
    ended = sorted(end for _, end in batches)
    return Usual(_part(began, 0.9), _part(ended, 0.5), _part(ended, 0.9), len(batches))


def _part(values: Sequence[float], part: float) -> float:
    return values[math.ceil(len(values) * part) - 1] if values else 0.0


class BatchLife(Struct, frozen=True):
    """A batch between its creation and its end, as far as it is known.

    The batch was created at `made`, and must end within `window`; `overruns` is true if its provider lets batches run
    longer. `shown` is when its backend last showed it. `failing_since` is when polls began to fail (None: the last
    poll succeeded). Poll times are from this process only: while it was down, it polled nothing.

    `ends_from` is when orch decided to end the batch, `asked` when orch first asked the backend to end it.
    `is_needed` says that the rows are needed elsewhere in time. `cancels` says that the backend can end a running
    batch. From `given_up_at` on, orch no longer waits for the cancel to finish.
    """

    made: datetime
    window: timedelta
    overruns: bool
    shown: datetime
    failing_since: datetime | None = None
    ends_from: datetime | None = None
    asked: datetime | None = None
    is_needed: bool = False
    cancels: bool = True
    given_up_at: datetime | None = None

    @property
    def overdue(self) -> datetime:
        """The time from which orch asks the backend to end the batch."""
        return self.made + self.window + (OVERRUN if self.overruns else OVERDUE)

    def unreported(self, why: str, span: timedelta, now: datetime) -> str | None:
        """Return the reason to stop waiting for a batch whose backend refuses to report, or None.

        `why` describes the refusal, and `span` is its duration. orch waits a week, but only `NO_ANSWER` if the rows
        are needed elsewhere in time.
        """
        if self._is_last_call(now) and span >= NO_ANSWER:
            return f"{why}, and its rows are needed in time"
        return f"{why} for a week" if span >= BUSY_FOR else None

    def _is_last_call(self, now: datetime) -> bool:
        # A provider that cannot end the batch needs no time for a last call.
        wait = LAST_CALL if self.cancels else timedelta()
        return self.is_needed and self.ends_from is not None and now >= self.ends_from + wait

    def may_be_given_up(self, now: datetime) -> bool:
        """True if the batch may be given up at `given_up_at`.

        Its rows must be needed elsewhere, and its backend must have had `LAST_CALL` since it was asked to end the
        batch. If the backend could not be asked, the time since polls began to fail counts.
        """
        asked = self.asked or self.failing_since
        return self.is_needed and asked is not None and now >= asked + LAST_CALL

    def lost(self, now: datetime) -> str | None:
        """Return the reason to stop waiting for the batch, or None."""
        asked = self.asked or self.failing_since  # a backend that does not answer cannot be asked
        if self.is_needed and not self.cancels and asked is not None and now > asked:
            return "its backend cannot end it, and its rows are needed in time: they are paid for there and elsewhere"
        if self.given_up_at is not None and now >= self.given_up_at and self.may_be_given_up(now):
            return "its cancel takes too long, and its rows are needed in time: they are paid for there and elsewhere"
        failing = None if self.failing_since is None else now - self.failing_since
        if failing is not None:
            if self._is_last_call(now) and failing >= NO_ANSWER:
                return f"its backend has not listed it since {self.shown:%H:%M} UTC, and its rows are needed in time"
            if now >= self.made + self.window and _is_long(failing, now - self.shown):
                return f"its backend has not listed it for {_days(now - self.shown)}"
            return None
        ends_from = min(self.ends_from or self.overdue, self.overdue) if self.cancels else self.overdue
        if self.asked is not None and _is_long(now - max(self.asked, ends_from), now - ends_from):
            return f"it has not ended, {_days(now - ends_from)} after it should have"
        return None


def _is_long(seen: timedelta, told: timedelta) -> bool:
    """True if this process has seen a problem for a day. An hour is enough if records show it for three days."""
    return seen >= LONG or (seen >= HOUR and told >= 3 * LONG)


def _days(span: timedelta) -> str:
    days = round(span / DAY)
    return "a day" if days <= 1 else f"{days} days"


def stall(
    status: str,
    *,
    in_status: float,
    since_submission: float,
    since_progress: float | None,
    window: float,
    overruns: bool,
    usual: Usual,
) -> str | None:
    """Describe the unusual duration of a batch. Returns None if the duration is usual, or the batch is over.

    All times are in seconds. `since_progress` is None before the first row, or if the provider does not count rows.
    `overruns` is True if the provider lets batches run past their window.
    """
    if status in _OVER:
        return None
    if since_submission > window + _MIN_SECONDS:
        goes_on = "which this provider allows" if overruns else "and its provider has not ended it"
        return f"running over its window of {duration(window)}, {goes_on}"
    told = f"{status.replace('_', ' ')} for {duration(in_status)}"
    if status in _BRIEF:
        is_known = usual.is_known and status == BatchStatus.VALIDATING
        p90 = usual.validating_p90 if is_known else _ASSUMED_P90
        return f"{told}; usual p90 {_p90(p90, is_known)}" if in_status > max(_MIN_SECONDS, _FACTOR * p90) else None
    p90 = usual.total_p90 if usual.is_known else window
    whole = f"usual p90 of the whole {_p90(p90, usual.is_known)}"
    if since_progress is not None and since_progress > max(_MIN_QUIET, p90 / _FACTOR):
        return f"{told} with no further row for {duration(since_progress)}; {whole}"
    return f"{told}; {whole}" if since_submission > max(_MIN_QUIET, _FACTOR * p90) else None


def _p90(seconds: float, is_known: bool) -> str:
    return duration(seconds) + ("" if is_known else " (assumed)")


def seconds_beyond(shard: Shard, forecast: Forecast, now: datetime) -> float | None:
    """Return the seconds by which a batch has exceeded its median forecast, or None if the batch is not slow.

    A batch is slow above its p95. A rerouted batch is slow above its median, because orch gave it up as slow.
    """
    if shard.submitted_at is None:
        return None
    took = ((shard.rerouted_at or shard.ended_at or now) - shard.submitted_at).total_seconds()
    return took - forecast.p50 if took > (forecast.p50 if shard.rerouted_at else forecast.p95) else None
