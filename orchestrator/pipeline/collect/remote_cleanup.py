"""Clean-up at backends after shards have ended: deletes their files, and looks for late answers.

Clean-up never delays a job. It starts once the shard has ended, and is retried after failures. A day after orch stops
looking for late answers, it leaves the remaining files and logs a note. The store marks a shard as unclean until its
clean-up is done, so a killed process loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    OrchError,
    UsageError,
)
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import late_answers
from orchestrator.pipeline.collect.settling import remove_input
from orchestrator.pipeline.provider_calls import Inline, ProviderCalls
from orchestrator.settings.home import Home
from orchestrator.store import Store

RETRIED_FOR = timedelta(days=1)
"""How long to retry deleting files after orch stops waiting for late answers."""
EVERY = timedelta(minutes=1)
AT_ONCE = 20

INLINE = Inline()

Note = Callable[[Job, EventKind, str, Shard], None]
TakeLate = Callable[[Job, Shard, BackendHandle], late_answers.Late]


class _Due(Struct):
    at: datetime
    times: int = 0


class RemoteCleanup:
    """Remote clean-up of a home. `take` gives late answers to a job's rows; `note` records events."""

    def __init__(
        self,
        store: Store,
        home: Home,
        handle_of: Callable[[str], BackendHandle],
        provider_calls: ProviderCalls,
        now: Callable[[], datetime],
        note: Note,
        take: TakeLate,
    ) -> None:
        self._store = store
        self._home = home
        self._handle_of = handle_of
        self._provider_calls = provider_calls
        self._now = now
        self._note = note
        self._take = take
        self._due: dict[str, _Due] = {}
        self._shards: dict[str, Shard] = {}
        self._read_at: datetime | None = None

    def add(self, shard_id: ShardId) -> None:
        shard = self._shards[shard_id] = self._store.shards.get(shard_id)
        self._step(shard)

    def tick(self) -> bool:
        """Run the clean-ups that are due. True if any were due."""
        now = self._now()
        if self._read_at is None or not self._read_at <= now < self._read_at + EVERY:
            self._shards = {one.id: one for one in self._store.shards.unclean(self._home.identity())}
            self._due = {name: due for name, due in self._due.items() if name in self._shards}
            self._read_at = now
        due = [one for one in self._shards.values() if self._is_due(one, now)][:AT_ONCE]
        for shard in due:
            self._step(shard)
        return bool(due)

    @property
    def is_busy(self) -> bool:
        """True if a clean-up call to a backend is in progress."""
        return any(self._provider_calls.is_busy(_key(shard)) for shard in self._shards.values())

    def _is_due(self, shard: Shard, now: datetime) -> bool:
        known = self._due.get(shard.id)
        return known is None or now >= known.at or self._provider_calls.is_busy(_key(shard))

    def _step(self, shard: Shard) -> None:
        job = self._store.jobs.find(JobId(shard.job_id))
        if job is None:
            self._shards.pop(shard.id, None)
            return
        if not _files_of(shard) and not shard.owed:
            self._is_clean(shard)
            return
        handle = None
        try:
            handle = self._handle_of(shard.backend)
            stage = self._look if late_answers.is_waited_for(shard, handle.profile, self._now()) else self._delete
            provider_calls = INLINE if handle.is_own else self._provider_calls
            done = provider_calls.do(handle.name, _key(shard), lambda: stage(job, shard, handle))
        except OrchError as error:
            self._failed(job, shard, handle, error)
            return
        if done is not None and done.value is not None:
            self._settle(job, shard, handle, done.value)

    def _look(self, job: Job, shard: Shard, handle: BackendHandle) -> bool | None:
        if late_answers.look(self._store, self._home, shard, handle, self._now()) is None:
            self._put_off(shard, late_answers.next_look(self._times(shard)))
            return None
        return True

    def _delete(self, job: Job, shard: Shard, handle: BackendHandle) -> bool:
        for file_id in _files_of(shard):
            try:
                handle.api.forget_file(file_id)
            except (BackendBusy, AccountError):
                raise
            except BackendRefused as refusal:
                self._left(job, shard, file_id, refusal.message)
        return False

    def _settle(self, job: Job, shard: Shard, handle: BackendHandle, has_come: bool) -> None:
        if not has_come:
            self._is_clean(shard)
            return
        told = self._take(job, shard, handle)
        if told.swapped is not None:
            self._note(job, EventKind.SWAPPED, told.swapped, shard)
        self._store.shards.note(shard, owed=0)
        self._note(job, EventKind.LATE, str(told), shard)
        self._again(shard)

    def _again(self, shard: Shard) -> None:
        self._shards[shard.id] = current = self._store.shards.get(shard.id)
        self._due.pop(shard.id, None)
        self._step(current)

    def _failed(self, job: Job, shard: Shard, handle: BackendHandle | None, error: OrchError) -> None:
        over = late_answers.until(shard, None if handle is None else handle.profile)
        if self._now() < over + RETRIED_FOR or not isinstance(error, BackendError | UsageError):
            self._put_off(shard, late_answers.next_look(self._times(shard)))
            return
        if files := _files_of(shard):
            self._left(job, shard, ", ".join(files), error.message)
        self._is_clean(shard)

    def _left(self, job: Job, shard: Shard, what: str, why: str) -> None:
        told = f"left at {shard.backend}: {what}, which cannot be deleted: {why}"
        self._note(job, EventKind.LEFT, f"{told}; `orch reconcile --delete-files` tries it again", shard)

    def _is_clean(self, shard: Shard) -> None:
        if shard.state is ShardState.COLLECTED:
            remove_input(self._home, shard)
        late_answers.clear(self._home, shard)
        self._store.shards.note(shard, cleaned_at=self._now(), owed=0)
        self._shards.pop(shard.id, None)
        self._due.pop(shard.id, None)

    def _times(self, shard: Shard) -> int:
        known = self._due.get(shard.id)
        return 0 if known is None else known.times

    def _put_off(self, shard: Shard, pause: timedelta) -> None:
        self._due[shard.id] = _Due(self._now() + pause, self._times(shard) + 1)


def _key(shard: Shard) -> str:
    return f"{shard.id} chore"


def _files_of(shard: Shard) -> list[str]:
    return [name for name in (shard.input_file_id, shard.output_file_id, shard.error_file_id) if name is not None]
