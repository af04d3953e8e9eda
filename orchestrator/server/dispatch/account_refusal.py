"""Pauses an upstream that refuses our account; another row's success can contradict the refusal."""

from __future__ import annotations

NEVER = float("-inf")


class AccountRefusal:
    """Judgement whether an upstream refuses the account, by the rows it refused and accepted.

    Times are seconds of one monotonic clock; after each refusal the upstream gets no rows for `seconds`.
    """

    __slots__ = ("_left_alone_until", "_seconds", "_taken_at", "refused_at")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._left_alone_until = NEVER
        self.refused_at: float | None = None
        """When the refused row was sent; None if the account is not refused."""
        self._taken_at = NEVER
        """When the latest accepted row was sent."""

    def refused(self, now: float, sent_at: float) -> None:
        """Record that it refused the account for a row sent at that time."""
        self.refused_at = sent_at
        self._left_alone_until = now + self._seconds

    def took(self, sent_at: float) -> bool:
        """Record that it accepted a row sent at that time. False if that was before the refused row: no proof."""
        if sent_at > self._taken_at:
            self._taken_at = sent_at
        if self.refused_at is None:
            return True
        if sent_at < self.refused_at:
            return False
        self.refused_at, self._left_alone_until = None, NEVER
        return True

    def took_since(self, sent_at: float) -> bool:
        """True if it accepted a row sent at that time or later: then it does not refuse the account."""
        return self._taken_at >= sent_at

    def pause(self, now: float) -> float:
        """Return the seconds until it may get rows again; 0 or less if it may now."""
        return self._left_alone_until - now
