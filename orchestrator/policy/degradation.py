"""Detection of an engine that has become slower at the same number of rows in flight. Pure.

An engine that was always slow is just a slow engine. An engine that does far less than an hour ago leaks memory,
throttles or shares its GPU, and a restart helps.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

WINDOW_SECONDS = 60.0
"""Length of a measured window, in seconds."""
SLOW_SECONDS = 300.0
"""Seconds that an engine must have been slow before a restart."""
SLOW_SHARE = 0.6
"""Share of its own best rate below which an engine counts as slow."""
REST_SECONDS = 3600.0
"""Minimum seconds between two restarts for slowness or for memory."""


class SpeedWatch(Struct):
    """Work of an engine, window by window. All times are seconds of one clock.

    A window is compared with the best window with a similar number of rows in flight (within a factor of two).
    """

    best: dict[int, float] = field(default_factory=dict)
    _slow: deque[tuple[float, float]] = field(default_factory=deque)
    _begin: tuple[float, float] | None = None
    _rows: list[int] = field(default_factory=list)
    _restarted: float = float("-inf")

    def observe(self, at: float, done: float, rows: int) -> str | None:
        """Record the total work done and the rows in flight. Return a reason to restart the engine, or None."""
        if self._begin is None or done < self._begin[1] or rows == 0:
            # Without rows in flight, the engine shows no speed.
            self._begin, self._rows = (at, done), []
            return None
        self._rows.append(rows)
        begin, before = self._begin
        if at - begin < WINDOW_SECONDS:
            return None
        rate, size = (done - before) / (at - begin), min(self._rows).bit_length()
        is_level = max(self._rows).bit_length() <= size + 1
        self._begin, self._rows = (at, done), []
        return self._judge(at, rate, size) if is_level else None

    def too_large(self, at: float, size: int, most: int | None) -> str | None:
        """Return why an engine must restart for its use of host memory, or None. `size` and `most` are in bytes."""
        if most is None or size <= most or at - self._restarted < REST_SECONDS:
            return None
        return f"it takes {size:,} bytes of the machine's memory; the limit is {most:,}"

    def restarted(self, at: float) -> None:
        """Record a restart. Earlier work is no longer used for comparison."""
        self._restarted, self._begin = at, None
        self._slow.clear()
        self.best.clear()

    def _judge(self, at: float, rate: float, size: int) -> str | None:
        best = self.best[size] = max(rate, self.best.get(size, 0.0))
        if rate >= SLOW_SHARE * best:
            self._slow.clear()
            return None
        self._slow.append((at, rate))
        if at - self._slow[0][0] + WINDOW_SECONDS < SLOW_SECONDS or at - self._restarted < REST_SECONDS:
            return None
        minutes = SLOW_SECONDS / 60
        return f"for {minutes:.0f} minutes it has run at {rate / best:.0%} of its earlier rate at this concurrency"
