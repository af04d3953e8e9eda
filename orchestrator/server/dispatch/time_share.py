"""Each row's share of an upstream's time while many are in flight together."""

from __future__ import annotations


class TimeShare:
    """The time of one upstream, shared equally by its rows in flight.

    The shares of all rows add up to `busy_seconds`, however many ran together. `rows` are in flight now. A row's
    share is the advance of the shared clock between `begin` and `end`; times are seconds of one monotonic clock.
    """

    __slots__ = ("_at", "_share", "busy_seconds", "rows")

    def __init__(self, now: float) -> None:
        self.rows = 0
        self.busy_seconds = 0.0
        self._at = now
        self._share = 0.0

    def begin(self, now: float) -> float:
        """Count a row that is sent, and return the shared clock."""
        self._tick(now)
        self.rows += 1
        return self._share

    def so_far(self, began: float, now: float) -> float:
        """Return the share, up to now, of a row that is still in flight."""
        self._tick(now)
        return self._share - began

    def end(self, began: float, now: float) -> float:
        """Count a row that is back, and return its share."""
        self._tick(now)
        self.rows -= 1
        return self._share - began

    def _tick(self, now: float) -> None:
        if rows := self.rows:
            passed = now - self._at
            self._share += passed / rows
            self.busy_seconds += passed
        self._at = now
