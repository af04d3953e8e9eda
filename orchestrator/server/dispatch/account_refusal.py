"""An upstream that refuses our account gets no rows for a while, and is not believed by one row alone."""

from __future__ import annotations

NEVER = float("-inf")


class AccountRefusal:
    """Whether an upstream refuses the account, by the rows that it refused and took. Times are seconds of one
    monotonic clock; it is left alone for `seconds` after each refusal.
    """

    __slots__ = ("_left_alone_until", "_refused_at", "_seconds", "_taken_at")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left_alone_until = NEVER
        self._refused_at: float | None = None
        """When the row was sent by which it refused the account."""
        self._taken_at = NEVER
        """When the latest row was sent that it took."""

    def refused(self, now: float, sent_at: float) -> None:
        """It refused the account by a row that was sent at that time."""
        self._refused_at = sent_at
        self._left_alone_until = now + self._seconds

    def took(self, sent_at: float) -> bool:
        """It took a row that was sent at that time; False where that was before it refused, which proves nothing."""
        self._taken_at = max(self._taken_at, sent_at)
        if self._refused_at is None:
            return True
        if sent_at < self._refused_at:
            return False
        self._refused_at, self._left_alone_until = None, NEVER
        return True

    def took_since(self, sent_at: float) -> bool:
        """Whether it took a row that was sent at that time or behind it: then it does not refuse the account."""
        return self._taken_at >= sent_at

    def pause(self, now: float) -> float:
        """For how many more seconds it is left alone; 0 or less where it is not."""
        return self._left_alone_until - now
