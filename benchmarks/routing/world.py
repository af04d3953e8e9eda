"""The simulation: a night is lived through by a policy, which sees what an orchestrator sees and no more."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.routing.night import BatchNight, LaneNight, Night, Score, until

END = 4 * 86_400.0
"""What is not done by then is counted as it is: far too late."""


@dataclass(slots=True)
class Shard:
    """A batch as it is seen. `sent` is None while it waits for room; `done` rows are told by the provider."""

    number: int
    backend: str
    rows: int
    sent: float | None
    done: int = 0
    cancelled: float | None = None


@dataclass(slots=True)
class Lane:
    """A paced route as it is seen: `queue` rows of ours in it, `is_up` as its health check says.

    `rate` is what it did since it began, over `worked` seconds; `ahead` rows of others go first.
    """

    name: str
    queue: int = 0
    ahead: float = 0.0
    is_up: bool = True
    rate: float = 0.0
    worked: float = 0.0


@dataclass(slots=True)
class View:
    """What a policy may look at. `waiting` rows are free, `pulled` ones came back from a cancelled batch; `spent`
    dollars are settled, `over` has the shards that are: (backend, seconds, whether it ended by itself)."""

    now: float
    night: Night
    waiting: int
    pulled: int
    shards: list[Shard]
    lanes: dict[str, Lane]
    spent: float = 0.0
    over: list[tuple[str, float, bool]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ToBatch:
    """Send rows to a Batch API: waiting ones, or those of a lane."""

    backend: str
    rows: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class ToLane:
    """Send rows to a paced route: waiting and pulled ones, or those of another lane."""

    lane: str
    rows: int
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Pull a shard back."""

    shard: int


Action = ToBatch | ToLane | Cancel


class Policy(Protocol):
    """A way to run a job. It may read of a night what is public: rows, deadline, prices, limits, names."""

    name: str

    def look(self, view: View) -> tuple[list[Action], float]:
        """What to do now, and in how many seconds to look again; something that happens makes it look sooner."""
        ...

    def learn(self, view: View, report: Report) -> None:
        """The night is over."""
        ...


@dataclass(slots=True)
class Report:
    """What a night has taught: rows a second by lane, and how many seconds cancels took."""

    rates: dict[str, float] = field(default_factory=dict)
    cancels: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Queue:
    night: LaneNight
    seen: Lane
    begins: float = 0.0  # when it works on ours
    done: float = 0.0
    ours: float = 0.0  # seconds of work on ours


