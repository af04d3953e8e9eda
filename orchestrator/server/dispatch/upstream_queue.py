"""Which row an upstream gets next: rows that share a prefix stay on one upstream. Pure.

Every group of rows with a common prefix has a home among the upstreams, by rendezvous hashing of its prefix, so that
it is the same in the next batch too. Who has nothing left of its own takes over from the end of the longest lane: a
group, or half of what is left of its last one. So the fast ones do more, and nothing waits for one that is slow or
dead.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from orchestrator.server.dispatch.plan import InputRows

_MASK = (1 << 64) - 1


class _Lane:
    """An upstream's rows: a range of positions it is in, and behind it the groups `queue[next:]`."""

    __slots__ = ("at", "end", "next", "queue", "queued")

    def __init__(self) -> None:
        self.at = 0
        self.end = 0
        self.queue = array("I")
        self.next = 0
        self.queued = 0

    @property
    def left(self) -> int:
        """How many rows it has, those that were done before included."""
        return self.end - self.at + self.queued


class UpstreamQueues:
    """Hands out the rows of a plan that are not done, each once, to whoever asks."""

    def __init__(self, plan: InputRows, upstreams: Sequence[str]) -> None:
        """`upstreams` are the names that groups are given to; others that ask later live by what they take over."""
        self._rows = plan.order.rows
        self._done = plan.done
        self._bounds = plan.order.bounds
        self._lanes = {name: _Lane() for name in upstreams}
        self._shared: _Lane | None = None
        if len(self._bounds) > 1 and len(self._lanes) > 1:
            self._give_homes(plan.order.hashes)
        else:
            self._shared = _Lane()
            self._shared.end = len(plan)

    def take(self, upstream: str) -> int | None:
        """The index of the next row for an upstream, or None when every row has been handed out."""
        lane = self._shared or self._lanes.get(upstream)
        if lane is None:
            lane = self._lanes[upstream] = _Lane()
        rows, done = self._rows, self._done
        while True:
            if rows is None:
                index = done.find(0, lane.at, lane.end)
                if index >= 0:
                    lane.at = index + 1
                    return index
            else:
                for at in range(lane.at, lane.end):
                    if not done[index := rows[at]]:
                        lane.at = at + 1
                        return index
            lane.at = lane.end
            if not (self._next_group(lane) or self._take_over(lane)):
                return None

    def _give_homes(self, hashes: array[int]) -> None:
        lanes = list(self._lanes.values())
        seeds = [int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") for name in self._lanes]
        bounds = self._bounds
        for group, prefix in enumerate(hashes):
            best = chosen = -1
            for number, seed in enumerate(seeds):
                # Two rounds of multiply and shift: the prefixes' hashes are mixed well enough for even shares.
                weight = ((prefix ^ seed) * 0x9E3779B97F4A7C15) & _MASK
                weight = ((weight ^ weight >> 32) * 0xD6E8FEB86659FD93) & _MASK
                if weight > best:
                    best, chosen = weight, number
            lanes[chosen].queue.append(group)
            lanes[chosen].queued += bounds[group + 1] - bounds[group]

    def _next_group(self, lane: _Lane) -> bool:
        """Move a lane on to the next group of its own."""
        if lane.next == len(lane.queue):
            return False
        group = lane.queue[lane.next]
        lane.next += 1
        lane.at, lane.end = self._bounds[group], self._bounds[group + 1]
        lane.queued -= lane.end - lane.at
        return True

    def _take_over(self, lane: _Lane) -> bool:
        """Give a lane without rows some of the lane that has the most."""
        if self._shared is not None:
            return False
        other = max(self._lanes.values(), key=lambda each: each.left)
        if not other.left:
            return False
        if other.next == len(other.queue):
            lane.end, lane.at = other.end, (other.at + other.end) // 2
            other.end = lane.at
            return True
        group = other.queue.pop()
        lane.at, lane.end = self._bounds[group], self._bounds[group + 1]
        other.queued -= lane.end - lane.at
        return True
