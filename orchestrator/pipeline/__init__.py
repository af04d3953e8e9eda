"""`advance(job)`: one idempotent step of a job through its stages. One file a stage:

    build    documents → requests
    submit   requests → shards → batches, as far as `governor` lets them go
    track    batches looked at until they are over
    collect  result files → outcomes
    stages   outcomes of a long document's parts → the request for its answer
    merge    outcomes → one file in input order

Whatever happened before, calling it again goes on from what the store and the backends say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from orchestrator import polling
from orchestrator.backends import LineProblem, RemoteBatch
from orchestrator.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    InputError,
    StateConflict,
    StorageError,
    UsageError,
)
from orchestrator.following import AFTER
from orchestrator.home import Home
from orchestrator.model import Counts, Job, RequestState, Shard, ShardState
from orchestrator.pipeline import (
    again,
    beginning,
    budget,
    build,
    canary,
    collect,
    finish,
    foreseen,
    stages,
    submit,
    track,
)
from orchestrator.pipeline.finish import checks_of as checks_of
from orchestrator.pipeline.finish import merged_lines as merged_lines
from orchestrator.pipeline.governor import Governor
from orchestrator.pipeline.guard import Guard
from orchestrator.pipeline.lanes import Lane, Lanes
from orchestrator.pipeline.outputs import Gate
from orchestrator.pipeline.planning import Planning, Sending
from orchestrator.pipeline.progress import Progress
from orchestrator.pipeline.sampling import Samples
from orchestrator.planner.observed import silence
from orchestrator.quota import Split
from orchestrator.requests import resolve_model
from orchestrator.store import Store
from orchestrator.wire import BatchStatus

PAST_VALIDATION = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED)


class Pipeline:
    """Takes jobs of one home through their stages."""

    def __init__(
        self, store: Store, home: Home, lanes: Lanes, budgets: budget.SharedBudgets, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._home = home
        self._lanes = lanes
        self._budgets = budgets
        self._now = now
        self._governor = Governor(store, now)
        self._guard = Guard()
        self._samples = Samples(store)
        self._progress = Progress(store)
        self._gate = Gate(store, now)
        self.looks = track.Looks()
        self.finisher = finish.Finisher(store, home, now)

    def settings_changed(self) -> None:
        """Every job is planned again at its next step."""
        self._guard = Guard()

    def advance(self, job: Job) -> bool:
        """One step; True where something moved. Raises OrchError, and then the job stands where the store says."""
        if job.built_at is None:
            return self._build(job)
        if job.cancel_requested_at is not None:
            self._cancel(job)
        shards = self._store.shards.of_job(job.id)
        if self._stopped_by_budget(job, shards):
            return True
        if self._expired(job, shards):
            return True
        moved, refused = False, list[Exception]()
        for shard in shards:
            try:
                moved |= self._advance_shard(job, shard)
            except (StorageError, StateConflict, InputError):
                raise
            except Exception as error:  # noqa: BLE001  (raised below: what is at other backends goes on all the same)
                refused.append(error)
        moved |= stages.reduce(self._store, self._home, job, self._now())
        moved |= self._plan(job, moved=moved)
        if refused:
            raise refused[0]
        shards = self._store.shards.of_job(job.id)
        self._samples.take(job, shards, self._is_own, self._now())
        moved |= self._stopped_by_budget(job, shards)
        counts = self._store.jobs.counts([job.id])[job.id]
        if counts.pending == 0 and all(shard.state.is_final for shard in shards):
            moved |= self._finish(job, counts)
        return moved

    def _build(self, job: Job) -> bool:
        if (moved := beginning.waits(self._store, job, self._now())) is not None:
            return moved
        with build.claim(self._home, job) as mine:
            if not mine:
                return False
            current = self._store.jobs.find(job.id)
            if current is None or current.built_at is not None:
                return True  # whoever had it has just ended
            if job.options.get("dry_run"):
                build.discard(self._store, self._home, job)  # a kill cut it off; nobody asked for it to be run
                return True
            asked, reading = self._lanes.asked(job), self._lanes.reading()
            report = build.build(self._store, self._home, job, self._now(), asked=asked, reading=reading)
            # One that others may wait for ends as itself, though nothing is to be asked.
            if AFTER not in job.options and build.same_as(self._store, job, report) is not None:
                build.discard(self._store, self._home, job)
                return True
            canary.mark(self._store, job, self._now())
            self._store.jobs.mark_built(job.id, self._now())
        self._note(job, "built", str(report))
        return True

    def _expired(self, job: Job, shards: list[Shard]) -> bool:
        """Where a job gives up what its deadline leaves behind: whether any was given up now."""
        now = self._now()
        if job.deadline_at is None or job.deadline_at > now or job.spec.get("on_late") != "expire":
            return False
        pending = [shard for shard in shards if shard.state is ShardState.PENDING]
        if job.cancel_requested_at is not None or not (pending or self._store.rows.has_waiting(job.id)):
            return False
        self._give_up(pending)
        late = "the deadline passed before the row ran"
        return self._store.rows.end_open(job.id, RequestState.EXPIRED, "batch_expired", late, now) > 0 or bool(
            pending
        )

    def _give_up(self, pending: list[Shard]) -> None:
        """Let shards that were not sent come to an end; their rows get it from whoever calls this."""
        for shard in pending:
            collect.abandon(self._home, shard, self._lane(shard) if shard.input_file_id else None)
            self._store.shards.move(shard, ShardState.CANCELLED, held=None)

    def _plan(self, job: Job, *, moved: bool) -> bool:
        """Send rows that wait, and take back batches that would be late, as the planner says."""
        if job.cancel_requested_at is not None:
            return False
        now = self._now()
        stage = canary.look(self._store, job, now)
        if stage is canary.Stage.STOPPED:
            return True
        goes_first, moved = stage is canary.Stage.RUNS, moved or stage is canary.Stage.FOLLOWS
        waiting = self._store.rows.has_waiting(job.id, canary=goes_first)
        trouble = self._trouble(job, now)
        if not self._guard.is_due(job, now, waiting=waiting, moved=moved, trouble=trouble):
            return False
        planning = self._lanes.planning(job)
        orders = canary.orders(self._store, job, planning, now) if goes_first else planning.orders()
        if orders is None:
            return True
        if orders.sends and not beginning.may_ask(self._store, self._gate, job, now):
            return True
        self._guard.looked(job, orders.next_look, trouble)
        acted = False
        for shard in orders.pulls:
            acted |= self._pull(job, shard, orders.reason)
        for order in orders.sends:
            acted |= self._route(job, order, planning)
        return acted

    def _trouble(self, job: Job, now: datetime) -> frozenset[str]:
        """The backends with rows of a job that do not get on."""
        shards = [shard for shard in self._store.shards.of_job(job.id) if shard.state is ShardState.SUBMITTED]
        at = {shard.backend for shard in shards}
        silent = {name for name in at if silence([one for one in shards if one.backend == name], now)}
        return frozenset(silent | (at & self._lanes.down()))

    def _is_own(self, shard: Shard) -> bool:
        try:
            return self._lane(shard).is_own
        except (BackendError, UsageError):
            return False  # orch.toml has its backend no more

    def _route(self, job: Job, order: Sending, planning: Planning) -> bool:
        lane = self._lanes.open(order.backend)
        added = submit.plan_shards(
            self._store, job, lane, order, lambda model: self._governor.room(lane, model), self._now()
        )
        self._store.forecasts.made(planning.turnarounds(added))
        for shard in added:
            self._note(job, "routed", f"{shard.rows:,} rows to {shard.backend}: {shard.reason}", shard)
        return bool(added)

    def _pull(self, job: Job, shard: Shard, reason: str) -> bool:
        """Take the rows of a shard back: what is not done there goes on elsewhere."""
        if shard.pulled_at is not None:
            return False
        if shard.state is ShardState.PENDING:
            collect.abandon(self._home, shard, self._lane(shard) if shard.input_file_id else None)
            self._store.shards.dissolve(shard, reason)
        elif shard.state in (ShardState.SUBMITTING, ShardState.SUBMITTED):
            self._store.shards.note(shard, pulled_at=self._now(), pulled_for=reason)
        else:
            return False
        self._note(job, "rescued", f"its rows are taken back: {reason}", shard)
        return True

    def _advance_shard(self, job: Job, shard: Shard) -> bool:
        if (why := self._lanes.leaves(shard.backend)) is not None and self._pull(job, shard, why):
            return True
        match shard.state:
            case ShardState.PENDING:
                return self._send(job, shard)
            case ShardState.SUBMITTING:
                return self._patiently(job, shard, self._recover)
            case ShardState.SUBMITTED:
                return self._patiently(job, shard, self._track)
            case ShardState.ENDED:
                return self._patiently(job, shard, self._collect)
            case ShardState.COLLECTED | ShardState.CANCELLED:
                return False

    def _patiently(self, job: Job, shard: Shard, stage: Callable[[Job, Shard], bool]) -> bool:
        """A stage of a batch that is there: where its provider fails, it is done again later, and no other waits."""
        lane = self._lane(shard)
        self._governor.check_account(lane)
        try:
            return stage(job, shard)
        except AccountError as error:
            self._governor.stop(lane, error.message)
            raise
        except BackendError as error:
            if lane.is_own:
                raise
            after = error.retry_after if isinstance(error, BackendRefused) else None
            self.looks.failed(shard, lane, self._now(), after)
            return self._hold(job, self._store.shards.get(shard.id), error.message)

    def _lane(self, shard: Shard) -> Lane:
        return self._lanes.open(shard.backend)

    def _model(self, job: Job, shard: Shard) -> str:
        """What a shard's model is called at its backend."""
        return resolve_model(shard.model, shard.backend, self._lanes.models(job)) or shard.model

    def _send(self, job: Job, shard: Shard) -> bool:
        if shard.pulled_at is not None or not self._lanes.planning(job).may_take(shard):
            # It was taken back before it was known whether there is a batch of it; or it must not go there any more.
            self._dissolve(job, shard, shard.pulled_for or "its backend may not take it any more")
            return True
        lane = self._lane(shard)
        self._governor.check_account(lane)
        lane.price.known(self._model(job, shard), shard.endpoint)
        held = self._governor.hold(lane, shard)
        if isinstance(held, Split):
            self._dissolve(job, shard, held.reason)
            return True
        if held is not None:
            return self._hold(job, shard, held)
        others = [other for other in self._store.shards.of_job(job.id) if other.id != shard.id]
        over = budget.no_room(job, shard, others, self._store.ledger.spent(job.id), self._lane, self._model)
        over = over or self._budgets.no_room(job, shard)
        if over is not None:
            return self._hold(job, shard, over)
        try:
            batch = submit.submit(
                self._store, self._home, job, shard, lane, self._lanes.models(job), self._now,
                lambda: self._budgets.no_room(job, shard),
            )  # fmt: skip
        except BackendBusy as busy:
            self._governor.was_busy(lane, shard, busy)
            return self._hold(job, self._store.shards.get(shard.id), busy.message)
        except AccountError as error:
            self._governor.stop(lane, error.message)
            raise
        if isinstance(batch, str):
            return self._hold(job, self._store.shards.get(shard.id), batch)
        said = "the backend refused it" if batch is None else f"batch {batch.id} of {shard.rows:,} rows created"
        self._note(job, "submitted", said, shard)
        return True

    def _dissolve(self, job: Job, shard: Shard, reason: str) -> None:
        collect.abandon(self._home, shard, self._lane(shard) if shard.input_file_id else None)
        self._store.shards.dissolve(shard, reason)
        self._note(job, "split", reason, shard)

    def _hold(self, job: Job, shard: Shard, why: str) -> bool:
        """Say what a shard waits for; it is told once, however often it is looked at."""
        if shard.held != why:
            if shard.held is None:
                self._note(job, "held", why, shard)
            self._store.shards.note(shard, held=why)
        return False

    def _recover(self, job: Job, shard: Shard) -> bool:
        lane = self._lane(shard)
        if not self.looks.is_due(shard, lane, self._now()):
            return False
        track.check_account(shard, lane)
        said = submit.recover(self._store, self._home, shard, lane, self._now())
        self.looks.looked(shard, lane, self._now())
        if said is None:
            return False
        self.looks.forget(shard)
        self._note(job, "recovered", said, shard)
        return True

    def _track(self, job: Job, shard: Shard) -> bool:
        assert shard.batch_id is not None
        lane, now = self._lane(shard), self._now()
        ends = job.cancel_requested_at is not None or shard.pulled_at is not None
        cancels = ends and shard.provider_status != "cancelling"
        if cancels:
            self.looks.hurry(shard, now)
        if not self.looks.is_due(shard, lane, now):
            return False
        track.check_account(shard, lane)
        batch = lane.api.retrieve(shard.batch_id)
        usual = track.UNKNOWN if lane.is_own else polling.usual_of(self._store.shards.durations(lane.name))
        seen = (batch.status, batch.completed, batch.failed)
        moved_at = self.looks.looked(shard, lane, now, seen=seen, usual=usual)
        if batch.status in PAST_VALIDATION and not lane.is_own:
            self._governor.accepted(lane, shard)
        facts = track.facts_of(shard, batch, now)
        if batch.status.is_final:
            held = track.files_missing(shard, batch, now)
            if held is None:
                self._end(job, shard, batch, facts)
                return True
        else:
            facts |= self._failing(job, shard, lane, now)
            if cancels:
                lane.api.cancel(shard.batch_id)
                self.looks.looked(shard, lane, now, seen="asked to end")
            held = track.waits_for(shard, lane, batch, moved_at, usual, now)
        if facts:
            self._store.shards.note(shard, **facts)
        if held is not None:
            self._hold(job, shard, held)
        elif shard.held is not None:
            self._store.shards.note(shard, held=None)
        return False

    def _failing(self, job: Job, shard: Shard, lane: Lane, now: datetime) -> dict[str, object]:
        """What has failed in a running batch by now, as a fact of its shard where that is news."""

        def has_stronger() -> bool:
            return self._lanes.planning(job).standing(shard).step is not None

        found = self._progress.look(job, shard, lane, has_stronger, now)
        return {} if found is None or found == shard.failing else {"failing": found}

    def _end(self, job: Job, shard: Shard, batch: RemoteBatch, facts: Mapping[str, object]) -> None:
        files = {"output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id}
        now = self._now()
        self._store.shards.move(shard, ShardState.ENDED, ended_at=now, **facts, **files, held=None)
        foreseen.batch_over(self._store, shard, batch.status, now)
        self.looks.forget(shard)
        self._progress.forget(shard)
        self._note(job, "ended", f"the batch is {batch.status}", shard)

    def _collect(self, job: Job, shard: Shard) -> bool:
        lane = self._lane(shard)
        if not self.looks.is_due(shard, lane, self._now()):
            return False
        self.looks.looked(shard, lane, self._now())
        if (shortage := self._lanes.shortage()) is not None:
            return self._hold(job, shard, f"waits for room for its results: {shortage}")
        planning = self._lanes.planning(job)
        ended = collect.Ended(
            job=job,
            shard=shard,
            lane=lane,
            model=self._model(job, shard),
            checks=checks_of(job),
            problems=_problems(shard, lane),
            elsewhere=planning.has_other_than(shard.backend),
            standing=planning.standing(shard),
            retries=again.retries_of(job),
            now=self._now(),
        )
        tally = collect.collect(self._store, self._home, ended)
        self._store.failures.trace(job)
        self._governor.learn(lane, shard, tally)
        try:
            collect.close(self._store, self._home, shard, lane, self._now())
        except BackendError as error:
            # Its rows have what they get; only its files are left, which must keep nobody waiting.
            return self._hold(job, shard, error.message)
        self.looks.forget(shard)
        self._note(job, "collected", str(tally), shard)
        self._budgets.warn(job)
        return True

    def _cancel(self, job: Job) -> None:
        """Rows that no backend holds end here; batches are asked to end when they are tracked."""
        self._give_up([one for one in self._store.shards.of_job(job.id) if one.state is ShardState.PENDING])
        reason = job.cancel_reason or "the job was cancelled"
        code = "budget_exhausted" if reason.startswith("budget") else "cancelled"
        self._store.rows.end_open(job.id, RequestState.CANCELLED, code, reason, self._now())

    def _stopped_by_budget(self, job: Job, shards: list[Shard]) -> bool:
        reason = budget.used_up(job, shards, self._store.ledger.spent(job.id), self._lane, self._model)
        reason = reason or self._budgets.used_up(job, shards)
        if reason is not None:
            self._store.jobs.request_cancel(job.id, reason, self._now())
            self._note(job, "stopped", reason)
        return reason is not None

    def _finish(self, job: Job, counts: Counts) -> bool:
        ended = self.finisher.step(job)
        if ended is None:
            return False
        self._guard.forget(job)
        self._gate.forget(job)
        self._samples.forget(job)
        self._note(job, "finished", f"{counts.succeeded:,} of {counts.total:,} rows succeeded; merged into {ended}")
        return True

    def _note(self, job: Job, kind: str, reason: str, shard: Shard | None = None) -> None:
        self._store.jobs.note(job.id, kind, reason, self._now(), shard.id if shard else None)


def _problems(shard: Shard, lane: Lane) -> tuple[LineProblem, ...]:
    """Why a backend refused a shard's batch; nothing where it did not."""
    if shard.refusal is not None:
        code, _, message = shard.refusal.partition(": ")
        return (LineProblem(code, message),)
    if shard.provider_status != "failed" or shard.batch_id is None:
        return ()
    return lane.api.retrieve(shard.batch_id).problems
