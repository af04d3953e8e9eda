"""Dispatch of a shard: admission, sending, and the search for its batch after a lost response."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from threading import Lock

from orchestrator.backends import RemoteBatch
from orchestrator.core.counts import number_of
from orchestrator.core.errors import AccountError, BackendBusy, BackendError, StateConflict
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job
from orchestrator.core.shards import HoldCode, Shard, ShardState
from orchestrator.pipeline import batch_accounts, budget, lost_answers
from orchestrator.pipeline.backend_admission import CallKind
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import common_refusals
from orchestrator.pipeline.poll_schedule import SendPhase
from orchestrator.pipeline.provider_calls import Done
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.pipeline.submit import create_once, preflight
from orchestrator.pipeline.submit.after_restore import UnknownBatches
from orchestrator.pipeline.submit.create_once import input_digests
from orchestrator.pipeline.submit.preflight import Preflights
from orchestrator.policy.batch_errors import TOO_FEW_ROWS
from orchestrator.policy.budgets import TooDear
from orchestrator.policy.overdue import BUSY_FOR
from orchestrator.policy.preflight import PreflightFinding
from orchestrator.policy.quota import Split, few_rows

_TOLD = {
    PreflightFinding.ANSWERED: "the row that was asked first is answered: its batches follow",
    PreflightFinding.REFUSED: "the row that was asked first is refused: {}",
    PreflightFinding.UNCLEAR: "the row that was asked first proves nothing; its batches follow: {}",
}
LOOK_SLACK = timedelta(minutes=20)
"""Margin before the deadline. A job whose plan ends within it stops waiting to learn who owns a running batch."""
SENDING_FOR = timedelta(days=2)
"""How long to retry sending a batch. After that, its rows are rerouted or fail."""


class Readiness(Enum):
    """Result of a check before a shard is sent."""

    READY = auto()  # the shard may be sent
    HELD = auto()  # the shard waits, for the recorded reason
    MOVED = auto()  # the shard is not sent: its rows are planned again, or its batch was found


class Dispatch:
    """Sends shards. If a shard may no longer go to its backend, calls `dissolve` with the reason."""

    def __init__(self, work: ShardWork, preflights: Preflights, dissolve: Callable[[Job, Shard, str], None]) -> None:
        self._work = work
        self._preflights = preflights
        self._dissolve = dissolve
        self._asks = Lock()
        self._earlier = UnknownBatches(work.store, work.home, work.now, self._lines)

    def _lines(self, job: Job, shard: Shard, handle: BackendHandle) -> dict[str, bytes]:
        models, now = self._work.backends.models(job), self._work.now()
        writer = create_once.writer_of(self._work.store, job, shard, handle, models, now)
        return input_digests(self._work.store, self._work.home, shard, writer, handle.api.sent_line)

    def send(self, job: Job, shard: Shard) -> bool:
        """Take the next step of a pending shard, or pick up the result of sending it. True if anything changed."""
        handle = self._work.handle(shard)
        if self._work.is_asking(shard):
            return self._ends(job, shard, handle, partial(self._work.provider_calls.collect, shard.id))
        if shard.rerouted_at is not None or not self._work.backends.planning(job).may_take(shard):
            # Rerouted before its batch was known to exist, or no longer allowed at its backend.
            self._dissolve(job, shard, shard.rerouted_for or "its backend may no longer be used for it")
            return True
        if common_refusals.is_unsent_and_held(self._work.store, shard):
            self._dissolve(job, shard, "its backend has refused all rows of their kind")
            common_refusals.apply(self._work.store, shard)
            return True
        if not self._work.polls.is_due(shard, handle, self._work.now()):
            return False
        if self._give_up_if_unsendable(job, shard, handle):
            return True
        if shard.preflight is None and (found := self._follows(job, shard, handle)) is not Readiness.READY:
            return found is Readiness.MOVED
        if (held := self._work.admission_control.check_account(handle)) is not None:
            return self._work.hold(job, shard, HoldCode.ACCOUNT, held)
        if self._waits_for_undecided(job, handle):
            return False
        handle.price.known(self._work.model(job, shard), shard.endpoint)
        room = self._work.admission_control.hold(handle, shard) if shard.preflight is None else None
        if isinstance(room, Split):
            self._dissolve(job, shard, room.reason)
            return True
        try:
            held = room or self._settles(shard, handle) or self._over_budget(job, shard)
        except TooDear as error:
            if not self._work.admission_control.has_parts(shard, error):
                raise
            self._dissolve(job, shard, f"{error.message}; its rows go in smaller batches")
            return True
        if held is not None:
            return self._work.hold(job, shard, HoldCode.ADMISSION, held)
        return self._begin(job, shard, handle)

    def _follows(self, job: Job, shard: Shard, handle: BackendHandle) -> Readiness:
        """Check if a batch must wait for preflight rows. Batches that a preflight row can join are planned again."""
        if not handle.preflight:
            return Readiness.READY
        if self._work.store.shards.get(shard.id).state is not ShardState.PENDING:
            return Readiness.HELD  # it was planned again in this round
        standing = self._preflights.standing(shard)
        if standing.waits_for is not None:
            self._work.hold(job, shard, HoldCode.PREFLIGHT, standing.waits_for)
            return Readiness.HELD
        for batch in standing.outdated:
            self._dissolve(job, batch, "planned again with the row that was asked first")
        return Readiness.MOVED if standing.outdated else Readiness.READY

    def _waits_for_undecided(self, job: Job, handle: BackendHandle) -> bool:
        """True if a running batch may contain the job's rows and is not due to be read again.

        The job stops waiting before it would miss its deadline.
        """
        if self._earlier.undecided(job, handle) is None:
            return False
        if not self._earlier.is_due(handle):
            return True
        if job.deadline_at is not None:
            plan = self._work.backends.planning(job).plan()
            if not plan.verdict.holds or plan.done_p95 is None or plan.done_p95 + LOOK_SLACK >= job.deadline_at:
                self._earlier.resign(job, handle)
        return False

    def _give_up_if_unsendable(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        if shard.preflight is None and shard.rows < handle.limits.min_rows and shard.input_file_id is None:
            why = few_rows(handle.limits.min_rows, shard.rows)
            create_once.give_up(self._work.store, shard, why, self._work.now(), TOO_FEW_ROWS)
            self._work.polls.forget(shard)
            self._work.note(job, EventKind.ENDED, f"it is not sent: {why}", shard)
            return True
        watched, now = self._work.polls.of(shard, self._work.now()), self._work.now()
        is_failing = watched.failing_since is not None and now >= watched.failing_since + SENDING_FOR
        is_busy = watched.busy_since is not None and now >= watched.busy_since + BUSY_FOR
        if (
            not is_failing
            and not is_busy
            and self._work.admission_control.refused_for(handle, CallKind.SEND) < BUSY_FOR
        ):
            return False
        create_once.give_up(self._work.store, shard, shard.held or "its backend accepted nothing", now)
        self._work.polls.forget(shard)
        self._work.note(job, EventKind.ENDED, f"it could not be sent: {shard.held}", shard)
        return True

    def _settles(self, shard: Shard, handle: BackendHandle) -> str | None:
        """Return why orch waits before it uses an upload, or None. Some backends do not find a new upload
        immediately.
        """
        settles, now = self._work.admission_control.settles(handle), self._work.now()
        if not settles or shard.input_file_id is None:
            return None
        sending = self._work.polls.of(shard, now).phase(SendPhase)
        sending.uploaded_at = sending.uploaded_at or now
        at = sending.uploaded_at + settles
        return None if now >= at else f"its upload is not there yet; orch waits until {at:%H:%M:%S} UTC"

    def _over_budget(self, job: Job, shard: Shard) -> str | None:
        others = [other for other in self._work.store.shards.of_job(job.id) if other.id != shard.id]
        booked = partial(self._work.store.ledger.spent, job.id)
        over = budget.no_room(job, shard, others, booked, self._work.handle, self._work.model)
        return over or self._work.budgets.no_room(job, shard)

    def _begin(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        """Begin to send a shard. Our own server answers immediately; `send` picks up a provider's answer later."""
        # Batches are created one at a time, for the sake of quotas. Asking a row may take a minute.
        is_batch = shard.preflight is None
        stage = self._submit if is_batch else self._ask
        send = partial(
            self._work.ask, handle, shard, lambda: stage(job, shard, handle), alone=is_batch, pays=not is_batch
        )
        return self._ends(job, shard, handle, send)

    def _ends(self, job: Job, shard: Shard, handle: BackendHandle, send: Callable[[], Done[bool] | None]) -> bool:
        try:
            done = send()
            if done is None or not done.value:
                return False
            self._work.admission_control.worked(handle, CallKind.SEND)
            return True
        except AccountError as error:
            return self._work.refused_account(job, shard, handle, error, CallKind.SEND)
        except BackendBusy as busy:
            watched = self._work.polls.of(shard, self._work.now())
            watched.busy_since, watched.failing_since = watched.busy_since or self._work.now(), None
            self._work.admission_control.was_busy(handle, shard, busy)
            return self._work.hold_failed(job, self._work.store.shards.get(shard.id), busy)
        except BackendError as error:
            if handle.is_own:
                raise
            self._work.failed(shard, handle, error)
            current = self._work.store.shards.get(shard.id)
            if current.state is ShardState.SUBMITTING:
                self._work.polls.forget(shard)
            self._work.hold_failed(job, current, error)
            raise

    def _admission(self, job: Job, shard: Shard, handle: BackendHandle) -> create_once.AdmissionCheck:
        if self._work.store.shards.get(shard.id).state is not ShardState.PENDING:
            raise StateConflict(f"shard {shard.id} was given up before it was sent")
        return create_once.AdmissionCheck(
            self._work.now,
            lambda: self._settles(self._work.store.shards.get(shard.id), handle) or self._over_budget(job, shard),
            lambda: self._work.budgets.no_room(job, shard),
            self._asks,
            lambda intended: self._earlier.note_create(self._work.handle(intended), intended),
        )

    def _ask(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        if (found := self._adopted(job, shard, handle)) is not Readiness.READY:
            return found is Readiness.MOVED
        models, admission = self._work.backends.models(job), self._admission(job, shard, handle)
        asked = preflight.ask(self._work.store, self._work.home, job, shard, handle, models, admission)
        if isinstance(asked, create_once.Waits):
            return self._work.hold(job, self._work.store.shards.get(shard.id), asked.code, asked.why)
        self._note_answer(job, shard, asked)
        return True

    def recover_asked(self, job: Job, shard: Shard) -> bool:
        """End a preflight shard whose row was asked before the process stopped. Always returns True."""
        self._note_answer(job, shard, preflight.recover(self._work.store, self._work.home, shard, self._work.now()))
        return True

    def _note_answer(self, job: Job, shard: Shard, asked: preflight.Asked) -> None:
        self._work.polls.forget(shard)
        self._work.note(job, EventKind.PREFLIGHT, _TOLD[asked.finding].format(asked.message), shard)

    def _submit(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        watched, admission = self._work.polls.of(shard, self._work.now()), self._admission(job, shard, handle)
        if (found := self._adopted(job, shard, handle)) is not Readiness.READY:
            return found is Readiness.MOVED
        models = self._work.backends.models(job)
        batch = create_once.submit(self._work.store, self._work.home, job, shard, handle, models, watched, admission)
        if isinstance(batch, create_once.Waits):
            if batch.is_failing:
                self._work.polls.failed(shard, handle, self._work.now())
            return self._work.hold(job, self._work.store.shards.get(shard.id), batch.code, batch.why)
        self._work.polls.forget(shard)
        said = (
            "rejected by the backend"
            if batch is None
            else f"batch {batch.id} of {number_of(shard.rows, 'row')} created"
        )
        self._work.note(job, EventKind.SUBMITTED, said, shard)
        return True

    def _adopted(self, job: Job, shard: Shard, handle: BackendHandle) -> Readiness:
        model = self._work.model(job, shard)
        found = self._earlier.adopt(job, shard, model, handle, lambda other, why: self._dissolve(job, other, why))
        for told in found:
            self._work.note(job, EventKind.RECOVERED, told, shard)
        if (current := self._work.store.shards.get(shard.id)).state is ShardState.PENDING:
            agreed = lost_answers.require_agreed(self._work.store, job, shard, model, handle)
            if agreed is not None:
                self._work.note(job, EventKind.RECOVERED, agreed, shard)
            held = self._earlier.undecided(job, handle)
            if held is None:
                return Readiness.READY
            self._work.hold(job, current, HoldCode.UNCONFIRMED, held)
            return Readiness.HELD
        self._work.polls.forget(shard)
        return Readiness.MOVED

    def recover(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        """Search for the batch of a shard whose create request was not answered. True once the search has ended."""
        shard = batch_accounts.with_present_account(self._work.store, shard, handle)
        now = self._work.now()
        found = create_once.recover(
            self._work.store, self._work.home, shard, handle, self._work.polls.of(shard, now), now
        )
        self._work.polls.looked(shard, handle, now)
        if found is None:
            return False
        self._work.polls.forget(shard)
        self._work.note(job, EventKind.RECOVERED, found.why, shard)
        for double in found.doubles:
            self._end_double(job, shard, handle, double)
        return True

    def _end_double(self, job: Job, shard: Shard, handle: BackendHandle, double: RemoteBatch) -> None:
        with suppress(BackendError):
            if not double.status.is_final:
                handle.api.cancel(double.id)
        ends = "orch cancels it; it may be billed" if handle.profile.cancels else "it cannot be ended, and is billed"
        told = f"{handle.name} also made batch {double.id} of the same rows: {ends}"
        self._work.note(job, EventKind.DOUBLE, told, shard)
