"""Whether an engine has become slower than it was itself, with as many rows at once. Pure.

An engine that is slow from the start is a slow engine; one that does far less than it did an hour ago leaks,
throttles or shares its GPU, and a restart helps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 60.0
"""What is done is measured over so long."""
SLOW_SECONDS = 300.0
"""So long it must have been slow."""
SLOW_SHARE = 0.6
"""Slow is below this part of its own best."""
REST_SECONDS = 3600.0
"""An engine is started again for this at most once in so long."""


@dataclass(slots=True)
class SpeedWatch:
    """What an engine does, window by window. Times are seconds of one clock.

    Windows compare with the best one of about as many rows at once: within a factor of two.
    """

    best: dict[int, float] = field(default_factory=dict)
    _slow: deque[tuple[float, float]] = field(default_factory=deque)
    _begin: tuple[float, float] | None = None
    _rows: list[int] = field(default_factory=list)
    _restarted: float = float("-inf")

    def observe(self, at: float, done: float, rows: int) -> str | None:
        """Take in that so much work was done by now, with so many rows out; why it is to start again, if it is."""
        if self._begin is None or done < self._begin[1] or rows == 0:
            # Nothing is out: what it could do cannot be seen.
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
        """Why it is to start again for what it takes of its machine's memory, in bytes; None while it may go on."""
        if most is None or size <= most or at - self._restarted < REST_SECONDS:
            return None
        return f"it takes {size:,} bytes of the machine's memory, and may take {most:,}"

    def restarted(self, at: float) -> None:
        """It was started anew: it is measured against what it does from now on."""
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
        return f"for {minutes:.0f} minutes it has done {rate / best:.0%} of what it did with as many rows at once"
