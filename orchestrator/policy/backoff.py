"""What goes wrong and should not be able to: one job's defect keeps no other, and is tried again ever more rarely."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.core.model import JobFault

FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(hours=1)
TRIES = 4
"""So often a job of which nothing is at a backend is tried before it fails by name."""


@dataclass(frozen=True, slots=True)
class RepeatedFault:
    """The same job has failed so often, the last time `at` and for this reason; it is tried again at `next_at`.

    `kind` is what was raised and where: the same of a defect, whatever its message says.
    """

    code: str
    kind: str
    reason: str
    times: int
    at: datetime
    next_at: datetime

    @property
    def told(self) -> str:
        """For people: the code goes first."""
        return f"{self.code}: {self.reason}"


def raised(error: Exception) -> str:
    """The class of an error, and the function that raised it: `KeyError in orchestrator.store.rows.finished`."""
    last, trace = None, error.__traceback__
    while trace is not None:
        last, trace = trace.tb_frame, trace.tb_next
    where = "" if last is None else f" in {last.f_globals.get('__name__')}.{last.f_code.co_name}"
    return f"{type(error).__name__}{where}"


class Faults:
    """The jobs and other things that fail in a way that nobody foresaw. In memory: a start tries all of them."""

    def __init__(self) -> None:
        self._known: dict[str, RepeatedFault] = {}

    def is_due(self, what: str, now: datetime, *, hurry: bool = False) -> bool:
        """Whether something may be tried now; one that somebody waits for is tried at the shortest pace."""
        fault = self._known.get(what)
        if fault is None:
            return True
        due = min(fault.next_at, fault.at + FIRST_PAUSE) if hurry else fault.next_at
        # A clock that was set back keeps nothing waiting for longer than it would have.
        return not fault.at <= now < due

    def caught(self, what: str, error: Exception, now: datetime, code: str = JobFault.INTERNAL) -> RepeatedFault:
        """Something failed once more."""
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
        """It went well, or is over."""
        self._known.pop(what, None)
