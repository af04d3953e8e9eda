"""An upstream's work since the server's start, counted as it happens."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct, field

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the latency buckets in seconds; one more bucket is open."""


class Latencies(Struct):
    """A histogram: how many took up to each of BOUNDS (the last bucket is open), and their sum in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one latency."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class Stats(Struct):
    """Rows and tokens of batches. `succeeded` and `failed` count rows that ended, `retried` attempts that did not."""

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    interactive: int = 0
    """Synchronous requests passed through."""
    interactive_failed: int = 0
    interactive_latencies: Latencies = field(default_factory=Latencies)

    @property
    def ended(self) -> int:
        """Rows that have ended."""
        return self.succeeded + self.failed
