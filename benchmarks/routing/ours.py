"""Ours: the planner at submission, the guard at each look, and forecasts that learn from night to night.

What the simulation shows is put into the shards that the product would have recorded, and what is known of it is made
of these by the product's own functions: where its knowledge is wrong, so is this.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from benchmarks.routing.coverage import Coverage, Foreseen, added, coverage
from benchmarks.routing.night import BatchNight, Night, SynchronousNight
from benchmarks.routing.night import Job as JobNight
from benchmarks.routing.world import OTHERS, Action, Cancel, GiveUp, Look, Seen, Send, Sent, View
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.model import Job, JobId, JobKind, ProgressSample
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy import forecast
from orchestrator.policy.forecast import Assumed, Speeds
from orchestrator.policy.planner import (
    BatchOption,
    Claim,
    Cost,
    Decision,
    Open,
    Option,
    Plan,
    Probe,
    ProbeRule,
    SynchronousOption,
    Terms,
    choose_probe,
    covering,
    observations,
    plan,
    replan,
)
from orchestrator.policy.planner.job_orders import locate_rows, returning_rows, seconds_beside, to_reroute
from orchestrator.policy.planner.stints import Sight

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
REMEMBERED = 200
"""Shards of each backend that are looked back upon."""
RUNS = 60
"""Runs of a job whose costs are remembered."""
NIGHTS = 30
"""Nights of which progress is remembered."""
MOST_LOOKS = 40
"""Of a job and synchronous option, evenly over an earlier night."""
UNKNOWN_RATE, UNKNOWN_API_RATE, UNKNOWN_SPREAD, STATED_SPREAD = 1.0, 5.0, 1.0, 0.35
HOUR, P95 = 3600.0, 1.645


class Ours:
    """What `orch` does, as far as a simulation can tell."""

    def __init__(self, name: str = "ours", *, probe: bool = False) -> None:
        """With `probe`, a few rows go to routes long unused."""
        self.name = name
        self._rule = ProbeRule() if probe else None
        self.probes: dict[str, int] = defaultdict(int)
        self._shards: dict[str, list[Shard]] = defaultdict(list)
        self._progress: dict[str, list[ProgressSample]] = defaultdict(list)
        self._finished: list[tuple[int, datetime, datetime]] = []
        self._speeds: dict[tuple[int, str, str], Speeds] = {}
        self._again: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._reached: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._costs: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        self._told: dict[str, tuple[float, float]] = {}
        self._foreseen: list[Foreseen] = []
        self.coverage: list[Coverage] = added(())

    # --- a look

    def look(self, view: View) -> Look:
        """Plan on submission, then look after it."""
        books = _Books(view, self)
        actions: list[Action]
        is_first = not any(shard.job == view.job.name for shard in view.shards)
        if found := books.probed(self._rule):
            probe, decision = found
            if probe is not None:
                self.probes[probe.backend] += 1
            actions = [*books.actions(decision)]
            self._foreseen += books.foreseen(actions)
            at_most = books.at_most(probe) if is_first else None
            return Look(actions, (decision.next_look - books.now).total_seconds(), decision.chance, at_most)
        if is_first:
            planned = plan(
                view.waiting, books.options, books.terms, books.now, later=books.later, claims=books.claims,
                later_cost=books.later_cost,
            )  # fmt: skip
            decision = replan(books.open, books.options, books.terms, books.now)
            if planned.starts_at is not None:
                wait = (decision.next_look - books.now).total_seconds()
                return Look([], wait, decision.chance, books.told(planned))
            actions = [*books.actions(decision)]
            self._foreseen += books.foreseen(actions)
            if not planned.routes:  # they wait for a budget: nothing is told of their cost
                return Look(actions, 1800.0, planned.chance)
            return Look(actions, 60.0, planned.chance, books.told(planned))
        decision = replan(books.open, books.options, books.terms, books.now)
        actions = [*books.actions(decision)]
        self._foreseen += books.foreseen(actions)
        return Look(actions, (decision.next_look - books.now).total_seconds(), decision.chance)

    def learn(self, night: Night, shards: list[Sent], progress: list[Seen]) -> None:
        """Remember the night's shards, and how far jobs were when."""
        self.coverage = added((self.coverage, coverage(self._foreseen, shards, night)))
        self._foreseen.clear()
        begin = begin_of(night)
        for sent in shards:
            if sent.sent is not None:
                self._shards[sent.backend].append(shard_of(sent, night, begin, begin + timedelta(days=4)))
        for kept in self._shards.values():
            del kept[:-REMEMBERED]
        by_job: dict[tuple[str, str], list[Seen]] = defaultdict(list)
        for seen in progress:
            by_job[seen.job, seen.sync].append(seen)
        for (_, sync), found in by_job.items():
            for seen in found[:: 1 + len(found) // MOST_LOOKS]:
                self._progress[sync].append(progress_of(night, begin, seen))
        for sync, samples in self._progress.items():
            self._progress[sync] = [one for one in samples if one.at > begin - timedelta(days=NIGHTS)]
        for terms in night.jobs:
            mine = [one for one in shards if one.job == terms.name and one.collected is not None]
            last = max((one.ended or 0.0 for one in mine), default=0.0)
            done = max((one.collected or 0.0 for one in mine), default=0.0) + night.merges(terms)
            self._finished.append((terms.rows, begin + timedelta(seconds=last), begin + timedelta(seconds=done)))
            answered = sum(one.done for one in mine)
            self._again[terms.name].insert(0, (answered, max(0, answered - terms.rows - terms.reduces)))
            if (told := self._told.pop(terms.name, None)) is not None:
                self._costs[terms.name].insert(0, (*told, sum(one.paid for one in mine)))
            strong = sum(one.done for one in mine if one.strong)
            self._reached[terms.name].insert(0, (answered - strong, strong))
        del self._finished[:-REMEMBERED]

    def anew(self) -> Ours:
        """The same in another home."""
        return Ours(self.name, probe=self._rule is not None)

    # --- what it remembers

    def sight(self, backend: str, books: _Books) -> Sight:
        """What was seen of a backend, this night's last."""
        return Sight(
            backend,
            [*self._shards[backend], *books.shards[backend]],
            [*self._progress[backend], *books.progress[backend]],
        )

    def speeds(self, sync: str, books: _Books) -> Speeds:
        """What earlier nights tell of a synchronous option."""
        key = (books.view.night.number, sync, books.view.job.name)
        if key not in self._speeds:
            past = Sight(sync, self._shards[sync], self._progress[sync])
            self._speeds[key] = observations.speeds(past, books.view.job.name, books.now)
        return self._speeds[key]

    def margin(self, rows: int, now: datetime) -> float:
        """Between the last answer and the finished job."""
        return observations.finish_seconds(self._finished, rows, now)

    def tell(self, job: str, expected: float, most: float) -> None:
        """Remember what a job was told to cost, usually and at most."""
        self._told[job] = expected, most

    def dearest(self, job: str) -> float:
        """What the dearest earlier run cost that was told less, as a multiple of what was expected."""
        return observations.dearest(self._costs[job][:RUNS])

    def reask_share(self, job: str) -> float:
        """Which part of a job's answers is asked for once more."""
        return observations.reask_share(self._again[job])

    def reached_share(self, job: str, rows: int) -> tuple[float, float]:
        """Which part of a job's rows the dearer model is asked for, usually and at most."""
        return observations.reached_share(self._reached[job], rows)


class _Books:
    """A look at one job, in the product's terms."""

    def __init__(self, view: View, memory: Ours) -> None:
        self.view, self._memory = view, memory
        night = view.night
        begin = begin_of(night)
        self.now = begin + timedelta(seconds=view.now)
        self.shards: dict[str, list[Shard]] = defaultdict(list)
        for sent in view.shards:
            self.shards[sent.backend].append(shard_of(sent, night, begin, self.now))
        self.progress: dict[str, list[ProgressSample]] = defaultdict(list)
        for seen in view.progress:
            self.progress[seen.sync].append(progress_of(night, begin, seen))
        self.mine = job_of(night, view.job, begin)
        known = [job_of(night, job, begin) for job in night.jobs if job.at <= view.now]
        self.first = observations.goes_first(known, self.mine, self.now) | {JobId(f"{OTHERS}-{night.number}")}
        self._late_nights = {
            one.name: observations.late_nights(memory.sight(one.name, self).shards) for one in night.batches
        }
        self.options: list[Option] = [
            *(self._batch(batch) for batch in night.batches),
            *(self._sync(sync) for sync in night.sync_options),
        ]
        self._deadlines = {job.id: job.deadline_at for job in known if job.id in self.first and job.deadline_at}
        job = view.job
        caps = [Decimal(repr(most)) for most in (job.budget, job.purse) if most is not None]
        budget = max(Decimal(0), min(caps) - Decimal(repr(round(view.spent, 9)))) if caps else None
        self.terms = Terms(
            begin + timedelta(seconds=job.deadline), budget, local_only=job.local_only,
            margin=memory.margin(job.rows, self.now),
        )  # fmt: skip

    @property
    def later(self) -> int:
        """Rows that are made of answers to come."""
        weak, strong = self._open_rows
        return self.view.later + int(
            self._memory.reask_share(self.view.job.name) * (weak + strong + self.view.later) + 0.5
        )

    @property
    def later_cost(self) -> Cost | None:
        """What they cost, if some ask a dearer model."""
        if self.view.job.dearer == 1.0:
            return None
        weak, _ = self._open_rows
        usual, most = self._memory.reached_share(self.view.job.name, weak)
        night, now = self.view.night, self.view.now
        each = min([one.price for one in night.batches] + [one.price_at(now) for one in night.sync_options])
        base = min((one.cost for one in self.options), key=lambda cost: cost.p50)
        rest, dear = max(0.0, self.later - usual * weak), self._cost(each, self.view.job.dearer)
        p50, p95 = (
            Decimal(repr(share * weak)) * one + Decimal(repr(rest)) * plain
            for share, one, plain in ((usual, dear.p50, base.p50), (most, dear.p95, base.p95))
        )
        return Cost(p50, p95)

    @property
    def _open_rows(self) -> tuple[int, int]:
        """Open rows that ask the usual model, and those that ask the dearer one."""
        mine = [one for one in self.view.shards if one.job == self.view.job.name and one.collected is None]
        strong = self.view.strong + sum(one.rows - one.done for one in mine if one.strong)
        total = self.view.waiting + self.view.rerouted + sum(one.rows - one.done for one in mine)
        return total - strong, strong

    def _cost(self, price: float, factor: float | None = None) -> Cost:
        """What a row costs on the mean over the models that the open rows ask."""
        weak, strong = self._open_rows
        mean = (weak + strong * self.view.job.dearer) / (weak + strong) if strong else 1.0
        each = Decimal(repr(price * (mean if factor is None else factor)))
        return Cost(each, each * Decimal("1.1"))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What other jobs may come to need."""
        others: dict[JobId, list[Shard]] = {job_id: [] for job_id in self.first}
        for shards in self.shards.values():
            for shard in shards:
                if shard.job_id in others:
                    others[shard.job_id].append(shard)
        batches = [one for one in self.options if isinstance(one, BatchOption)]
        return observations.claims(others, self._deadlines, batches, self._paced, self.now)

    @property
    def _paced(self) -> frozenset[str]:
        return frozenset(sync.name for sync in self.view.night.sync_options)

    @property
    def open(self) -> Open:
        """Where the job's rows are."""
        cancel = {one.backend: one.cancel_seconds for one in self.options}
        mine = [shard for shards in self.shards.values() for shard in shards if shard.job_id == self.mine.id]
        rows: dict[str, int] = {shard.id: shard.rows for shard in mine if shard.collected_at is None}
        return locate_rows(
            sorted(mine, key=lambda one: one.number), rows, self._paced, cancel, self.now,
            waiting=self.view.waiting, rerouted=self.view.rerouted, later=self.later, claims=self.claims,
            later_cost=self.later_cost,
        )  # fmt: skip

    def probed(self, rule: ProbeRule | None) -> tuple[Probe | None, Decision] | None:
        """A probe and what to do beside it, where one is due."""
        sights = {one.backend: self._memory.sight(one.backend, self) for one in self.options}
        used = {name: at for name, sight in sights.items() if (at := observations.last_used(sight, self.now))}
        return choose_probe(self.open, self.options, self.terms, self.now, rule, used)

    def at_most(self, probe: Probe | None) -> float:
        """What the job is told to cost at most as it begins."""
        found = plan(
            self.view.waiting, self.options, self.terms, self.now, later=self.later, claims=self.claims,
            later_cost=self.later_cost,
        )  # fmt: skip
        return self.told(found, 0.0 if probe is None else float(probe.at_most))

    def told(self, planned: Plan, more: float = 0.0) -> float:
        """What the job is told to cost at most by a plan, and by `more` beside it."""
        job = self.view.job.name
        dearest = self._memory.dearest(job)
        planned = covering(planned, dearest, self.view.waiting, self.options, self.terms)
        self._memory.tell(job, float(planned.expected), most := float(planned.at_most) + more)
        return most

    def actions(self, decision: Decision) -> Iterator[Action]:
        """A decision as orders. What synchronous options lose waits first, and is sent at the next look."""
        mine = [shard for shards in self.shards.values() for shard in shards if shard.job_id == self.mine.id]
        for shard in to_reroute(decision, mine):
            yield Cancel(shard.number)
        if decision.gives_up_at is not None and decision.gives_up_at <= self.now:
            batches = (one for one in mine if one.backend not in self._paced)
            yield from (GiveUp(one.number) for one in batches if one.rerouted_at and not one.ended_at)
        waiting, rerouted = self.view.waiting, self.view.rerouted
        for send in decision.sends:
            if send.source is not None:
                continue
            if rows := min(send.rows, waiting + rerouted):
                yield Send(send.backend, rows)
                back = min(rows, rerouted) if send.backend in self._paced else max(0, rows - waiting)
                rerouted, waiting = rerouted - back, waiting - (rows - back)
        # What the budget does not cover goes to the cheapest, as far as the budget allows (`Planning._sends`).
        paced = [one for one in self.options if one.backend in self._paced]
        if not decision.sends and not decision.waits:
            if paced and rerouted:
                yield Send(min(paced, key=lambda one: one.cost.p50).backend, rerouted)
            if waiting:
                yield Send(min(self.options, key=lambda one: one.cost.p50).backend, waiting)

    def foreseen(self, actions: Iterable[Action]) -> Iterator[Foreseen]:
        """When the rows that are sent now are told to be done. An option works on all rows of a job at once."""
        job, name = self.open, self.view.job.name
        there, back = dict(job.synchronous), returning_rows(job, self.options, self.terms, self.now)
        by_name = {option.backend: option for option in self.options}
        for send in actions:
            if isinstance(send, Send):
                option = by_name[send.backend]
                p50, p95 = (
                    self.view.now
                    + self._seconds(option, send.rows + there.get(send.backend, 0), back.get(send.backend, 0), chance)
                    for chance in (0.5, 0.95)
                )
                yield Foreseen(name, send.backend, send.backend in self._paced, self.view.now, p50, p95)

    def _seconds(self, option: Option, rows: int, back: int, chance: float) -> float:
        """How long so many rows take there, with this chance, where others come back to it."""
        if isinstance(option, BatchOption):
            return option.turnaround.within(chance)
        return seconds_beside(option, rows, back, self.open, self.now, chance)

    def _batch(self, batch: BatchNight) -> BatchOption:
        sight = self._memory.sight(batch.name, self)
        cancel = observations.seconds_until_free(sight.shards, self.now)
        there = [shard for shard in self.shards[batch.name] if shard.state is ShardState.SUBMITTED]
        return BatchOption(
            batch.name,
            batch.location,
            self._cost(batch.price),
            observations.turnaround(sight, self.view.job.shard_rows, self.now),
            cancel_seconds=cancel,
            room=batch.room,
            behind=sum(shard.rows for shard in there if shard.job_id != self.mine.id),
            silent=observations.silence(sight.shards, self.now),
            slips=observations.slips(sight.shards, self.now, cancel),
            cancel_usual=observations.median_cancel(sight.shards, self.now),
            paid_twice=observations.paid_twice(sight.shards),
            begins=observations.first_row_share(sight.shards),
        )

    def _sync(self, sync: SynchronousNight) -> SynchronousOption:
        asker = observations.Asker(self.view.job.name, self.first)
        is_local = sync.location == "local"
        assumed = Assumed(UNKNOWN_RATE if is_local else UNKNOWN_API_RATE, UNKNOWN_SPREAD)
        if sync.nominal is not None:
            assumed = Assumed(sync.nominal, STATED_SPREAD, "stated")
        known = self._memory.speeds(sync.name, self)
        sight = self._memory.sight(sync.name, self)
        starts = observations.ASSUMED_START if is_local else observations.QUICK_START
        pace = observations.pace(sight, asker, assumed, 0.0, self.now, known, starts=starts)
        leaves = observations.cancel_seconds(sight.shards, self.now, observations.OWN_CANCEL)
        cost = self._cost(sync.price_at(self.view.now))
        if sync.hourly is not None:
            usual = pace if pace.rate > 0 else forecast.pace(known, assumed, now=self.now)
            each = Decimal(repr(round(sync.hourly / HOUR / usual.rate, 12)))
            cost = Cost(each, each * Decimal(repr(round(math.exp(P95 * usual.spread), 6))))
        now = self.view.now
        together = observations.slow_with(self._late_nights, known, pace.rate)
        prices = () if sync.surprise else sync.prices
        steps = tuple((begin - now, self._cost(price)) for begin, price in prices if begin > now)
        return SynchronousOption(
            sync.name, sync.location, cost, pace, None, leaves, timed=sync.hourly is not None, cost_steps=steps,
            slow_with=together,
        )  # fmt: skip


def begin_of(night: Night) -> datetime:
    """When a night begins."""
    return FIRST + timedelta(days=night.number, hours=night.hour)


def job_of(night: Night, job: JobNight, begin: datetime) -> Job:
    """A job as it is recorded."""
    return Job(
        JobId(f"{job.name}-{night.number}"), "home", job.name, job.name, job.name, JobKind.BATCH, "", {}, {},
        begin + timedelta(seconds=job.at), begin + timedelta(seconds=job.deadline),
    )  # fmt: skip


def shard_of(sent: Sent, night: Night, begin: datetime, now: datetime) -> Shard:
    """A shard as it is recorded."""

    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else begin + timedelta(seconds=seconds)

    state, status = ShardState.PENDING, None
    if sent.sent is not None:
        state, status = ShardState.SUBMITTED, BatchStatus.IN_PROGRESS
    if sent.ended is not None:
        state = ShardState.ENDED
        status = (
            BatchStatus.COMPLETED if sent.whole else BatchStatus.CANCELLED if sent.rerouted else BatchStatus.EXPIRED
        )
        status = BatchStatus.FAILED if sent.given_up else status
    if sent.collected is not None:
        state = ShardState.COLLECTED
    return Shard(
        ShardId(f"{night.number}.{sent.number}"), JobId(f"{sent.job}-{night.number}"), sent.number, sent.backend,
        "/v1", "m", state, "", sent.rows, 0, begin + timedelta(seconds=sent.created),
        provider_status=status, provider_completed=sent.done, submitted_at=at(sent.sent), first_at=at(sent.first),
        seen_at=at(sent.seen), rerouted_at=at(sent.rerouted), ended_at=at(sent.ended),
        collected_at=at(sent.collected),
    )  # fmt: skip


def progress_of(night: Night, begin: datetime, seen: Seen) -> ProgressSample:
    """A look at a synchronous option as it is recorded."""
    job_id = JobId(f"{seen.job}-{night.number}")
    return ProgressSample(job_id, seen.job, seen.sync, begin + timedelta(seconds=seen.at), seen.done, seen.left)
