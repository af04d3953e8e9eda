"""One night as it comes: what each route would do, known to nobody but the simulation (and the clairvoyant).

Times are seconds since the job was submitted, money is dollars as floats: here it only keeps score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Windows = Sequence[tuple[float, float]]
"""When something stands still: from, until."""


@dataclass(frozen=True, slots=True)
class BatchNight:
    """A Batch API tonight. A shard takes `seconds` times its own `jitter` (shards of a night are slow together), has
    its first row after `lag` of that, and stands still in `down`. A cancelled one is free after `cancel` seconds."""

    name: str
    price: float
    seconds: float
    jitter: tuple[float, ...]
    lag: float = 0.4
    cancel: float = 180.0
    window: float = 86_400.0
    down: Windows = ()
    room: int | None = None
    location: str = "hosted"

    def takes(self, shard: int) -> float:
        """Seconds of work in the shard with this number."""
        return self.seconds * self.jitter[shard % len(self.jitter)]

    def ends(self, sent: float, shard: int) -> float:
        """When it is over, done or expired."""
        return min(sent + self.window, until(sent, self.takes(shard), self.down))

    def done(self, sent: float, shard: int, now: float, rows: int) -> int:
        """Rows done by now."""
        takes, worked = self.takes(shard), up_between(sent, now, self.down)
        if worked >= takes - 1e-6:
            return rows
        return int(rows * max(0.0, (worked / takes - self.lag) / (1 - self.lag)))


@dataclass(frozen=True, slots=True)
class LaneNight:
    """A paced route tonight: `rate` rows a second but in `down`; others' `ahead` rows and `start` seconds come first.

    `nominal` is the rate that its operator states, which is all that is known of it before it was used.
    """

    name: str
    price: float
    rate: float
    nominal: float
    ahead: float = 0.0
    start: float = 60.0
    down: Windows = ()
    location: str = "hosted"

    def ready(self, now: float) -> float:
        """When it begins with rows sent now: it has started, and the others' rows are done."""
        return max(now + self.start, until(0.0, self.ahead / self.rate, self.down))

    def rows_between(self, a: float, b: float) -> float:
        """Rows done from a to b."""
        return self.rate * up_between(a, b, self.down)


@dataclass(frozen=True, slots=True)
class Night:
    """A job of so many rows with a deadline, and the world that it meets; `at` is the number of the night."""

    at: int
    rows: int
    deadline: float
    batches: tuple[BatchNight, ...]
    lanes: tuple[LaneNight, ...]
    shard_rows: int = 2_000
    budget: float | None = None
    local_only: bool = False
    hour: int = 20


@dataclass(slots=True)
class Score:
    """What a policy made of a night."""

    in_time: bool
    cost: float
    done_at: float
    by_route: dict[str, int] = field(default_factory=dict)


def up_between(a: float, b: float, down: Windows) -> float:
    """Seconds between a and b in which it works."""
    return max(0.0, b - a) - sum(max(0.0, min(b, end) - max(a, begin)) for begin, end in down)


def until(a: float, seconds: float, down: Windows) -> float:
    """When so many seconds of work are done that begin at a."""
    at = a
    for begin, end in sorted(down):
        if end <= at:
            continue
        if begin > at:
            if begin - at >= seconds:
                return at + seconds
            seconds -= begin - at
        at = end
    return at + seconds


def clairvoyant(night: Night) -> Score:
    """The least that the night can cost: who knows it sends each row where it is done in time, the cheapest first.

    A bound: it also takes from a batch that is not done in time the very rows that are, and waits for no look.
    """
    routes: list[tuple[float, float, str]] = [
        (lane.price, lane.rows_between(lane.ready(0.0), night.deadline), lane.name)
        for lane in night.lanes
        if lane.location == "local" or not night.local_only
    ]
    if not night.local_only:
        routes += [(batch.price, _batch_rows(batch, night), batch.name) for batch in night.batches]
    left, cost, by_route = night.rows, 0.0, {}
    for price, rows, name in sorted(routes):
        taken = min(left, math.floor(rows))
        left, cost = left - taken, cost + taken * price
        by_route[name] = taken
    affordable = night.budget is None or cost <= night.budget
    return Score(not left and affordable, cost, night.deadline, by_route)


def _batch_rows(batch: BatchNight, night: Night) -> float:
    """Rows of a batch that are done by the deadline, were all sent at once (or in turn, where there is a quota)."""
    if batch.room is None:
        shards = range(math.ceil(night.rows / night.shard_rows))
        total = 0
        for shard in shards:
            end = batch.ends(0.0, shard)
            stops = end if end <= night.deadline else night.deadline - batch.cancel
            total += batch.done(0.0, shard, stops, night.shard_rows)
        return total
    at, shard, total = 0.0, 0, 0
    while total < night.rows and (end := batch.ends(at, shard)) <= night.deadline:
        at, shard, total = end, shard + 1, total + batch.room
    return total + batch.done(at, shard, night.deadline - batch.cancel, batch.room)
