"""The simulation: a night is lived through by a policy, which sees what an orchestrator sees and no more.

Between an order and its effect lies what lies there on real nights: batches are looked at every so often, a cancel
takes its time, results are collected, rows begin after the engine has loaded, and the last row is not yet the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.routing.engine import Engine
from benchmarks.routing.night import BatchNight, Job, Night, Score

END = 4 * 86_400.0
"""What is not done by then is counted as it is: far too late."""
REACTS, SOONEST = 1.0, 30.0
"""Seconds until an order leaves, and until a policy may look again without a reason."""
SAMPLED = 60.0
"""How often the progress of synchronous options is noted."""
OTHERS = "others"
"""Whose rows are ahead at a synchronous option."""
QUICK = 60.0
"""A batch that was asked to end is looked at as often as this."""
MOST = 1.1
"""What a row may cost at most, against its price: an orchestrator that keeps a purse sends no more than it covers."""
LETS_GO = 120.0
"""Seconds after which nobody waits for a provider that does not answer and has rows that are needed elsewhere."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How far a job was at a synchronous option at a time: rows that it has done, and that it has yet to do."""

    at: float
    job: str
    sync: str
    done: int
    left: int


@dataclass(slots=True)
class Sent:
    """A shard in an orchestrator's books. Times are seconds of the night, None for what has not come yet.

    `done` rows are told by its backend, which answered last when it was `seen`; `first` is when the first row was.
    `ended` is when it was seen to be over, by itself where `whole`, or when it was `given_up`. `strong` rows ask the
    dearer model. `paid` dollars were billed.
    """

    number: int
    job: str
    backend: str
    rows: int
    created: float
    strong: bool = False
    sent: float | None = None
    first: float | None = None
    seen: float | None = None
    done: int = 0
    rerouted: float | None = None
    ended: float | None = None
    whole: bool = False
    given_up: bool = False
    collected: float | None = None
    paid: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether rows of it may still come."""
        return self.collected is None


@dataclass(slots=True)
class View:
    """What a policy may look at, of one job. `waiting` rows are free, `pulled` ones came back from a cancelled batch,
    `later` ones will come once others are answered; `spent` dollars are settled. `strong` of those that wait or were
    pulled ask the dearer model.

    `shards` are those of all jobs of the night, `progress` how far each job was at each synchronous option.
    """

    now: float
    night: Night
    job: Job
    waiting: int
    rerouted: int
    later: int
    shards: list[Sent]
    progress: list[Seen]
    spent: float = 0.0
    strong: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """Send rows to a backend: those that were rerouted go to no batch of a backend whose batch the job cancelled."""

    backend: str
    rows: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Take a shard's rows back."""

    shard: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Wait no longer for a shard that was cancelled: its rows are free, and billed there as well."""

    shard: int


Action = Send | Cancel | GiveUp


@dataclass(frozen=True, slots=True)
class Look:
    """What a policy does, in how many seconds it looks again, and the P(in time) that it tells (None: nothing); and,
    as a job begins, what that is told to cost at most."""

    actions: list[Action]
    wait: float
    chance: float | None = None
    at_most: float | None = None


class Policy(Protocol):
    """A way to run jobs. It may read of a night what is public: rows, deadlines, prices, limits, names."""

    name: str

    def look(self, view: View) -> Look:
        """What to do now with one job; where rows come to wait it is asked sooner."""
        ...

    def learn(self, night: Night, shards: list[Sent], progress: list[Seen]) -> None:
        """The night is over."""
        ...


@dataclass(slots=True)
class _Job:
    """A job in progress. `owed` are rows that its answers bring about. Of those that wait and those that were pulled,
    some are `strong`."""

    terms: Job
    waiting: int
    rerouted: int = 0
    finished: int = 0
    owed: float = 0.0
    reduces: int = 0
    strong: int = 0
    strong_back: int = 0
    cost: float = 0.0
    last: float = 0.0
    look: float = 0.0
    done_at: float | None = None
    told: list[tuple[float, float]] = field(default_factory=list)
    by_route: dict[str, int] = field(default_factory=dict)
    at_most: float | None = None


@dataclass(slots=True)
class _Batch:
    """What nobody sees of a batch: when it was cancelled there, and when it is looked at next."""

    shard: Sent
    night: BatchNight
    cancelled: float | None = None
    let_go: float = math.inf
    poll: float = math.inf

    def over(self) -> float:
        """When it is over at its provider."""
        assert self.shard.sent is not None
        end = self.night.ends(self.shard.sent, self.shard.number)
        return end if self.cancelled is None else min(end, self.cancelled + self.night.cancel)

    def done(self, at: float) -> int:
        """Rows done there."""
        assert self.shard.sent is not None
        return self.night.done(self.shard.sent, self.shard.number, min(at, self.over()), self.shard.rows)


class World:
    """A night in progress."""

    def __init__(self, night: Night) -> None:
        self.night, self.now = night, 0.0
        self.jobs = {job.name: _Job(job, job.rows, reduces=job.reduces, look=job.at) for job in night.jobs}
        self.shards: list[Sent] = []
        self.progress: list[Seen] = []
        self._batches: dict[int, _Batch] = {}
        self._nights = {batch.name: batch for batch in night.batches}
        deadlines = {job.name: job.deadline for job in night.jobs}
        self._engines = {sync.name: Engine(sync, deadlines) for sync in night.sync_options}
        self._collecting: list[tuple[float, int]] = []
        for sync in night.sync_options:
            if sync.ahead:  # others' rows, which go first
                ahead = int(sync.ahead)
                self.shards.append(Sent(len(self.shards), OTHERS, sync.name, ahead, 0.0, sent=0.0, seen=0.0))
        self._sample = 0.0

    def live(self, policy: Policy) -> list[Score]:
        """Let the policy run the night, until every job is done."""
        while self.now < END and any(job.done_at is None for job in self.jobs.values()):
            for job in self.jobs.values():
                if job.done_at is None and job.look <= self.now:
                    self._look(policy, job)
            self._advance(min(self._next(), END))
        policy.learn(self.night, self.shards, self.progress)
        return [self._score(job) for job in self.jobs.values()]

    @staticmethod
    def _score(job: _Job) -> Score:
        at = math.inf if job.done_at is None else job.done_at
        return Score(job.terms, at <= job.terms.deadline, job.cost, at, job.told, job.by_route, job.at_most)

    def _look(self, policy: Policy, job: _Job) -> None:
        view = View(
            self.now,
            self.night,
            job.terms,
            job.waiting,
            job.rerouted,
            job.reduces,
            self.shards,
            self.progress,
            job.cost,
            job.strong + job.strong_back,
        )
        look = policy.look(view)
        if look.chance is not None:
            job.told.append((self.now, look.chance))
        if job.at_most is None:
            job.at_most = look.at_most
        for action in look.actions:
            self._act(job, action)
        job.look = self.now + max(SOONEST, look.wait)

    # --- orders

    def _act(self, job: _Job, action: Action) -> None:
        match action:
            case Send(backend, rows):
                assert rows > 0
                strong = self._take(job, rows, backend)
                self._send_all(job, backend, rows - strong, strong=False)
                self._send_all(job, backend, strong, strong=True)
            case Cancel(number):
                self._pull(self.shards[number])
            case GiveUp(number):
                self._give_up(self._batches[number])

    def _take(self, job: _Job, rows: int, backend: str) -> int:
        """Take rows from those that wait; return how many of them ask the dearer model, which go last."""
        rerouted = 0
        assert rows <= job.waiting + job.rerouted
        if backend in self._nights:
            assert not job.terms.local_only
            rerouted = max(0, rows - job.waiting)
            left = {one.backend for one in self.shards if one.job == job.terms.name and one.rerouted is not None}
            assert not rerouted or backend not in left, "what was rerouted goes to no batch there"
        else:
            assert self._engines[backend].sync.location == "local" or not job.terms.local_only
            rerouted = min(rows, job.rerouted)
        waiting = rows - rerouted
        strong_back = max(0, rerouted - (job.rerouted - job.strong_back))
        strong = max(0, waiting - (job.waiting - job.strong))
        job.rerouted, job.strong_back = job.rerouted - rerouted, job.strong_back - strong_back
        job.waiting, job.strong = job.waiting - waiting, job.strong - strong
        return strong + strong_back

    def _send_all(self, job: _Job, backend: str, rows: int, *, strong: bool) -> None:
        """Send rows in shards. What a purse does not cover waits on."""
        each = MOST * self._list_price(backend) * (job.terms.dearer if strong else 1.0)
        covered = min(rows, int(self._left(job) / each + 1e-9)) if job.terms.purse is not None else rows
        job.waiting += rows - covered
        job.strong += (rows - covered) * strong
        size = job.terms.shard_rows
        if backend in self._nights:
            size = int(min(size, self._nights[backend].room_at(self.now)))
        for begin in range(0, covered, size):
            self._send(job, backend, min(covered - begin, size), strong=strong)

    def _left(self, job: _Job) -> float:
        """Return the dollars of a purse that are neither spent nor in flight."""
        assert job.terms.purse is not None
        flying = sum(
            MOST * one.rows * self._list_price(one.backend) * (job.terms.dearer if one.strong else 1.0)
            for one in self.shards if one.job == job.terms.name and one.collected is None
        )  # fmt: skip
        return max(0.0, job.terms.purse - job.cost - flying)

    def _list_price(self, backend: str) -> float:
        return self._engines[backend].sync.price_at(self.now) if backend in self._engines else self._price(backend)

    def _send(self, job: _Job, backend: str, rows: int, *, strong: bool) -> None:
        shard = Sent(len(self.shards), job.terms.name, backend, rows, self.now, strong)
        self.shards.append(shard)
        if backend in self._engines:
            shard.sent = shard.seen = self.now + REACTS
            self._engines[backend].take(shard)
        else:
            self._batches[shard.number] = _Batch(shard, self._nights[backend])

    def _pull(self, shard: Sent) -> None:
        if shard.rerouted is not None or shard.ended is not None:
            return
        shard.rerouted = self.now
        batch = self._batches.get(shard.number)
        if batch is None:
            self._over(shard, self._engines[shard.backend].leave(shard))
        elif shard.sent is None:
            self._over(shard, 0)
        else:
            batch.cancelled = batch.night.answers(self.now + REACTS)
            if batch.cancelled > self.now + REACTS:
                batch.let_go = self.now + LETS_GO
            batch.poll = min(batch.poll, batch.cancelled, batch.let_go)

    def _release(self) -> None:
        """Send the batches that there is room for."""
        for night in self._nights.values():
            if night.answers(self.now) > self.now:
                continue
            mine = [one for one in self._batches.values() if one.night is night and one.shard.ended is None]
            room = night.room_at(self.now)
            room -= sum(one.shard.rows for one in mine if one.shard.sent is not None)
            for one in mine:
                if one.shard.sent is None and one.shard.rows <= room and one.shard.created + REACTS <= self.now:
                    one.shard.sent = one.shard.seen = self.now
                    one.poll = self.now + night.poll
                    room -= one.shard.rows

    # --- what happens

    def _next(self) -> float:
        times = [job.look for job in self.jobs.values() if job.done_at is None]
        times += [at for at, _ in self._collecting]
        for one in self._batches.values():
            if one.shard.ended is None:
                unsent = max(one.shard.created + REACTS, one.night.answers(self.now))
                times.append(one.poll if one.shard.sent is not None else unsent)
        for engine in self._engines.values():
            times.append(engine.next_event(self.now))
            if engine.is_busy or engine.ahead > 0:
                times.append(self._sample)
        # What is due now has been done, or waits for something else.
        return min((time for time in times if time > self.now + 1e-9), default=END)

    def _advance(self, to: float) -> None:
        over = [shard for engine in self._engines.values() for shard in engine.work(self.now, to)]
        self.now = to
        for shard in over:
            self._over(shard, shard.rows)
        self._release()
        for one in list(self._batches.values()):
            if one.shard.ended is None and one.shard.sent is not None and one.poll <= to:
                self._poll(one)
        if to >= self._sample:
            self._sample = to + SAMPLED
            self._note()
        due = [number for at, number in self._collecting if at <= to]
        self._collecting = [(at, number) for at, number in self._collecting if at > to]
        for number in due:
            self._collect(self.shards[number])

    def _note(self) -> None:
        for one in self.shards:
            if one.job == OTHERS:
                self._strangers(one)
        for name, engine in self._engines.items():
            here = {shard.job for shard in engine.shards()} | ({OTHERS} if engine.ahead > 0 else set())
            for job in here:
                of_job = [one for one in self.shards if one.job == job and one.backend == name]
                left = sum(one.rows - one.done for one in of_job if one.ended is None)
                self.progress.append(Seen(self.now, job, name, sum(one.done for one in of_job), left))

    def _strangers(self, one: Sent) -> None:
        engine = self._engines[one.backend]
        if one.collected is None:
            self._told(one, one.rows - math.ceil(engine.ahead))
            if engine.ahead <= 0:
                one.ended = one.collected = self.now
                one.whole = True

    def _poll(self, one: _Batch) -> None:
        """Ask a provider how a batch is."""
        shard, night, at = one.shard, one.night, self.now
        answers = night.answers(at)
        if answers > at:
            if at >= one.let_go:
                self._give_up(one)
            else:
                one.poll = min(answers, one.let_go)
            return
        shard.seen = at
        if at >= one.over():
            self._over(shard, one.done(at))
            return
        if not night.hidden:
            self._told(shard, one.done(at))
        one.poll = at + (QUICK if one.cancelled is not None else night.poll)

    def _give_up(self, one: _Batch) -> None:
        """Nobody hears of what it goes on to do, and all of that is billed."""
        shard = one.shard
        if shard.ended is None:
            self._bill(shard, one.done(math.inf) * self._price(shard.backend))
            shard.given_up = True
            self._over(shard, 0)

    def _told(self, shard: Sent, done: int) -> None:
        shard.done = done
        if done and shard.first is None:
            shard.first = self.now

    def _over(self, shard: Sent, done: int) -> None:
        """A shard was seen to be over; its rows are booked a while later."""
        self._told(shard, done)
        shard.ended, shard.whole = self.now, done == shard.rows
        self._collecting.append((self.now + self.night.collects(shard.rows), shard.number))

    def _collect(self, shard: Sent) -> None:
        job, engine = self.jobs[shard.job], self._engines.get(shard.backend)
        shard.collected = self.now
        paid = engine.paid(shard) if engine is not None else shard.done * self._price(shard.backend)
        self._bill(shard, paid)
        job.by_route[shard.backend] = job.by_route.get(shard.backend, 0) + shard.done
        self._answered(job, shard)
        left = shard.rows - shard.done
        if shard.rerouted is not None and shard.backend in self._nights:
            job.rerouted += left
            job.strong_back += left * shard.strong
        else:
            job.waiting += left
            job.strong += left * shard.strong
        if job.waiting + job.rerouted:
            job.look = min(job.look, self.now + REACTS)
        self._finish(job)

    def _answered(self, job: _Job, shard: Sent) -> None:
        if not shard.done:
            return
        job.finished += shard.done
        job.last = self.now
        if not shard.strong:
            job.owed += shard.done * job.terms.again
        more = int(job.owed)
        job.owed -= more
        job.waiting += more
        job.strong += more * (job.terms.dearer > 1.0)
        if job.finished >= job.terms.rows and job.reduces:
            job.waiting += job.reduces
            job.reduces = 0

    def _finish(self, job: _Job) -> None:
        mine = (one for one in self.shards if one.job == job.terms.name)
        if not (job.waiting or job.rerouted or job.reduces) and all(one.collected is not None for one in mine):
            job.done_at = self.now + self.night.merges(job.terms)

    def _bill(self, shard: Sent, dollars: float) -> None:
        job = self.jobs[shard.job]
        paid = dollars * (job.terms.dearer if shard.strong else 1.0)
        shard.paid, job.cost = shard.paid + paid, job.cost + paid

    def _price(self, backend: str) -> float:
        return next(batch.price for batch in self.night.batches if batch.name == backend)
