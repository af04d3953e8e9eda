"""Context shared by a shard's stages: backends, provider calls, polls and waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace

from orchestrator.core.errors import AccountError, BackendBusy, BackendError, BackendRefused
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job
from orchestrator.core.shards import HoldCode, Shard, ShardId, ShardState
from orchestrator.pipeline import budget, poll_schedule
from orchestrator.pipeline.backend_admission import AdmissionControl, CallKind
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.backend_set import BackendSet
from orchestrator.pipeline.provider_calls import Done, Inline, ProviderCalls
from orchestrator.policy import batch_evidence, overdue
from orchestrator.policy.model_names import resolve_model
from orchestrator.settings.home import Home
from orchestrator.store import Store

T = TypeVar("T")
_AFTER_FILES = (
    "Rows without an answer are then asked again, three times in all. They may be paid already: "
    "`orch cancel {job}`, then `orch retry {job}`, asks them sooner"
)
"""Sentence appended to the reason for waiting for a batch's files."""


class ShardWork:
    """The shards of a home's jobs, and the services that work on them."""

    def __init__(
        self,
        store: Store,
        home: Home,
        backends: BackendSet,
        budgets: budget.SharedBudgets,
        now: Callable[[], datetime],
        provider_calls: ProviderCalls,
    ) -> None:
        self.store = store
        self.home = home
        self.backends = backends
        self.budgets = budgets
        self.now = now
        self.provider_calls = provider_calls
        self.admission_control = AdmissionControl(store, now)
        self.polls = poll_schedule.PollSchedule()
        self._inline = Inline()
        self._begun: dict[ShardId, ShardState] = {}

    def handle(self, shard: Shard) -> BackendHandle:
        """Return the backend of a shard, with the prices for the shard's rows."""
        handle = self.backends.open(shard.backend)
        return handle if shard.preflight is None else replace(handle, price=handle.price.synchronous())

    def model(self, job: Job, shard: Shard) -> str:
        """Return the backend's name for a shard's model."""
        return resolve_model(shard.model, shard.backend, self.backends.models(job)) or shard.model

    def until(self, job: Job, shard: Shard, ended: datetime) -> datetime:
        """Return the latest time to wait for answers of a batch that ended at `ended`."""
        if shard.rerouted_at is not None or job.cancel_requested_at is not None:
            return ended + overdue.NO_ANSWER
        usual = overdue.usual_of(self.store.shards.durations(shard.backend))
        takes = timedelta(seconds=usual.total_p90) if usual.is_known else None
        return batch_evidence.answers_until(ended, job.deadline_at, takes)

    # --- calls

    def ask(
        self, handle: BackendHandle, shard: Shard, stage: Callable[[], T], *, alone: bool = False, pays: bool = False
    ) -> Done[T] | None:
        """Return the result of a stage that calls the backend, or None until it ends. Raises its errors."""
        if handle.is_own:
            return self._inline.do(handle.name, shard.id, stage)
        if not self.provider_calls.is_busy(shard.id):
            self._begun[shard.id] = shard.state
        return self.provider_calls.do(handle.name, shard.id, stage, alone=alone, pays=pays)

    def is_asking(self, shard: Shard) -> bool:
        """True if a stage of a shard is in progress, or its result has not been picked up."""
        return self.provider_calls.is_busy(shard.id)

    def stage_of(self, shard: Shard) -> ShardState:
        """Return the state whose stage runs next. A stage in progress ends first, even if the shard has moved."""
        return self._begun.get(shard.id, shard.state) if self.is_asking(shard) else shard.state

    # --- waits

    def failed(self, shard: Shard, handle: BackendHandle, error: BackendError) -> None:
        """Schedule the next poll after a failed call."""
        after = error.retry_after if isinstance(error, BackendRefused) else None
        self.polls.failed(shard, handle, self.now(), after, is_busy=isinstance(error, BackendBusy))

    def refused_account(
        self, job: Job, shard: Shard, handle: BackendHandle, error: AccountError, what: CallKind
    ) -> bool:
        """Hold a shard whose account was refused, and pause sending. Always returns False: nothing moved.

        Raises AccountError after repeated refusals.
        """
        self.admission_control.stop(handle, error.message, what)
        held = self.admission_control.check_account(handle) or error.message
        return self.hold(job, self.store.shards.get(shard.id), HoldCode.ACCOUNT, held)

    def hold(self, job: Job, shard: Shard, code: HoldCode, why: str) -> bool:
        """Record why a shard waits. A new reason also creates an event. Always returns False: nothing moved."""
        if code is HoldCode.FILES and job.cancel_requested_at is None:
            why = f"{why}. {_AFTER_FILES.format(job=job.id)}"
        if (shard.held, shard.held_code) != (why, code):
            if shard.held is None or shard.held_code is not code:
                self.store.jobs.note(job.id, EventKind.HELD, why, self.now(), shard.id, code=code)
            self.store.shards.note(shard, held=why, held_code=code)
        return False

    def hold_failed(self, job: Job, shard: Shard, error: BackendError) -> bool:
        """Record that a shard waits because a call to its backend failed. Always returns False: nothing moved."""
        code = HoldCode.BUSY if isinstance(error, BackendBusy) else HoldCode.UNREACHABLE
        return self.hold(job, shard, code, error.message)

    def note(self, job: Job, kind: EventKind, reason: str, shard: Shard) -> None:
        self.store.jobs.note(job.id, kind, reason, self.now(), ShardId(shard.id))