class World:
    """A night in progress."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.view = View(0.0, night, night.rows, 0, [], {lane.name: Lane(lane.name) for lane in night.lanes})
        self.report = Report()
        self.cost = 0.0
        self.finished = 0
        self.last = 0.0
        self.by_route: dict[str, int] = {}
        self._batches = {batch.name: batch for batch in night.batches}
        self._queues = {lane.name: _Queue(lane, self.view.lanes[lane.name]) for lane in night.lanes}
        self._count = 0

    def live(self, policy: Policy) -> Score:
        """Let the policy run the night, until every row is done."""
        view = self.view
        look = 0.0
        while self.finished < self.night.rows and view.now < END:
            for queue in self._queues.values():
                queue.seen.is_up = not any(a <= view.now < b for a, b in queue.night.down)
                queue.seen.ahead = max(0.0, queue.night.ahead - queue.night.rows_between(0.0, view.now))
            actions, wait = policy.look(view)
            for action in actions:
                self._act(action)
            look = view.now + max(30.0, wait)
            self._advance(min(look, self._next_event()))
        policy.learn(view, self._reported())
        in_time = self.finished >= self.night.rows and self.last <= self.night.deadline + 1.0
        return Score(in_time, self.cost, self.last, self.by_route)

    def _act(self, action: Action) -> None:
        view = self.view
        match action:
            case ToBatch(backend, rows, source):
                assert rows > 0
                assert not self.night.local_only
                if source is None:
                    assert rows <= view.waiting
                    view.waiting -= rows
                else:
                    self._leave(source, rows)
                size = self._batches[backend].room or self.night.shard_rows
                while rows > 0:
                    view.shards.append(Shard(self._count, backend, min(rows, size), None))
                    self._count += 1
                    rows -= size
                self._release()
            case ToLane(lane, rows, source):
                queue = self._queues[lane]
                assert rows > 0
                assert queue.night.location == "local" or not self.night.local_only
                if source is None:
                    assert rows <= view.waiting + view.pulled
                    pulled = min(rows, view.pulled)
                    view.pulled -= pulled
                    view.waiting -= rows - pulled
                else:
                    self._leave(source, rows)
                if not queue.seen.queue:
                    queue.begins = queue.night.ready(view.now)
                queue.seen.queue += rows
            case Cancel(number):
                shard = next(one for one in view.shards if one.number == number)
                if shard.sent is None:
                    view.shards.remove(shard)
                    view.pulled += shard.rows
                elif shard.cancelled is None:
                    shard.cancelled = view.now

    def _leave(self, lane: str, rows: int) -> None:
        assert rows <= self.view.lanes[lane].queue
        self.view.lanes[lane].queue -= rows

    def _release(self) -> None:
        """Send the shards that there is room for."""
        for name, batch in self._batches.items():
            room = math.inf if batch.room is None else batch.room
            room -= sum(one.rows for one in self.view.shards if one.backend == name and one.sent is not None)
            for shard in self.view.shards:
                if shard.backend == name and shard.sent is None and shard.rows <= room:
                    shard.sent = self.view.now
                    room -= shard.rows

    def _next_event(self) -> float:
        """When something happens that shows: a batch or a lane is done, or a lane stops or comes back."""
        now = self.view.now
        times = [END]
        for shard in self.view.shards:
            if shard.sent is not None:
                times.append(self._over(shard))
        for queue in self._queues.values():
            if queue.seen.queue:
                times.append(self._empties(queue))
            times += [mark for window in queue.night.down for mark in window if mark > now]
        return max(now, min(times))

    def _over(self, shard: Shard) -> float:
        batch = self._batches[shard.backend]
        assert shard.sent is not None
        end = batch.ends(shard.sent, shard.number)
        return end if shard.cancelled is None else min(end, shard.cancelled + batch.cancel)

    @staticmethod
    def _empties(queue: _Queue) -> float:
        left = queue.seen.queue - (queue.done - int(queue.done))
        return until(queue.begins, left / queue.night.rate, queue.night.down)

    def _advance(self, to: float) -> None:
        view = self.view
        for queue in self._queues.values():
            self._work(queue, to)
        view.now = to
        for shard in [one for one in view.shards if one.sent is not None]:
            batch = self._batches[shard.backend]
            assert shard.sent is not None
            stop = to if shard.cancelled is None else min(to, shard.cancelled + batch.cancel)
            shard.done = batch.done(shard.sent, shard.number, stop, shard.rows)
            if to >= self._over(shard) - 1e-6:
                self._collect(shard, batch)
        self._release()

    def _work(self, queue: _Queue, to: float) -> None:
        seen, lane = queue.seen, queue.night
        if not seen.queue:
            return
        if to > queue.begins:
            before = int(queue.done)
            queue.done += min(lane.rows_between(queue.begins, to), seen.queue - (queue.done - before) + 1e-6)
            queue.ours += to - queue.begins - sum(max(0.0, min(to, b) - max(queue.begins, a)) for a, b in lane.down)
            queue.begins = to
            self._finish(lane.name, int(queue.done + 1e-6) - before, lane.price, to)
            seen.queue -= int(queue.done + 1e-6) - before
            queue.done = max(queue.done, float(int(queue.done + 1e-6)))
            seen.worked = queue.ours
            seen.rate = queue.done / queue.ours if queue.ours else 0.0

    def _collect(self, shard: Shard, batch: BatchNight) -> None:
        assert shard.sent is not None
        took = self.view.now - shard.sent
        ended = shard.done == shard.rows
        self.view.over.append((shard.backend, took, ended))
        if shard.cancelled is not None:
            self.report.cancels.append(self.view.now - shard.cancelled)
        self.view.shards.remove(shard)
        self._finish(shard.backend, shard.done, batch.price, self.view.now)
        if shard.cancelled is None:
            self.view.waiting += shard.rows - shard.done
        else:
            self.view.pulled += shard.rows - shard.done

    def _finish(self, route: str, rows: int, price: float, at: float) -> None:
        if rows:
            self.finished += rows
            self.cost += rows * price
            self.view.spent = self.cost
            self.last = at
            self.by_route[route] = self.by_route.get(route, 0) + rows

    def _reported(self) -> Report:
        for shard in self.view.shards:
            if shard.sent is not None:
                self.view.over.append((shard.backend, self.view.now - shard.sent, False))
        self.report.rates = {q.seen.name: q.seen.rate for q in self._queues.values() if q.ours >= 120.0}
        return self.report
