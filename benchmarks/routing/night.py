"""A night as it comes: what each route would do, known to nobody but the simulation (and the clairvoyant).

Times are seconds since the night began, money is dollars as floats: here it only keeps score. Nothing here, nor in
`world`, shares code with the planner or its forecasts, which it judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Windows = Sequence[tuple[float, float]]
"""From, until."""
Speed = tuple[tuple[float, float], ...]
"""From when on, which part of the full rate."""
FULL: Speed = ((0.0, 1.0),)


@dataclass(frozen=True, slots=True)
class BatchNight:
    """A Batch API tonight. A shard takes `seconds` times its own `jitter` (shards of a night are slow together), has
    its first row after `lag` of that, and stands still in `down`. A cancelled one is over after `cancel` seconds.

    While it is `silent`, no call is answered. With `hidden`, a running batch tells no counts. It is looked at every
    `poll` seconds. At `halves` its queue shrinks to half of `room`, without a word.
    """

    name: str
    price: float
    seconds: float
    jitter: tuple[float, ...]
    lag: float = 0.4
    cancel: float = 180.0
    window: float = 86_400.0
    down: Windows = ()
    silent: Windows = ()
    hidden: bool = False
    room: int | None = None
    poll: float = 90.0
    location: str = "hosted"
    halves: float = math.inf

    def room_at(self, at: float) -> float:
        """Return how many rows it takes at a time."""
        if self.room is None:
            return math.inf
        return self.room if at < self.halves else self.room // 2

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

    def answers(self, at: float) -> float:
        """When a call that is made now is answered."""
        return next((end for begin, end in self.silent if begin <= at < end), at)


@dataclass(frozen=True, slots=True)
class SynchronousNight:
    """A synchronous route tonight: `rate` rows a second times its `speed`; others' `ahead` rows come first.

    After `cools` seconds without work it needs `start` seconds to begin. `nominal` is the rate that its operator
    states, None where he states none. Where it costs `hourly` dollars an hour, a policy knows no other price of it.
    `prices` say from when on a row costs something else. If they are a `surprise`, no policy sees them beforehand.
    """

    name: str
    price: float
    rate: float
    nominal: float | None
    ahead: float = 0.0
    start: float = 60.0
    cools: float = math.inf
    speed: Speed = FULL
    location: str = "hosted"
    hourly: float | None = None
    prices: tuple[tuple[float, float], ...] = ()
    surprise: bool = False

    def price_at(self, at: float) -> float:
        """What a row costs that is done then."""
        return next((price for begin, price in reversed(self.prices) if begin <= at + 1e-9), self.price)

    def rate_at(self, at: float) -> float:
        """Rows a second then."""
        part = 1.0
        for begin, each in self.speed:
            if begin > at + 1e-9:
                break
            part = each
        return self.rate * part

    def next_change(self, at: float) -> float:
        """When it changes next."""
        return min((begin for begin, _ in (*self.speed, *self.prices) if begin > at + 1e-9), default=math.inf)

    def rows_between(self, a: float, b: float) -> float:
        """Rows done from a to b at most."""
        total, at = 0.0, a
        while at < b:
            end = min(b, self.next_change(at))
            total += self.rate_at(at) * (end - at)
            at = end
        return total


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a night, submitted `at`. Once its rows are answered, `reduces` more follow, whose number is known,
    and of all answers the share `again` is bad and asked once more.

    With `dearer`, a model of so many times the price is asked, once. `purse` is what a budget of several nights
    leaves: rows that it does not cover are not sent.
    """

    name: str
    rows: int
    deadline: float
    at: float = 0.0
    budget: float | None = None
    local_only: bool = False
    shard_rows: int = 2_000
    reduces: int = 0
    again: float = 0.0
    dearer: float = 1.0
    purse: float | None = None


@dataclass(frozen=True, slots=True)
class Night:
    """The jobs of a night and the world that they meet; `number` counts nights, which begin at `hour`.

    Collecting a batch and merging a job take `slow` times what they usually do.
    """

    number: int
    jobs: tuple[Job, ...]
    batches: tuple[BatchNight, ...]
    sync_options: tuple[SynchronousNight, ...]
    hour: int = 20
    slow: float = 1.0

    def collects(self, rows: int) -> float:
        """Seconds from the end of a batch that was seen until its rows are booked."""
        return self.slow * (2.0 + rows / 2_000)

    def merges(self, job: Job) -> float:
        """Seconds from the last row until the file is there."""
        return self.slow * (2.0 + job.rows / 4_000)


