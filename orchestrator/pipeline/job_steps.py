"""Steps of a job through its stages: build, plan, submit, collect and finish."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from orchestrator.backends.open import can_cancel
from orchestrator.core.counts import Counts, number_of
from orchestrator.core.errors import (
    BackendError,
    InputError,
    NoRoom,
    RefusedError,
    RequestRefused,
    StateConflict,
    StorageError,
    UsageError,
)
from orchestrator.core.events import PROBE, EventKind
from orchestrator.core.model import NIGHT, CancelCode, Job, RequestState
from orchestrator.core.shards import AT_BACKEND, Shard, ShardState
from orchestrator.pipeline import budget, succession
from orchestrator.pipeline.backend_set import BackendSet, unstoppable
from orchestrator.pipeline.build import builder
from orchestrator.pipeline.build.build_orders import Builds, RecordedJob, build_recorded, carried_out
from orchestrator.pipeline.build.disk_room import give_back
from orchestrator.pipeline.collect import common_refusals, reduce
from orchestrator.pipeline.collect.awaited_rows import TakeOver
from orchestrator.pipeline.collect.remote_cleanup import RemoteCleanup
from orchestrator.pipeline.finish import finisher
from orchestrator.pipeline.finish.delivery import Gate
from orchestrator.pipeline.plan import canary
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.plan.planning import Planning, turnarounds
from orchestrator.pipeline.plan.progress_samples import Samples
from orchestrator.pipeline.plan.replan_timer import ReplanTimer
from orchestrator.pipeline.poll_schedule import PollSchedule
from orchestrator.pipeline.provider_calls import Inline, ProviderCalls
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.pipeline.shard_steps import ShardSteps
from orchestrator.pipeline.submit import prerequisites, rows_to_shards
from orchestrator.policy import row_errors
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.planner.observations import silence
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import expires
from orchestrator.store import Store
from orchestrator.store.home_identity import require_own_place


class Pipeline:
    """Moves the jobs of a home through their stages. `provider_calls` runs the calls to providers."""

    def __init__(
        self,
        store: Store,
        home: Home,
        backends: BackendSet,
        budgets: budget.SharedBudgets,
        now: Callable[[], datetime],
        provider_calls: ProviderCalls | None = None,
        may_act: Callable[[], bool] = lambda: True,
        builds: Builds | None = None,
    ) -> None:
        """`may_act` returns False if another daemon may have taken over the home.

        `builds` builds jobs; without it, this process builds them. Raises RefusedError for a copied home.
        """
        require_own_place(home)
        self._store = store
        self._home = home
        self._backends = backends
        self._budgets = budgets
        self._now = now
        self._builds = builds
        self._batches = ShardSteps(ShardWork(store, home, backends, budgets, now, provider_calls or Inline()))
        self._replan_timer = ReplanTimer()
        self._samples = Samples(store, backends.health)
        self._gate = Gate(store, now)
        self._take_over = TakeOver(store, backends, now)
        self.finisher = finisher.Finisher(store, home, now, may_act)

    def settings_changed(self) -> None:
        """Plan every job again at its next step, and send rows that were refused to their backends again."""
        for job in self._store.jobs.unfinished(self._home.identity()):
            self._store.holds.lift(self._store.holds.of(job.id))
        self._replan_timer = ReplanTimer()

    @property
    def polls(self) -> PollSchedule:
        return self._batches.polls

    @property
    def remote_cleanup(self) -> RemoteCleanup:
        return self._batches.remote_cleanup

    def unreachable(self, job: Job) -> str | None:
        """Return why orch cannot reach a job's batches now, or None."""
        return self._batches.unreachable(job)

    def advance(self, job: Job) -> bool:
        """Take one step of a job. True if anything changed. After an OrchError, the store has the job's current
        state.
        """
        if job.built_at is None:
            return self._build(job)
        if job.cancel_requested_at is not None:
            self._cancel(job)
        shards = self._store.shards.of_job(job.id)
        if self._stopped_by_budget(job, shards):
            return True
        if self._expired(job, shards):
            return True
        newer = succession.successor(self._store, job)
        moved, refused = self._take_over.advance(job), list[Exception]()
        for shard in shards:
            if newer is not None and shard.state is ShardState.PENDING:
                continue
            try:
                moved |= self._advance_shard(job, shard)
            except NoRoom as error:
                refused.append(error)
            except (StorageError, StateConflict, InputError):
                raise
            except Exception as error:  # noqa: BLE001  (raised below: batches at other backends continue)
                refused.append(error)
        if (lost := self._batches.awaited_in_vain(job)) is not None:
            refused.append(lost)
        if newer is not None:
            moved |= self._wind_down(job, newer)
        else:
            moved |= common_refusals.tend(self._store, job, self._now())
            moved |= reduce.reduce(self._store, self._home, job, self._now())
            moved |= self._plan(job, moved=moved)
        if refused:
            raise refused[0]
        shards = self._store.shards.of_job(job.id)
        self._samples.take(job, shards, self._is_own, self._now())
        moved |= self._stopped_by_budget(job, shards)
        # Counted last, because that reads every row of the job.
        if all(shard.state.is_final for shard in shards):
            counts = self._store.jobs.counts([job.id])[job.id]
            if counts.pending == 0:
                moved |= self._finish(job, counts)
        return moved

    def _build(self, job: Job) -> bool:
        is_cancelled, night = job.cancel_requested_at is not None, job.options.get(NIGHT)
        # by `orch cancel`, in a process without a scheduler of nights
        is_ours = self._builds is None and is_cancelled
        if night is not None and not is_ours and self._store.schedules.awaits_job(night):
            return False  # the runner of the night builds it
        if is_cancelled:
            return self._end_unbuilt(job)
        if (moved := prerequisites.waits(self._store, job, self._now())) is not None:
            return moved
        if (newer := succession.successor(self._store, job)) is not None:
            return newer.built_at is not None and (self._supersede(job, newer) | self._end_unbuilt(job))
        is_busy = self._builds is not None and self._builds.is_busy(job.id)
        if not is_busy and not self._is_free(job):
            return False
        if self._builds is None:
            return build_recorded(self._store, self._home, self._backends.config, job.id, self._now)
        done = carried_out(self._builds, job.id, lambda: (RecordedJob(job.id), job.deadline_at))
        return done is not None and done.value

    def _is_free(self, job: Job) -> bool:
        """True if this process may build the job now. A rehearsal that was cut off is discarded and not built."""
        with builder.claim(self._home, job) as mine:
            is_rehearsal = bool(job.options.get("dry_run"))
            if mine and is_rehearsal:
                builder.discard(self._store, self._home, job)
            return mine and not is_rehearsal

    def _end_unbuilt(self, job: Job) -> bool:
        if self._builds is not None:
            self._builds.end(job.id)
        with builder.claim(self._home, job) as mine:
            if mine:
                give_back(self._store, self._home, job)
                self._store.jobs.mark_built(job.id, self._now())
        return mine

    def _wind_down(self, job: Job, newer: Job) -> bool:
        if newer.built_at is None or job.cancel_requested_at is not None:
            return False
        store, reason = self._store, f"superseded by job {newer.id}"
        shards = [shard for shard in store.shards.of_job(job.id) if not shard.state.is_final]
        self._give_up([shard for shard in shards if shard.state is ShardState.PENDING])
        ended = store.rows.end_open(job.id, RequestState.CANCELLED, "cancelled", reason, self._now())
        others = [name for name in succession.open_jobs(store, job.home) if name != job.id]
        sent = [shard for shard in shards if shard.state is not ShardState.PENDING]
        awaited = {shard.id for shard in sent if store.awaited.is_awaited(others, shard.id)}
        if not awaited:
            return self._supersede(job, newer) or ended > 0
        rerouted = [
            self._reroute(job, shard, reason)
            for shard in sent
            if shard.id not in awaited and can_cancel(self._backends.config.backends.get(shard.backend))
        ]
        return any(rerouted) or ended > 0

    def _supersede(self, job: Job, newer: Job) -> bool:
        reason = f"superseded by job {newer.id}"
        done = self._store.jobs.request_cancel(job.id, CancelCode.SUPERSEDED, reason, self._now())
        if done:
            left = unstoppable(self._store, self._backends.config, job)
            told = reason if left is None else f"{reason}; {left}"
            self._note(job, EventKind.CANCEL, told, code=CancelCode.SUPERSEDED)
        return done

    def _expired(self, job: Job, shards: list[Shard]) -> bool:
        now = self._now()
        if job.deadline_at is None or job.deadline_at > now or not expires(job):
            return False
        pending = [shard for shard in shards if shard.state is ShardState.PENDING]
        open_rows = self._store.rows.has_waiting(job.id) or self._store.awaited.sources(job.id)
        if job.cancel_requested_at is not None or not (pending or open_rows):
            return False
        self._give_up(pending)
        return self._store.rows.end_open(job.id, RequestState.EXPIRED, *row_errors.TOO_LATE, now) > 0 or bool(pending)

    def _give_up(self, pending: list[Shard]) -> None:
        """Give up unsent shards. The caller ends their rows."""
        for shard in pending:
            self._batches.give_up(shard)

    def _plan(self, job: Job, *, moved: bool) -> bool:
        if job.cancel_requested_at is not None:
            return False
        now = self._now()
        stage = canary.look(self._store, job, now)
        if stage is canary.Stage.STOPPED:
            return True
        goes_first, moved = stage is canary.Stage.RUNS, moved or stage is canary.Stage.FOLLOWS
        waiting = self._store.rows.has_waiting(job.id, canary=goes_first)
        trouble = self._backends_without_progress(job, now)
        if not self._replan_timer.is_due(job, now, waiting=waiting, moved=moved, trouble=trouble):
            return False
        planning = self._backends.planning(job)
        try:
            orders = canary.orders(self._store, job, planning, now) if goes_first else planning.orders()
        except (RefusedError, RequestRefused):
            self._replan_timer.forget(job)  # the cause may have gone at the next step
            raise
        if orders is None:
            return True
        if orders.sends and not prerequisites.may_ask(self._store, self._gate, job, now):
            return True
        self._replan_timer.looked(job, orders.next_look, trouble)
        acted = False
        for shard in orders.reroutes:
            acted |= self._reroute(job, shard, orders.reason)
        if orders.gives_up_at is not None and orders.gives_up_at <= now:
            self._batches.poll_cancelled(job)
        for order in orders.sends:
            acted |= self._route(job, order, planning)
        return acted

    def _backends_without_progress(self, job: Job, now: datetime) -> frozenset[str]:
        shards = [shard for shard in self._store.shards.of_job(job.id) if shard.state is ShardState.SUBMITTED]
        at = {shard.backend for shard in shards}
        silent = {name for name in at if silence([one for one in shards if one.backend == name], now)}
        return frozenset(silent | (at & self._backends.given_up()))

    def _is_own(self, shard: Shard) -> bool:
        try:
            return self._batches.handle(shard).is_own
        except (BackendError, UsageError):
            return False  # orch.toml no longer has its backend

    def _route(self, job: Job, order: Sending, planning: Planning) -> bool:
        handle = self._backends.open(order.backend)
        models = self._backends.models(job)
        with self._store.shards.numbering:
            first = [] if order.probe else self._batches.preflights.plan(job, handle, order)
            order = replace(order, rows=order.rows - len(first))
            added = rows_to_shards.plan_shards(
                self._store,
                job,
                handle,
                order,
                lambda model: self._batches.admission_control.room(
                    handle, model, job.id, resolve_model(model, handle.name, models) or model
                ),
                self._now(),
                models,
            )
        if added:
            self._store.forecasts.made(turnarounds(planning.part_of(added[0]), added, self._now()))
        for shard in (*first, *added):
            told = f"{number_of(shard.rows, 'row')} to {shard.backend}: {shard.reason}"
            self._note(job, EventKind.ROUTED, told, shard, PROBE if order.probe else None)
        return bool(first or added)

    def _reroute(self, job: Job, shard: Shard, reason: str) -> bool:
        if shard.rerouted_at is not None:
            return False
        if shard.state is ShardState.PENDING:
            self._batches.dissolve(job, shard, reason)
        elif shard.state in AT_BACKEND:
            self._store.shards.note(shard, rerouted_at=self._now(), rerouted_for=reason)
        else:
            return False
        if shard.state is not ShardState.PENDING and not can_cancel(
            self._backends.config.backends.get(shard.backend)
        ):
            reason += f"; {shard.backend} cannot end their batch, so they are paid for there as well"
        self._note(job, EventKind.RESCUED, f"rows rerouted: {reason}", shard)
        return True

    def _advance_shard(self, job: Job, shard: Shard) -> bool:
        if (why := self._backends.leaves(shard.backend)) is not None and self._reroute(job, shard, why):
            return True
        return self._batches.advance(job, shard)

    def _cancel(self, job: Job) -> None:
        """End the rows that are not at a backend. Polling cancels the batches."""
        self._give_up([one for one in self._store.shards.of_job(job.id) if one.state is ShardState.PENDING])
        code, reason = row_errors.cancelled(job)
        self._store.rows.end_open(job.id, RequestState.CANCELLED, code, reason, self._now())

    def _stopped_by_budget(self, job: Job, shards: list[Shard]) -> bool:
        booked = partial(self._store.ledger.spent, job.id)
        reason = budget.used_up(job, shards, booked, self._batches.handle, self._batches.model)
        reason = reason or self._budgets.used_up(job, shards)
        if reason is not None:
            self._store.jobs.request_cancel(job.id, CancelCode.BUDGET, reason, self._now())
            self._store.jobs.note(job.id, EventKind.STOPPED, reason, self._now(), code=CancelCode.BUDGET)
        return reason is not None

    def _finish(self, job: Job, counts: Counts) -> bool:
        ended = self.finisher.step(job)
        if ended is None:
            return False
        self._replan_timer.forget(job)
        self._gate.forget(job)
        self._samples.forget(job)
        self._note(
            job,
            EventKind.FINISHED,
            f"{counts.succeeded:,} of {number_of(counts.total, 'row')} succeeded; merged into {ended}",
        )
        return True

    def _note(
        self, job: Job, kind: EventKind, reason: str, shard: Shard | None = None, code: str | None = None
    ) -> None:
        self._store.jobs.note(job.id, kind, reason, self._now(), shard.id if shard else None, code=code)
