"""Decides which row an upstream gets next. Rows that share a prefix stay on one upstream. Pure.

Every group of rows with a common prefix has a home among the upstreams. Rendezvous hashing of the prefix gives the
same home in the next batch. An upstream without rows takes rows from the end of the longest queue. It takes one
group, or half of the remaining rows of the last group. So fast upstreams do more, and no row waits for a slow or dead
upstream.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from orchestrator.server.dispatch.plan import InputRows

_MASK = (1 << 64) - 1


class _UpstreamQueue:
    """An upstream's rows: the current range of positions, then the groups `queue[next:]`."""

    __slots__ = ("at", "end", "next", "queue", "queued")

    def __init__(self) -> None:
        self.at = 0
        self.end = 0
        self.queue = array("I")
        self.next = 0
        self.queued = 0

    @property
    def left(self) -> int:
        """Number of rows left. Includes rows that already have a result from before."""
        return self.end - self.at + self.queued


class UpstreamQueues:
    """Hands out each unfinished row of a plan exactly once, to any upstream that asks."""

    def __init__(self, plan: InputRows, upstreams: Sequence[str]) -> None:
        """`upstreams` are the URLs of the upstreams that get groups. Upstreams that join later only take over rows
        from others.
        """
        self._rows = plan.order.rows
        self._done = plan.done
        self._bounds = plan.order.bounds
        self._upstream_queues = {name: _UpstreamQueue() for name in upstreams}
        self._shared: _UpstreamQueue | None = None
        if len(self._bounds) > 1 and len(self._upstream_queues) > 1:
            self._give_homes(plan.order.hashes)
        else:
            self._shared = _UpstreamQueue()
            self._shared.end = len(plan)

    def take(self, upstream: str) -> int | None:
        """Return the index of the next row for an upstream, or None if every row has been handed out."""
        upstream_queue = self._shared or self._upstream_queues.get(upstream)
        if upstream_queue is None:
            upstream_queue = self._upstream_queues[upstream] = _UpstreamQueue()
        rows, done = self._rows, self._done
        while True:
            if rows is None:
                index = done.find(0, upstream_queue.at, upstream_queue.end)
                if index >= 0:
                    upstream_queue.at = index + 1
                    return index
            else:
                for at in range(upstream_queue.at, upstream_queue.end):
                    if not done[index := rows[at]]:
                        upstream_queue.at = at + 1
                        return index
            upstream_queue.at = upstream_queue.end
            if not (self._next_group(upstream_queue) or self._take_over(upstream_queue)):
                return None

    def _give_homes(self, hashes: array[int]) -> None:
        upstream_queues = list(self._upstream_queues.values())
        seeds = [
            int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") for name in self._upstream_queues
        ]
        bounds = self._bounds
        for group, prefix in enumerate(hashes):
            best = chosen = -1
            for number, seed in enumerate(seeds):
                # Two rounds of multiply and shift: the prefixes' hashes are mixed well enough for even shares.
                weight = ((prefix ^ seed) * 0x9E3779B97F4A7C15) & _MASK
                weight = ((weight ^ weight >> 32) * 0xD6E8FEB86659FD93) & _MASK
                if weight > best:
                    best, chosen = weight, number
            upstream_queues[chosen].queue.append(group)
            upstream_queues[chosen].queued += bounds[group + 1] - bounds[group]

    def _next_group(self, upstream_queue: _UpstreamQueue) -> bool:
        if upstream_queue.next == len(upstream_queue.queue):
            return False
        group = upstream_queue.queue[upstream_queue.next]
        upstream_queue.next += 1
        upstream_queue.at, upstream_queue.end = self._bounds[group], self._bounds[group + 1]
        upstream_queue.queued -= upstream_queue.end - upstream_queue.at
        return True

    def _take_over(self, upstream_queue: _UpstreamQueue) -> bool:
        if self._shared is not None:
            return False
        other = max(self._upstream_queues.values(), key=lambda each: each.left)
        if not other.left:
            return False
        if other.next == len(other.queue):
            upstream_queue.end, upstream_queue.at = other.end, (other.at + other.end) // 2
            other.end = upstream_queue.at
            return True
        group = other.queue.pop()
        upstream_queue.at, upstream_queue.end = self._bounds[group], self._bounds[group + 1]
        other.queued -= upstream_queue.end - upstream_queue.at
        return True
