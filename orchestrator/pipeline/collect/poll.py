"""Polling of submitted batches until they end, are cancelled or count as gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.backends import BATCH_GONE, RemoteBatch
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import AccountError, BackendBusy, BackendError, BackendRefused, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job
from orchestrator.core.shards import HoldCode, Shard, ShardState
from orchestrator.pipeline import batch_accounts
from orchestrator.pipeline.backend_admission import CallKind
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import common_refusals, polled_batch
from orchestrator.pipeline.collect.failures_so_far import FailuresSoFar
from orchestrator.pipeline.plan import forecast_records
from orchestrator.pipeline.poll_schedule import UNKNOWN, RunPhase
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.policy import batch_evidence, overdue
from orchestrator.policy.overdue import BatchLife

ENOUGH_REFUSALS = 20
"""Number of rows at our own server that must share a refusal before orch reroutes the remaining rows."""


class UnknownBatch(Struct, frozen=True):
    """A batch that its backend does not know. `moved` is true if its shard was ended for this reason."""

    moved: bool


class BatchPolling:
    def __init__(self, work: ShardWork) -> None:
        self._work = work
        self._progress = FailuresSoFar(work.store, work.home)

    def patiently(self, job: Job, shard: Shard, stage: Callable[[Job, Shard, BackendHandle], bool]) -> bool:
        """Run a stage of a batch. If the provider fails, schedule a retry without delaying other batches."""
        handle, now = self._work.handle(shard), self._work.now()
        if not self._work.is_asking(shard):
            ends = job.cancel_requested_at is not None or shard.rerouted_at is not None
            if ends and shard.state is ShardState.SUBMITTED and shard.provider_status != "cancelling":
                self._work.polls.hurry(shard, now)
            if not self._work.polls.is_due(shard, handle, now):
                # A backend that does not answer is polled rarely, but the rows may be needed sooner.
                watched = self._work.polls.of(shard, now)
                is_unheard = watched.failing_since is not None or watched.busy_since is not None
                return is_unheard and shard.rerouted_at is not None and self._give_up_if_lost(job, shard, handle)
            refused = self._work.admission_control.refused_for(handle, CallKind.LOOK)
            if refused and shard.state is ShardState.SUBMITTED:
                why = self._life(job, shard, handle).unreported("its account has been rejected", refused, now)
                if why is not None:
                    return self._end_as_gone(job, shard, why)
            if (held := self._work.admission_control.check_account(handle)) is not None:
                return self._work.hold(job, shard, HoldCode.ACCOUNT, held)
        try:
            done = self._work.ask(handle, shard, lambda: stage(job, self._work.store.shards.get(shard.id), handle))
            if done is None:
                return False
            self._work.admission_control.worked(handle, CallKind.LOOK)
            return done.value
        except AccountError as error:
            return self._work.refused_account(job, shard, handle, error, CallKind.LOOK)
        except UsageError as error:
            self._work.polls.failed(shard, handle, self._work.now())
            self._work.hold(job, self._work.store.shards.get(shard.id), HoldCode.UNREACHABLE, error.message)
            raise
        except BackendError as error:
            if handle.is_own:
                raise
            self._work.failed(shard, handle, error)
            current = self._work.store.shards.get(shard.id)
            return self._give_up_if_lost(job, current, handle) or self._work.hold_failed(job, current, error)

    def track(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        """Poll a running batch. True if it has ended."""
        now = self._work.now()
        shard = batch_accounts.with_present_account(self._work.store, shard, handle)
        batch = self._retrieved(job, shard, handle)
        if isinstance(batch, UnknownBatch):
            return batch.moved
        usual = UNKNOWN if handle.is_own else overdue.usual_of(self._work.store.shards.durations(handle.name))
        seen = (batch.status, batch.completed, batch.failed)
        moved_at = self._work.polls.looked(shard, handle, now, seen=seen, usual=usual)
        self._work.polls.of(shard, now).phase(RunPhase).denied = None
        if batch.status in polled_batch.PAST_VALIDATION and not handle.is_own:
            self._work.admission_control.accepted(handle, shard)
        facts = polled_batch.facts_of(shard, batch, now)
        code, held = HoldCode.FILES, self._over(job, shard, handle, batch, facts) if batch.status.is_final else None
        if batch.status.is_final and held is None:
            self._end(job, shard, batch, facts)
            return True
        if not batch.status.is_final:
            if self._give_up_if_lost(job, shard, handle):
                return True
            facts |= self._failing(job, shard, handle)
            facts |= self._refused_so_far(replace(shard, failing=facts.get("failing", shard.failing)), handle, batch)
            code, held = HoldCode.ENDING, self._cancel_if_due(job, shard, handle, batch)
            if held is None:
                code, held = HoldCode.SLOW, polled_batch.waits_for(shard, handle, batch, moved_at, usual, now)
        if facts:
            self._work.store.shards.note(shard, **facts)
        if held is not None:
            self._work.hold(job, shard, code, held)
        elif shard.held is not None:
            self._work.store.shards.note(shard, held=None)
        return False

    def _failing(self, job: Job, shard: Shard, handle: BackendHandle) -> dict[str, object]:
        """Return a running batch's failures so far as changed columns of its shard; empty if nothing changed."""

        def has_stronger() -> bool:
            return self._work.backends.planning(job).standing(shard).step is not None

        found = self._progress.look(job, shard, handle, has_stronger, self._work.now())
        return {} if found is None or found == shard.failing else {"failing": found}

    def _refused_so_far(self, shard: Shard, handle: BackendHandle, batch: RemoteBatch) -> dict[str, object]:
        """Return the changes that reroute our server's batch if all its results so far are the same refusal."""
        if not handle.is_own or shard.rerouted_at is not None or batch.completed or not shard.failing:
            return {}
        codes = Counter[str]()
        for failing in shard.failing.values():
            codes.update(failing)
        if codes.total() < ENOUGH_REFUSALS or len(codes) != 1 or not common_refusals.is_shared(*codes):
            return {}
        others = self._work.store.shards.of_job(shard.job_id)
        if any(one.backend == shard.backend and one.provider_completed for one in others):
            return {}
        why = f"all of the first {codes.total():,} rows were refused: {next(iter(codes))}"
        return {"rerouted_at": self._work.now(), "rerouted_for": why}

    def _retrieved(self, job: Job, shard: Shard, handle: BackendHandle) -> RemoteBatch | UnknownBatch:
        assert shard.batch_id is not None
        now, is_unlisted = self._work.now(), None
        try:
            batch = handle.api.retrieve(shard.batch_id)
        except (AccountError, BackendBusy):
            raise
        except BackendError:
            if (listed := self._listed(shard, handle)) is None:
                raise
            return listed
        if batch is not None:
            return batch
        if handle.is_own:
            return UnknownBatch(moved=self._end_as_gone(job, shard, "the backend no longer knows this batch"))
        with suppress(BackendError):
            seen = handle.api.listed(shard.batch_id, shard.submitted_at or shard.created_at)
            if seen.batch is not None:
                return seen.batch
            is_unlisted = True if seen.undecided is None else None
        denied = polled_batch.denied(self._work.polls.of(shard, now), now, is_unlisted=is_unlisted)
        self._work.polls.failed(shard, handle, now)
        verdict = batch_evidence.gone(denied, handle.name, now, is_needed=shard.rerouted_at is not None)
        if verdict.why is not None:
            return UnknownBatch(moved=self._work.hold(job, shard, HoldCode.MISSING, verdict.why))
        return UnknownBatch(moved=self._end_as_gone(job, shard, "the backend no longer knows this batch"))

    def _listed(self, shard: Shard, handle: BackendHandle) -> RemoteBatch | None:
        now = self._work.now()
        failing_since = self._work.polls.of(shard, now).failing_since
        if handle.is_own or failing_since is None or now < failing_since + overdue.LISTED_AFTER:
            return None
        assert shard.batch_id is not None
        with suppress(BackendError):
            return handle.api.listed(shard.batch_id, shard.submitted_at or shard.created_at).batch
        return None

    def _give_up_if_lost(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        if shard.state is not ShardState.SUBMITTED or handle.is_own:
            return False
        now, life = self._work.now(), self._life(job, shard, handle)
        if life.may_be_given_up(now):  # looked up only if needed, because finding the time takes a whole plan
            life = replace(life, given_up_at=self._work.backends.planning(job).part_of(shard).gives_up_at)
        why, busy_since = life.lost(now), self._work.polls.of(shard, now).busy_since
        if why is None and busy_since is not None:
            why = life.unreported("its backend has been too busy to report on it", now - busy_since, now)
        return why is not None and self._end_as_gone(job, shard, why)

    def _life(self, job: Job, shard: Shard, handle: BackendHandle) -> BatchLife:
        may_leave = shard.rerouted_at is not None and (
            self._work.backends.planning(job).part_of(shard).has_other_than(shard.backend)
        )
        watched = self._work.polls.of(shard, self._work.now())
        return polled_batch.life_of(job, shard, handle, watched, may_leave=may_leave)

    def _end_as_gone(self, job: Job, shard: Shard, why: str) -> bool:
        now = self._work.now()
        facts = {"provider_status": BatchStatus.FAILED, "status_at": now, "refusal_code": BATCH_GONE, "refusal": why}
        self._work.store.shards.move(shard, ShardState.ENDED, ended_at=now, held=None, **facts)
        self._work.polls.forget(shard)
        self._work.note(job, EventKind.ENDED, f"the batch is considered gone: {why}", shard)
        return True

    def _cancel_if_due(self, job: Job, shard: Shard, handle: BackendHandle, batch: RemoteBatch) -> str | None:
        """Cancel a batch that must end. Return a message if the backend refuses to cancel it, else None."""
        now = self._work.now()
        watched = self._work.polls.of(shard, now)
        life = polled_batch.life_of(job, shard, handle, watched, may_leave=False)
        told = batch.ago(batch.created_at)  # by the backend's clock, as ours may have been changed
        is_overdue = now >= life.overdue and (told is None or told >= life.overdue - life.made)
        if job.cancel_requested_at is None and shard.rerouted_at is None and not is_overdue:
            return None
        running = watched.phase(RunPhase)
        running.asked_at = running.asked_at or now
        if batch.status is BatchStatus.CANCELLING:
            return None
        assert shard.batch_id is not None
        try:
            handle.api.cancel(shard.batch_id)
        except (BackendBusy, AccountError):
            raise
        except BackendRefused as refusal:
            return f"{refusal.message}; orch waits for its end"
        self._work.polls.looked(shard, handle, now, seen="cancellation requested")
        return None

    def _over(
        self, job: Job, shard: Shard, handle: BackendHandle, batch: RemoteBatch, facts: Mapping[str, object]
    ) -> str | None:
        """Return what orch still waits for after a batch has ended, or None if it can be collected."""
        now = self._work.now()
        seen = replace(shard, **facts)
        since, running = seen.status_at or now, self._work.polls.of(shard, now).phase(RunPhase)
        running.over_at = running.over_at or now
        watched, told = now - running.over_at, batch.ago(batch.over_at)
        until = self._work.until(job, shard, since)
        until = batch_evidence.waits_until(until, since, now, watched=watched, told=told)
        if shard.rerouted_at is None and job.cancel_requested_at is None:
            # The wait may have run out while orch was down.
            until = max(until, running.over_at + batch_evidence.FILES_APPEAR)
        return polled_batch.files_named(seen, batch, handle.profile, until, now).why

    def _end(self, job: Job, shard: Shard, batch: RemoteBatch, facts: Mapping[str, object]) -> None:
        files = {"output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id}
        now = self._work.now()
        self._work.store.shards.move(shard, ShardState.ENDED, ended_at=now, **facts, **files, held=None)
        forecast_records.batch_over(self._work.store, shard, batch.status, now)
        self._work.polls.forget(shard)
        self._progress.forget(shard)
        self._work.note(job, EventKind.ENDED, f"the batch is {batch.status}", shard)
