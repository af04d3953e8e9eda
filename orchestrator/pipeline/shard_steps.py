"""Steps of one shard: from its rows to a batch, and from the batch to settled rows.

`provider_calls` runs calls to a hosted backend outside the daemon's thread; our own server is called directly. After
any failure at a backend, the shard waits for a limited time, with a reason.
"""

from __future__ import annotations

from datetime import timedelta

from orchestrator.core.errors import BackendRemoved
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job
from orchestrator.core.shards import AT_BACKEND, HoldCode, Shard, ShardState
from orchestrator.pipeline.backend_admission import AdmissionControl, CallKind
from orchestrator.pipeline.collect import settling
from orchestrator.pipeline.collect.gather import Gather
from orchestrator.pipeline.collect.poll import BatchPolling
from orchestrator.pipeline.collect.remote_cleanup import RemoteCleanup
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.pipeline.submit.dispatch import Dispatch
from orchestrator.pipeline.submit.preflight import Preflights

UNREACHABLE = timedelta(seconds=30)
"""How long a backend may fail to answer calls before orch reports it as unreachable."""


class ShardSteps:
    """Moves the shards of a home's jobs through their states."""

    def __init__(self, work: ShardWork) -> None:
        self._store = work.store
        self._home = work.home
        self._work = work
        self.polls = work.polls
        self.handle = work.handle
        self.model = work.model
        self.preflights = Preflights(work)
        self._dispatch = Dispatch(work, self.preflights, self.dissolve)
        self._polling = BatchPolling(work)
        self._gather = Gather(work, lambda shard: self.remote_cleanup.add(shard.id))
        self.awaited_in_vain = self._gather.awaited_in_vain
        self.remote_cleanup = RemoteCleanup(
            work.store,
            work.home,
            work.backends.open,
            work.provider_calls,
            work.now,
            work.note,
            self._gather.take_late,
        )

    @property
    def admission_control(self) -> AdmissionControl:
        return self._work.admission_control

    def advance(self, job: Job, shard: Shard) -> bool:
        """Take one step of a shard, or pick up the result of its stage. True if anything changed. Raises
        OrchError.
        """
        try:
            return self._step(job, shard)
        except BackendRemoved as error:
            self._work.hold(job, self._store.shards.get(shard.id), HoldCode.REMOVED, error.message)
            raise

    def _step(self, job: Job, shard: Shard) -> bool:
        match self._work.stage_of(shard):
            case ShardState.PENDING:
                return self._dispatch.send(job, shard)
            case ShardState.SUBMITTING if shard.preflight is not None:
                return self._dispatch.recover_asked(job, shard)
            case ShardState.SUBMITTING:
                return self._polling.patiently(job, shard, self._dispatch.recover)
            case ShardState.SUBMITTED:
                return self._polling.patiently(job, shard, self._polling.track)
            case ShardState.ENDED:
                return self._gather.collect(job, shard)
            case ShardState.COLLECTED | ShardState.CANCELLED:
                return False

    def dissolve(self, job: Job, shard: Shard, reason: str) -> None:
        """Dissolve a shard that was not sent. Its rows wait for another shard."""
        settling.abandon(self._home, shard)
        self._store.shards.dissolve(shard, reason)
        self.remote_cleanup.add(shard.id)
        self._work.note(job, EventKind.SPLIT, reason, shard)

    def give_up(self, shard: Shard) -> None:
        """End a shard that was not sent. The caller ends its rows."""
        settling.abandon(self._home, shard)
        self._store.shards.move(shard, ShardState.CANCELLED, held=None)
        self.remote_cleanup.add(shard.id)

    def poll_cancelled(self, job: Job) -> None:
        """Poll a job's rerouted batches immediately, because their rows may be needed elsewhere."""
        now = self._work.now()
        for shard in self._store.shards.of_job(job.id):
            if shard.rerouted_at is not None and shard.state is ShardState.SUBMITTED:
                self._work.polls.of(shard, now).due = now

    def unreachable(self, job: Job) -> str | None:
        """Return why a job cannot progress if no backend with its batches answers, else None."""
        why = None
        for shard in self._store.shards.of_job(job.id):
            if shard.state not in AT_BACKEND:
                continue
            if not self._is_unreachable(shard):
                return None
            why = why or shard.held or f"{shard.backend} does not answer"
        return why

    def _is_unreachable(self, shard: Shard) -> bool:
        work = self._work
        try:
            handle = work.handle(shard)
        except BackendRemoved:
            return shard.held_code is HoldCode.REMOVED
        failing, now = work.polls.of(shard, work.now()).failing_since, work.now()
        is_failing = failing is not None and now >= failing + UNREACHABLE
        is_refused = work.admission_control.refused_for(handle, CallKind.LOOK) >= UNREACHABLE
        is_hanging = work.provider_calls.busy_for(shard.id) >= UNREACHABLE.total_seconds()
        return not handle.is_own and (is_failing or is_refused or is_hanging)