@dataclass(slots=True)
class Score:
    """What a policy made of a job. `told` has the chances that it gave: when, and P(in time); `at_most` is what it
    told at first that the job would not exceed."""

    job: Job
    in_time: bool
    cost: float
    done_at: float
    told: list[tuple[float, float]] = field(default_factory=list)
    by_route: dict[str, int] = field(default_factory=dict)
    at_most: float | None = None


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


def clairvoyant(night: Night) -> list[float | None]:
    """The least that each job of the night can cost, None where not even who knows the night is in time.

    He sends each row where it is done in time, the cheapest first. A bound: he also takes from a batch that is not
    done in time the very rows that are, and waits for no look and no merge. Jobs with earlier deadlines go first.
    """
    used = {(sync.name, begin): 0.0 for sync in night.sync_options for begin in (0.0, *dict(sync.prices))}
    found: dict[str, float | None] = {}
    for job in sorted(night.jobs, key=lambda one: one.deadline):
        routes = [
            (price, max(0.0, rows - used[sync.name, begin]), (sync.name, begin))
            for sync in night.sync_options
            if sync.location == "local" or not job.local_only
            for begin, price, rows in _sync_rows(sync, job)
        ]
        if not job.local_only:
            routes += [(batch.price, _batch_rows(batch, job), (batch.name, 0.0)) for batch in night.batches]
        left, cost = all_rows(job), 0.0
        strong = left - job.rows - job.reduces if job.dearer > 1.0 else 0
        for price, rows, name in sorted(routes):
            taken = min(left, math.floor(rows))
            cost += (taken + (job.dearer - 1.0) * min(taken, strong)) * price
            left, strong = left - taken, max(0, strong - taken)
            if name in used:
                used[name] += taken
        affordable = all(most is None or cost <= most for most in (job.budget, job.purse))
        found[job.name] = cost if not left and affordable else None
    return [found[job.name] for job in night.jobs]


def all_rows(job: Job) -> int:
    """Every row of a job, those that its answers bring about among them."""
    if job.dearer > 1.0:
        return job.rows + job.reduces + int(job.rows * job.again)
    return int((job.rows + job.reduces) / (1.0 - job.again))


def _sync_rows(sync: SynchronousNight, job: Job) -> list[tuple[float, float, float]]:
    """From when on at which price how many rows: of all hours, those that others' rows take are the first."""
    begins = [(0.0, sync.price), *sync.prices]
    ends = [begin for begin, _ in sync.prices]
    found, ahead = [], sync.ahead
    for (begin, price), end in zip(begins, [*ends, math.inf], strict=True):
        rows = sync.rows_between(max(begin, job.at + sync.start), min(end, job.deadline))
        found.append((begin, price, rows - min(ahead, rows)))
        ahead -= min(ahead, rows)
    return found


def _batch_rows(batch: BatchNight, job: Job) -> float:
    """Rows of a batch that are known to be done by the deadline, were all sent at once (or in turn, for a quota)."""
    sent, due = batch.answers(job.at), job.deadline
    if batch.room is None:
        total = 0
        for shard in range(math.ceil(all_rows(job) / job.shard_rows)):
            end = batch.answers(batch.ends(sent, shard))
            stops = end if end <= due else _last_cancel(batch, due)
            total += batch.done(sent, shard, stops, job.shard_rows)
        return total
    at, shard, total = sent, 0, 0
    while total < all_rows(job) and (end := batch.answers(batch.ends(at, shard))) <= due:
        at, shard, total = end, shard + 1, total + int(batch.room_at(at))
    return total + batch.done(at, shard, _last_cancel(batch, due), int(batch.room_at(at)))


def _last_cancel(batch: BatchNight, due: float) -> float:
    """When a batch has to be cancelled so that what it has done is there when it is due."""
    at = due - batch.cancel
    for begin, end in batch.silent:
        if begin < due < end or begin <= at < end:
            at = min(at, begin - batch.cancel)
    return at
