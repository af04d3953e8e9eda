"""Counters of an upstream's work since the server's start."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the latency buckets in seconds. One more bucket has no upper bound."""


class Latencies(Struct):
    """A histogram: the number of latencies per bucket of BOUNDS, and their sum in seconds. The last bucket has no
    upper bound.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class Stats(Struct):
    """Counts of batch rows and tokens. `succeeded` and `failed` count ended rows; `retried` counts attempts that did
    not end a row.
    """

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    interactive: int = 0
    """Number of synchronous requests passed through."""
    interactive_failed: int = 0
    interactive_latencies: Latencies = field(default_factory=Latencies)

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed


class TimeShare:
    """The time of one upstream, shared equally by its rows in flight.

    The shares of all rows add up to `busy_seconds`, however many rows ran together. `rows` is the number of rows in
    flight now. A row's share is the advance of the shared clock while the row is in flight. Times are in seconds of
    one monotonic clock.
    """

    __slots__ = ("_at", "_share", "busy_seconds", "rows")

    def __init__(self, now: float) -> None:
        self.rows = 0
        self.busy_seconds = 0.0
        self._at = now
        self._share = 0.0

    def step(self, now: float, more: int = 0) -> float:
        """Return the shared clock, and change the number of rows in flight by `more`."""
        if rows := self.rows:
            passed = now - self._at
            self._share += passed / rows
            self.busy_seconds += passed
        self._at = now
        self.rows = rows + more
        return self._share
