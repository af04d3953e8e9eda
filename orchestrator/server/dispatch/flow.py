"""How many requests an upstream is given at once. Found by itself: no constant to tune. Pure: time is an argument.

With vLLM's gauges the limit follows its queue: grow while nothing waits, fall back to what runs plus a small
standing queue. Without gauges it grows as long as throughput grows with it. An overloaded answer cuts it by a third,
once per flight.
"""

from __future__ import annotations

from dataclasses import dataclass

START = 16
FLOOR = 2
CUT = 0.7
GROWTH = 1.5
PLATEAU = 1.05


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an upstream says of itself: requests running and waiting, KV-cache use from 0 to 1."""

    running: int
    waiting: int
    kv_usage: float


class Flow:
    """The concurrency limit of one upstream. `reason` says why it last moved."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.limit = min(START, ceiling)
        self.reason = "start"
        self._last_cut = float("-inf")
        self._best = 0.0
        self._since: float | None = None
        self._completed = 0

    def overloaded(self, now: float, sent_at: float) -> None:
        """The upstream refused a request that was sent at `sent_at`; one cut a flight answers all of them."""
        if sent_at >= self._last_cut:
            self._last_cut = now
            self._move(int(self.limit * CUT), "overload answered")

    def completed(self) -> None:
        """One answer came."""
        self._completed += 1

    def observe(self, now: float, inflight: int, gauges: Gauges | None) -> None:
        """Called a few times a second with what is in flight and, where there are any, the gauges."""
        if gauges is not None:
            self._by_gauges(inflight, gauges)
        else:
            self._by_throughput(now, inflight)

    def _by_gauges(self, inflight: int, gauges: Gauges) -> None:
        queue = min(64, max(8, int(0.08 * gauges.running)))
        if gauges.waiting > 2 * queue:
            # What runs there may be others' requests too: a queue is never a reason to send more.
            self._move(min(self.limit, gauges.running + queue), f"{gauges.waiting} waiting")
            return
        full = inflight >= 0.9 * self.limit
        seen = gauges.running + gauges.waiting >= 0.9 * inflight
        if full and seen and gauges.waiting < queue / 2 and gauges.kv_usage < 0.9:
            self._move(self.limit * 2 if gauges.waiting == 0 else self.limit + queue, "room at the upstream")

    def _by_throughput(self, now: float, inflight: int) -> None:
        if inflight < 0.9 * self.limit:
            self._since = None
            return
        if self._since is None:
            self._since, self._completed = now, 0
            return
        elapsed = now - self._since
        if elapsed < 0.5 or self._completed < 2 * self.limit:
            return
        rate = self._completed / elapsed
        if rate > self._best * PLATEAU:
            self._best = rate
            self._move(int(self.limit * GROWTH) + 1, f"throughput grew to {rate:.0f}/s")
        self._since, self._completed = now, 0

    def _move(self, limit: int, reason: str) -> None:
        limit = min(self.ceiling, max(FLOOR, limit))
        if limit != self.limit:
            self.limit, self.reason = limit, reason
