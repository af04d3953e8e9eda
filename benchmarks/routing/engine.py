"""An engine or a realtime API of a simulated night, which works on rows of several jobs at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from benchmarks.routing.night import SynchronousNight

LEAVES = 0.5
"""Below so many rows, nothing is left."""


class Held(Protocol):
    """A shard that is here."""

    job: str
    rows: int
    done: int
    sent: float | None
    first: float | None
    seen: float | None


class Engine:
    """Works on the shard that is due soonest, of those the one that came first."""

    def __init__(self, sync: SynchronousNight, deadlines: Mapping[str, float]) -> None:
        self.sync = sync
        self._deadlines = deadlines
        self._left: dict[int, tuple[Held, float]] = {}
        self.ahead = sync.ahead
        self._warm = math.inf if sync.ahead <= 0 else 0.0
        """When it can begin; infinite while it is cold and nobody asks anything of it."""
        self._idle_since = -math.inf
        self._paid: dict[int, float] = {}

    @property
    def is_busy(self) -> bool:
        """Whether it has rows."""
        return bool(self._left)

    def shards(self) -> Iterator[Held]:
        """Those that are here."""
        return (held for held, _ in self._left.values())

    def take(self, shard: Held) -> None:
        """A shard comes."""
        assert shard.sent is not None
        if not self._left and self.ahead <= 0:
            cold = shard.sent - self._idle_since > self.sync.cools or math.isinf(self._idle_since)
            self._warm = shard.sent + (self.sync.start if cold else 1.0)
        self._left[id(shard)] = (shard, float(shard.rows))

    def leave(self, shard: Held) -> int:
        """A shard is taken away; how many of its rows are done."""
        self._left.pop(id(shard), None)
        return shard.done

    def paid(self, shard: Held) -> float:
        """Dollars for what of a shard is done, each row at the price of its time."""
        if not self.sync.prices:
            return shard.done * self.sync.price
        return self._paid.get(id(shard), 0.0)

    def next_event(self, now: float) -> float:
        """When its rate changes, it can begin, or a shard is done if nothing else happens."""
        if not self._left and self.ahead <= 0:
            return math.inf
        times = [self.sync.next_change(now)]
        if now < self._warm:
            times.append(self._warm)
        elif self.ahead > 0:
            rate = self.sync.rate_at(now)
            times.append(now + self.ahead / rate if rate > 0 else math.inf)
        else:
            for held, rate in self._shared(now):
                if rate > 0:
                    times.append(now + self._left[id(held)][1] / rate)
        return min(times)

    def work(self, a: float, b: float) -> list[Held]:
        """Work from a to b, between which nothing changes; the shards that are done then."""
        if a < self._warm or b <= a:
            return []
        if self.ahead > 0:
            self.ahead = max(0.0, self.ahead - self.sync.rate_at(a) * (b - a))
            return []
        over = []
        for held, rate in self._shared(a):
            before = self._left[id(held)][1]
            left = max(0.0, before - rate * (b - a))
            self._left[id(held)] = (held, left)
            self._paid[id(held)] = self._paid.get(id(held), 0.0) + (before - left) * self.sync.price_at(a)
            held.seen = b
            held.done = held.rows - math.ceil(left - 1e-6)
            if held.done and held.first is None:
                held.first = min(b, a + 1 / rate)
            if left < LEAVES:
                over.append(held)
        for held in over:
            del self._left[id(held)]
        if over and not self._left:
            self._idle_since = b
        return over

    def _shared(self, now: float) -> list[tuple[Held, float]]:
        """Rows a second for each shard: all of it for the one that is due soonest."""
        first = min(self._left.values(), key=lambda one: self._deadlines[one[0].job], default=None)
        if first is None:
            return []
        return [(held, self.sync.rate_at(now) if held is first[0] else 0.0) for held, _ in self._left.values()]
