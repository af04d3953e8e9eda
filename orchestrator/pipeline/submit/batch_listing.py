"""A backend's list of batches, and the check that the store has the batch created there last."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.backends import RemoteBatch
from orchestrator.core import batch_api
from orchestrator.core.atomic import durable
from orchestrator.core.errors import AccountError, BackendError, BackendRefused, StorageError, Uncertain
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Job, JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.settings.home import Home
from orchestrator.store import Store

CLOCK_SLACK = 60.0
"""Seconds by which the clock of the home's disk may differ from this machine's clock."""
EVER = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _LastCreate(msgspec.Struct):
    """Note about a shard whose batch is about to be created. `written_at` (Unix seconds) and `boot` date the note."""

    shard: str
    intended_at: datetime
    written_at: float
    boot: str


def note_last_create(home: Home, shard: Shard) -> None:
    """Record in the home that a shard's batch is about to be created. Raises StorageError.

    A store that lacks this batch is older than the note.
    """
    note = _LastCreate(shard.id, shard.intended_at or shard.created_at, time.time(), _boot())
    path = _path(home, shard.backend)
    try:
        with durable(path) as file:
            file.write(msgspec.json.encode(note))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="free some space") from error


def has_last_create(store: Store, home: Home, backend: str) -> bool:
    """True if the store certainly has the last batch that this home created at a backend.

    An older note may have been restored with a backup or a snapshot. So a note that was copied, or written during an
    earlier boot of the machine, proves nothing.
    """
    path = _path(home, backend)
    try:
        changed_at, content = path.stat().st_ctime, path.read_bytes()
        note = json_decoder(_LastCreate).decode(content)
    except FileNotFoundError:
        return not home.is_copy and not store.shards.intended_since(backend, EVER)
    except (OSError, *batch_api.JSON_ERRORS):
        return False
    if note.boot != _boot() or abs(changed_at - note.written_at) > CLOCK_SLACK:
        return False
    shard = store.shards.find(ShardId(note.shard))
    return shard is not None and shard.intended_at is not None and shard.intended_at >= note.intended_at


def _path(home: Home, backend: str) -> Path:
    return home.last_creates / f"{backend}.json"


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


NO_LIST = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=10)
LOOKED_FOR = timedelta(hours=1)
"""Maximum time that rows wait while a backend's list of batches fails."""
SHARE_OF_TIME = 10
"""Divisor of the time until the job's deadline: rows wait for a failing list at most that fraction of it."""


class BatchListing(Struct):
    """Unknown batches in a backend's list, or the time since which listing fails.

    `unknown` has the batches of jobs in the store, `forgotten` those of jobs that the store lacks. `unowned` batches
    have no known owner, and are read again at `look_at`. Jobs in `resigned` do not wait for that.
    """

    lock: Lock = field(default_factory=Lock)
    unknown: dict[JobId, list[RemoteBatch]] | None = None
    forgotten: list[RemoteBatch] = field(default_factory=list)
    unowned: list[RemoteBatch] = field(default_factory=list)
    look_at: datetime | None = None
    resigned: set[JobId] = field(default_factory=set)
    error: BackendError | None = None
    failing_since: datetime | None = None
    again_at: datetime | None = None
    pause: timedelta = FIRST_PAUSE

    def is_over(self, job: Job, now: datetime) -> bool:
        """True if the list has failed for so long that the job should stop waiting for it."""
        since = self.failing_since or now
        longest = LOOKED_FOR
        if job.deadline_at is not None:
            longest = min(longest, (job.deadline_at - since) / SHARE_OF_TIME)
        return now >= since + longest

    def fill(
        self, store: Store, home: Home, handle: BackendHandle, last_known: datetime | None, now: datetime
    ) -> None:
        """List the batches once for all waiting shards. A failed list is retried after a pause. Raises
        BackendError.
        """
        if self.error is not None and self.again_at is not None and now < self.again_at:
            raise self.error
        identity = home.identity()
        unfinished = [one.created_at for one in store.jobs.unfinished(identity)]
        found, unowned = self._listed(store, home, handle, min([last_known or now, *unfinished]), now)
        unknown: dict[JobId, list[RemoteBatch]] = {}
        for batch in sorted(found, key=lambda one: (one.created_at is None, one.created_at or now)):
            of = store.jobs.find(job_of(batch))
            if _is_known(store, handle, batch):
                continue
            if of is not None and of.home == identity:
                unknown.setdefault(of.id, []).append(batch)
            elif of is None and batch.home == identity:
                self.forgotten.append(batch)
        self.unowned = [one for one in unowned if not _is_known(store, handle, one)]
        self.unknown = unknown

    def confirmed(self, handle: BackendHandle, batch: RemoteBatch, job: Job, now: datetime) -> RemoteBatch:
        """Return the current state of a listed batch.

        Raises BackendError if the backend does not know the batch by its id. The list is then wrong, and is read
        again. Once `is_over`, the batch is returned as listed.
        """
        current = handle.api.retrieve(batch.id)
        if current is None and self.is_over(job, now):
            return batch
        if current is not None:
            # If a batch's owner is in the name of its input file, only the list shows the owner.
            is_told = current.shard is not None
            return current if is_told else replace(current, shard=batch.shard, home=batch.home)
        self.unknown, self.forgotten, self.unowned = None, [], []
        raise self._failed(
            Uncertain(f"{handle.name} lists batch {batch.id}, but does not know it by its id yet"), now
        )

    def _failed(self, error: BackendError, now: datetime) -> BackendError:
        self.failing_since = self.failing_since or now
        after = error.retry_after if isinstance(error, BackendRefused) else None
        wait = max(self.pause, timedelta(seconds=min(after or 0, 3600)))
        self.error, self.again_at = error, now + wait
        self.pause = min(self.pause * 2, LONGEST_PAUSE)
        return error

    def _listed(
        self, store: Store, home: Home, handle: BackendHandle, since: datetime, now: datetime
    ) -> tuple[list[RemoteBatch], list[RemoteBatch]]:
        try:
            if handle.profile.tells_shards:
                return handle.api.tagged(since) or [], []
            return [], [] if has_last_create(store, home, handle.name) else handle.api.batches_since(since)
        except BackendError as error:
            if isinstance(error, BackendRefused) and error.status in NO_LIST and not isinstance(error, AccountError):
                return [], []  # the backend has no list, so no batch can be found
            self._failed(error, now)
            raise


def job_of(batch: RemoteBatch) -> JobId:
    """Return the job named by the shard id that a batch carries, or an empty string."""
    return JobId((batch.shard or "").rpartition(".")[0])


def _is_known(store: Store, handle: BackendHandle, batch: RemoteBatch) -> bool:
    if store.shards.asked_at(handle.name, batch.id) is not None:
        return True
    shard = store.shards.find(ShardId(batch.shard or ""))
    return shard is not None and (shard.state is ShardState.SUBMITTING or shard.batch_id is not None)
