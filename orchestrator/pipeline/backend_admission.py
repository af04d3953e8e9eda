"""Admission control: what orch may send to a backend now, by its quotas from orch.toml, its profile and its refusals.

Quotas are capacity, not failure: a shard that does not fit waits, and no row's attempt is counted. The load on a
quota comes from the shards of every job, so several jobs share it. `policy/quota` computes the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.errors import AccountError, BackendBusy
from orchestrator.core.model import JobId
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.budget import bound
from orchestrator.policy import quota
from orchestrator.policy.batch_errors import INPUT_LOST, BatchFault, BatchVerdict
from orchestrator.policy.budgets import TooDear
from orchestrator.policy.quota import InFlight, LearnedLimit
from orchestrator.settings.model_lists import alias_words
from orchestrator.store import Store

HOUR = timedelta(hours=1)
FIRST_ACCOUNT_PAUSE, ACCOUNT_PAUSE = timedelta(seconds=15), timedelta(minutes=5)
"""First and longest pause between tries with a rejected key or an empty account.

The cause may pass, or a person may fix it.
"""
ACCOUNT_TRIES = 5
"""Number of consecutive refused tries, over about four minutes, after which a person must fix the account."""
ACCOUNT_FORGOTTEN = timedelta(days=1)
SETTLES = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15), timedelta(minutes=30))


class BatchRoom(Struct, frozen=True):
    """Maximum rows and estimated prompt tokens of one batch.

    `fits` returns True if the budget covers this many prompt tokens and answer tokens.
    """

    rows: int
    tokens: int | None
    fits: Callable[[int, int | None], bool] | None = None


def _covers(dollars: Decimal, handle: BackendHandle, model: str, tokens: int, most: int | None) -> bool:
    cost = bound(handle.price, model, tokens, most)
    return cost is None or cost <= dollars


class CallKind(StrEnum):
    """Kind of call for which an account was refused. An empty account may still poll its batches."""

    SEND = "send"
    LOOK = "look"


class Stopped(Struct, frozen=True):
    """An account refused `times` in a row, first at `since`. Nothing is sent before `until`."""

    since: datetime
    until: datetime
    reason: str
    times: int = 0


class AdmissionControl:
    """Decides what orch may send, and learns from refusals."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        # In memory only: a restart may mean that a person fixed the cause.
        self._stopped: dict[tuple[str, CallKind], Stopped] = {}
        self._lost_inputs: dict[str, int] = {}
        self._most: dict[JobId, Decimal] = {}

    def has_parts(self, shard: Shard, too_dear: TooDear) -> bool:
        """Return True if a smaller part of a shard fits the budget.

        The job's later shards are then limited to what the budget has left.
        """
        self._most[shard.job_id] = too_dear.left
        return shard.rows > 1 and too_dear.left * shard.rows >= too_dear.wanted

    def room(self, handle: BackendHandle, model: str, job_id: JobId | None = None, name: str = "") -> BatchRoom:
        """Return a backend's room for one batch of a model; `name` is the backend's name for the model."""
        known = self._learned(handle, model)
        limit = quota.effective(handle.limits.enqueued(model), known.enqueued_tokens)
        tokens = None
        if limit is not None:
            tokens = max(1, int(quota.max_shard_tokens(limit) / self._correction(handle, model)))
        dollars, fits = None if job_id is None else self._most.get(job_id), None
        if dollars is not None:
            fits = partial(_covers, dollars, handle, name or model)
        return BatchRoom(min(handle.limits.max_rows, known.max_rows or handle.limits.max_rows), tokens, fits)

    def hold(self, handle: BackendHandle, shard: Shard) -> str | quota.Split | None:
        """Return the reason why a shard waits, or how to split it; None if it may be sent now."""
        if handle.is_own:
            return None
        correction = self._correction(handle, shard.model)
        return quota.hold(
            int(shard.tokens * correction),
            shard.rows,
            model=alias_words(shard.model),
            limit=handle.limits.enqueued(shard.model),
            batches_per_hour=handle.limits.batches_per_hour,
            in_flight=self._in_flight(handle, shard, correction),
            learned=self._learned(handle, shard.model),
            now=self._now(),
        )

    def _correction(self, handle: BackendHandle, model: str) -> float:
        return quota.correction(*self._store.shards.told_tokens(handle.name, model))

    def _in_flight(self, handle: BackendHandle, shard: Shard, correction: float) -> InFlight:
        there = [
            other
            for other in self._store.shards.at_backend(handle.name)
            if other.model == shard.model and other.id != shard.id
        ]
        return InFlight(
            tokens=int(sum(other.tokens for other in there) * correction),
            rows=sum(other.rows for other in there),
            batches_last_hour=self._store.shards.intended_since(handle.name, self._now() - HOUR),
        )

    def accepted(self, handle: BackendHandle, shard: Shard) -> None:
        """Record that a batch passed validation, so that the next pause is the shortest again."""
        known = self._learned(handle, shard.model)
        if known.strikes:
            self._store.limits.put(quota.accepted(known))

    def was_busy(self, handle: BackendHandle, shard: Shard, busy: BackendBusy) -> None:
        """Record that a backend was too busy to take a file or create a batch."""
        self._pause(handle, shard, busy.message, busy.retry_after)

    def _pause(self, handle: BackendHandle, shard: Shard, reason: str, retry_after: float | None = None) -> None:
        known = self._learned(handle, shard.model)
        self._store.limits.put(quota.wait(known, reason, retry_after, self._now()))

    def stop(self, handle: BackendHandle, reason: str, what: CallKind) -> None:
        """Pause sending to a backend that refused the account. Each refused try lengthens the pause."""
        now, known = self._now(), self._stopped.get((handle.name, what))
        if known is None or now > known.until + ACCOUNT_FORGOTTEN:
            known = Stopped(now, now, reason)
        if now < known.until:
            return  # this call was sent before another one was refused
        pause = min(ACCOUNT_PAUSE, FIRST_ACCOUNT_PAUSE * 2 ** min(known.times, 10))
        self._stopped[handle.name, what] = Stopped(known.since, now + pause, reason, known.times + 1)

    def worked(self, handle: BackendHandle, what: CallKind) -> None:
        self._stopped.pop((handle.name, what), None)

    def refused_for(self, handle: BackendHandle, what: CallKind) -> timedelta:
        """Return how long an account has been refused without a successful call of the same kind."""
        known = self._stopped.get((handle.name, what))
        return timedelta() if known is None else self._now() - known.since

    def check_account(self, handle: BackendHandle) -> str | None:
        """Return the reason why a shard waits while an account is refused, or None.

        Raises AccountError after ACCOUNT_TRIES refused tries, because a person must fix the account.
        """
        now = self._now()
        found = [
            one
            for what in CallKind
            if (one := self._stopped.get((handle.name, what))) is not None and now < one.until
        ]
        if not found:
            return None
        known = max(found, key=lambda one: one.times)
        if known.times < ACCOUNT_TRIES:
            return f"{known.reason}; tried again at {known.until:%H:%M:%S} UTC"
        raise AccountError(
            known.reason, hint=f"`orch doctor` tests {handle.name} again; every row is kept and continues then"
        )

    def lost_input(self, handle: BackendHandle) -> None:
        """Record that a backend could not find an uploaded file. Later uploads get more time to settle."""
        self._lost_inputs[handle.name] = min(len(SETTLES), self._lost_inputs.get(handle.name, 0) + 1)

    def settles(self, handle: BackendHandle) -> timedelta:
        times = self._lost_inputs.get(handle.name, 0)
        return SETTLES[times - 1] if times else timedelta()

    def blames_input(self, handle: BackendHandle) -> bool:
        """True if a backend does not find uploaded inputs even after the longest wait."""
        return self._lost_inputs.get(handle.name, 0) >= len(SETTLES)

    def learn(
        self, handle: BackendHandle, shard: Shard, stop: str | None, wait: str | None, refusal: BatchVerdict | None
    ) -> None:
        """Learn from a collected batch.

        `stop` is the reason to send nothing to the backend now. `wait` is the reason to send nothing for this model.
        `refusal` is set if the whole batch was refused.
        """
        if stop is not None:
            self.stop(handle, f"{handle.name}: {stop}", CallKind.SEND)
        if wait is not None:
            self._pause(handle, shard, wait)
        if refusal is None:
            return
        match refusal.kind:
            case BatchFault.QUOTA:
                correction = self._correction(handle, shard.model)
                learned = quota.refused(
                    self._learned(handle, shard.model),
                    limit=refusal.limit,
                    in_flight_tokens=self._in_flight(handle, shard, correction).tokens,
                    shard_tokens=int(shard.tokens * correction),
                    reason=refusal.why,
                    now=self._now(),
                )
                self._store.limits.put(learned)
            case BatchFault.TOO_LARGE:
                known = self._store.limits.of(handle.name, shard.model)
                self._store.limits.put(replace(known, max_rows=max(1, shard.rows // 2), reason=refusal.why))
            case BatchFault.ACCOUNT:
                self.stop(handle, f"{handle.name}: {refusal.why}; {refusal.advice}", CallKind.SEND)
            case BatchFault.WHOLE if refusal.code == INPUT_LOST:
                self.lost_input(handle)
            case _:
                return  # the backend is not at fault, and the batch's rows have been judged

    def _learned(self, handle: BackendHandle, model: str) -> LearnedLimit:
        return quota.current(self._store.limits.of(handle.name, model), self._now())
