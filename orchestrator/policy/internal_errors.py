"""Internal errors of jobs. A defect in one job does not affect others; orch retries the job at growing intervals."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.model import JobFault

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(hours=1)
TRIES = 4
"""Number of faults after which orch fails a job without rows at a backend, or a night whose job cannot be built."""


class RepeatedFault(Struct, frozen=True):
    """Repeated internal errors of one job or night. `times` counts the errors.

    `at` is the time of the last error, and `reason` is its message. The next try is at `next_at`. `kind` contains the
    error's class and the function that raised it. A defect keeps its `kind`, whatever the message.
    """

    code: str
    kind: str
    reason: str
    times: int
    at: datetime
    next_at: datetime

    @property
    def told(self) -> str:
        """The code and the reason as one text."""
        return f"{self.code}: {self.reason}"


def raised(error: Exception) -> str:
    """Return an error's class and the function that raised it: `KeyError in orchestrator.store.rows.finished`."""
    last, trace = None, error.__traceback__
    while trace is not None:
        last, trace = trace.tb_frame, trace.tb_next
    where = "" if last is None else f" in {last.f_globals.get('__name__')}.{last.f_code.co_name}"
    return f"{type(error).__name__}{where}"


class Faults:
    """Internal errors by subject: a job or a night.

    The errors are kept in memory, so every subject is tried again after a restart.
    """

    def __init__(self) -> None:
        self._known: dict[str, RepeatedFault] = {}

    def is_due(self, what: str, now: datetime, *, hurry: bool = False) -> bool:
        """True if a new try is due. With `hurry` (a user waits), the shortest pause is enough."""
        fault = self._known.get(what)
        if fault is None:
            return True
        due = min(fault.next_at, fault.at + FIRST_PAUSE) if hurry else fault.next_at
        # A clock that was set back must not lengthen a wait.
        return not fault.at <= now < due

    def caught(self, what: str, error: Exception, now: datetime, code: str = JobFault.INTERNAL) -> RepeatedFault:
        """Record another failure and return it."""
        before = self._known.get(what)
        times = 1 if before is None else before.times + 1
        # 15 s, 1 min, 4 min, 16 min, then every hour.
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 4 ** min(times - 1, 8))
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]
        fault = self._known[what] = RepeatedFault(code, f"{code}:{raised(error)}", reason, times, now, now + pause)
        return fault

    def __contains__(self, what: str) -> bool:
        return what in self._known

    def cleared(self, what: str) -> None:
        """Forget a failure, after a success or once its subject has ended."""
        self._known.pop(what, None)
