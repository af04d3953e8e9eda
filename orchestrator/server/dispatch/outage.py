"""Distinguishes an upstream that fails for all rows from a row that fails by itself. Pure.

A gateway whose engine is down answers every row with an error. A working engine also answers with an error if it
cannot handle a row. A later success decides. If the upstream answers other rows after a row failed, that row is at
fault.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

MANY_ROWS = 10
"""Number of failed rows, without any success, after which the upstream is at fault, even if the rows have tries
left.
"""
SOME_ROWS = 3
"""Number of failed rows after which an upstream that has answered before is at fault.

One of the rows must be on its last try. No row may have succeeded since the first failure.
"""


class HeldRow(Protocol):
    """A failed row. `is_at_fault` is true if the upstream answered another row after this row failed."""

    is_at_fault: bool

    def forgive(self) -> None:
        """Reset the tries that failed while the upstream was at fault."""


R = TypeVar("R", bound=HeldRow)


class Blame(Enum):
    """The party at fault for a failed attempt."""

    ROW = auto()
    UNKNOWN = auto()  # other rows are in flight; their outcomes will show it
    UPSTREAM = auto()


class Outage(Generic[R]):
    """The failures of one upstream since its last success. Times are seconds of the caller's clock."""

    __slots__ = ("_failed", "_has_answered", "_opened_at", "began", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        """True while the upstream is at fault for all rows."""
        self.began: float | None = None
        """Time of the first row's failure."""
        self._failed: dict[R, None] = {}
        self._has_answered = False
        self._opened_at = 0.0

    def note(
        self, row: R, now: float, *, is_last: bool, counts_many: bool, in_flight: int, is_engine: bool = False
    ) -> Blame:
        """Record a failed attempt and return who is at fault.

        `is_last` is true if the row has no tries left. If `counts_many`, MANY_ROWS failures decide at once.
        `in_flight` is the number of other rows in flight. If `is_engine`, the upstream is the engine itself, so any
        answer shows that the engine runs.
        """
        if self.is_open:
            return Blame.UPSTREAM
        if row.is_at_fault:
            return Blame.ROW
        self._failed[row] = None
        self.began = now if self.began is None else self.began
        if not (counts_many and len(self._failed) >= MANY_ROWS):
            if not is_last or is_engine:
                return Blame.ROW
            if in_flight:
                return Blame.UNKNOWN
            if self._has_answered and len(self._failed) < SOME_ROWS:
                return Blame.ROW
        self.is_open, self._opened_at = True, now
        return Blame.UPSTREAM

    def failed_rows(self) -> list[R]:
        """Return the rows that failed since the last success."""
        return list(self._failed)

    def succeeded(self, sent_at: float) -> bool:
        """Record a success of a row sent at `sent_at`. Return True if the success ends the outage."""
        self._has_answered = True
        if self.began is None:
            return False
        was_open = self.is_open
        # A row that was in flight all the time shows that the upstream worked when the others failed.
        if not was_open or sent_at < self._opened_at:
            for row in self._failed:
                row.is_at_fault = True
        self.end()
        return was_open

    def end(self) -> None:
        self._failed.clear()
        self.began, self.is_open = None, False


NEVER = float("-inf")


class AccountRefusal:
    """Decides if an upstream refuses the account, from the rows that it refused and accepted.

    Times are in seconds of one monotonic clock. After each refusal, the upstream gets no rows for `seconds`.
    """

    __slots__ = ("_left_alone_until", "_seconds", "_taken_at", "refused_at")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left_alone_until = NEVER
        self.refused_at: float | None = None
        """Time when the refused row was sent; None if the account is not refused."""
        self._taken_at = NEVER
        """Time when the latest accepted row was sent."""

    def refused(self, now: float, sent_at: float) -> None:
        """Record that the upstream refused the account for a row sent at `sent_at`."""
        self.refused_at = sent_at
        self._left_alone_until = now + self._seconds

    def took(self, sent_at: float) -> bool:
        """Record that the upstream accepted a row sent at `sent_at`.

        Return False if the refused row was sent later, because the acceptance then proves nothing.
        """
        if sent_at > self._taken_at:
            self._taken_at = sent_at
        if self.refused_at is None:
            return True
        if sent_at < self.refused_at:
            return False
        self.refused_at, self._left_alone_until = None, NEVER
        return True

    def took_since(self, sent_at: float) -> bool:
        """True if the upstream accepted a row sent at `sent_at` or later, so it does not refuse the account."""
        return self._taken_at >= sent_at

    def pause(self, now: float) -> float:
        """Return the seconds until the upstream may get rows again. A value of 0 or less means now."""
        return self._left_alone_until - now
