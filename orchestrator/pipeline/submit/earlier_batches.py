"""Unknown batches that carry shards of our jobs, because the store is older than the backends' state.

A backup was put back, a snapshot was started, or a database lost its newest commits. So before its first create at a
backend, a process lists all batches of the home's unfinished jobs once. Their rows are paid for, so they are adopted
and not sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from threading import Lock

from orchestrator.backends import RemoteBatch
from orchestrator.core.errors import AccountError, BackendError, BackendRefused, Uncertain
from orchestrator.core.model import SUPERSEDED_BY, Job, JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.core.wire import BatchStatus
from orchestrator.pipeline import lost_answers
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.lost_answers import LostAnswers
from orchestrator.pipeline.submit.batch_creation import facts_of
from orchestrator.settings.home import Home
from orchestrator.store import Store

log = logging.getLogger(__name__)

NO_LIST = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=10)
LOOKED_FOR = timedelta(hours=1)
"""How long a failing list may hold up rows."""
SHARE_OF_TIME = 10
"""A failing list holds up rows for at most this fraction (1/N) of the time until the job's deadline."""
CHUNK = 500
NEWEST = 100
"""Newest jobs searched for the newest one that was sent."""


Lines = Callable[[Job, Shard, BackendHandle], Mapping[str, bytes]]


@dataclass(slots=True)
class _Listing:
    """Result of a backend's list, or since when it fails.

    `unknown` has batches of jobs that the store knows, `forgotten` batches of jobs that the store does not know.
    """

    lock: Lock = field(default_factory=Lock)
    unknown: dict[JobId, list[RemoteBatch]] | None = None
    forgotten: list[RemoteBatch] = field(default_factory=list)
    error: BackendError | None = None
    failing_since: datetime | None = None
    again_at: datetime | None = None
    pause: timedelta = FIRST_PAUSE


class EarlierBatches:
    """Finds and adopts such batches. Made at the start of a process.

    A job newer than the process has no unknown batches; but a forgotten job may have asked for its rows.
    """

    def __init__(self, store: Store, home: Home, now: Callable[[], datetime], lines: Lines) -> None:
        """`lines` returns the digest of each line of a shard as it would be sent, by custom_id."""
        self._store = store
        self._home = home
        self._now = now
        self._began = now()
        self._last_known = self._find_last_known()
        self._listings: dict[str, _Listing] = {}
        self._guard = Lock()
        self._adopting = Lock()
        """Shards are sent by several threads, and a batch is adopted once."""
        self._lines = lines
        self._theirs: dict[str, tuple[RemoteBatch, Mapping[str, bytes] | None]] = {}
        self._looked_up: dict[str, tuple[RemoteBatch, bool, frozenset[str] | None]] = {}

    def adopt(
        self, job: Job, shard: Shard, model: str, handle: BackendHandle, dissolve: Callable[[Shard, str], None]
    ) -> list[str]:
        """Adopt a job's unknown batches at a backend that contain waiting rows; return what was done, for people.

        `shard` is about to be sent, and `model` is its model's name there. `dissolve` gives up an unsent shard.
        Raises BackendError if it cannot be known yet, and RefusedError if the answers of such a batch are gone and
        no user has agreed to pay for them again.
        """
        if job.created_at > self._began and (handle.is_own or self._last_known is None):
            return []
        done = []
        unknown = self._unknown(job, handle)
        listing = self._listings[handle.name]
        with self._adopting:
            for batch in list(unknown):
                told = self._adopted(job, replace(shard, model=model), handle, batch, dissolve)
                if told is not None:
                    unknown.remove(batch)
                    done.append(told)
            for batches in [listing.forgotten, *self._left_behind(job, listing)]:
                for batch in list(batches):
                    told = self._taken_over(job, shard, model, handle, batch, dissolve)
                    if told is not None:
                        batches.remove(batch)
                        done.append(told)
        return done

    def _left_behind(self, job: Job, listing: _Listing) -> list[list[RemoteBatch]]:
        """The unknown batches of other jobs that send nothing any more, and so adopt none of them."""
        others = ((self._store.jobs.find(name), batches) for name, batches in list((listing.unknown or {}).items()))
        return [
            batches
            for other, batches in others
            if other is not None
            and other.id != job.id
            and (other.finished_at is not None or other.options.get(SUPERSEDED_BY) is not None)
        ]

    def _unknown(self, job: Job, handle: BackendHandle) -> list[RemoteBatch]:
        with self._guard:
            listing = self._listings.setdefault(handle.name, _Listing())
        with listing.lock:
            if listing.unknown is None:
                try:
                    self._list(listing, handle)
                except BackendError:
                    if self._is_over(job, listing):
                        log.warning("%s: its list fails; rows are sent without it", handle.name)
                        return []
                    raise
            assert listing.unknown is not None
            return listing.unknown.setdefault(job.id, [])

    def _is_over(self, job: Job, listing: _Listing) -> bool:
        """True if a list has failed for too long to wait for it."""
        since = listing.failing_since or self._now()
        longest = LOOKED_FOR
        if job.deadline_at is not None:
            longest = min(longest, (job.deadline_at - since) / SHARE_OF_TIME)
        return self._now() >= since + longest

    def _list(self, listing: _Listing, handle: BackendHandle) -> None:
        """List once for all shards that wait; a failed list is repeated after a pause."""
        now = self._now()
        if listing.error is not None and listing.again_at is not None and now < listing.again_at:
            raise listing.error
        home = self._home.identity()
        unfinished = [one.created_at for one in self._store.jobs.unfinished(home)]
        since = min([self._last_known or now, *unfinished])
        try:
            found = handle.api.tagged(since) or []
        except BackendError as error:
            if isinstance(error, BackendRefused) and error.status in NO_LIST and not isinstance(error, AccountError):
                found = []  # it has no list: nothing can be found there
            else:
                listing.failing_since = listing.failing_since or now
                after = error.retry_after if isinstance(error, BackendRefused) else None
                wait = max(listing.pause, timedelta(seconds=min(after or 0, 3600)))
                listing.error, listing.again_at = error, now + wait
                listing.pause = min(listing.pause * 2, LONGEST_PAUSE)
                raise
        unknown: dict[JobId, list[RemoteBatch]] = {}
        for batch in sorted(found, key=lambda one: (one.created_at is None, one.created_at or now)):
            of = self._store.jobs.find(_job_of(batch))
            if self._is_known(handle, batch):
                continue
            if of is not None and of.home == home:
                unknown.setdefault(of.id, []).append(batch)
            elif of is None and batch.home == home:
                listing.forgotten.append(batch)
        listing.unknown = unknown

    def _is_known(self, handle: BackendHandle, batch: RemoteBatch) -> bool:
        """True if a shard has the batch, or searches for it: an unanswered create finds its own."""
        if self._store.shards.asked_at(handle.name, batch.id) is not None:
            return True
        shard = self._store.shards.find(ShardId(batch.shard or ""))
        return shard is not None and (shard.state is ShardState.SUBMITTING or shard.batch_id is not None)

    def _adopted(
        self,
        job: Job,
        shard: Shard,
        handle: BackendHandle,
        batch: RemoteBatch,
        dissolve: Callable[[Shard, str], None],
    ) -> str | None:
        """Adopt a batch and say so; None if it has no waiting row."""
        pending = [one for one in self._store.shards.of_job(job.id) if one.state is ShardState.PENDING]
        batches = [one for one in pending if one.preflight is None and one.backend == handle.name]
        same = next((one for one in batches if one.id == batch.shard), None)
        if batch.id not in self._looked_up:
            batch = handle.api.retrieve(batch.id) or batch
            here = lost_answers.ids_here(self._home, batch.shard) if batch.shard else None
            is_lost = here is None and self._is_lost(handle, batch)
            self._looked_up[batch.id] = (batch, is_lost, here or handle.api.input_ids(batch))
        batch, is_lost, ids = self._looked_up[batch.id]
        if is_lost:
            told = LostAnswers.of(batch, shard)
            return told.repay(
                self._store, job, replace(same, model=shard.model) if same else shard, handle, self._now()
            )
        if ids is None:
            if _has_answered_nothing(batch):
                return None
            if same is None or batch.rows not in (None, same.rows):
                del self._looked_up[batch.id]
                raise Uncertain(f"{handle.name} has batch {batch.id} of this job, and its rows cannot be read yet")
            ids = frozenset(self._store.rows.custom_ids(same.id))
        if same is not None and ids == self._store.rows.custom_ids(same.id):
            self._take(same, handle, batch)
            return (
                f"batch {batch.id} belongs to shard {same.id}, which was sent before the store was put back: adopted"
            )
        for other in pending:
            if not ids.isdisjoint(self._store.rows.custom_ids(other.id)):
                dissolve(other, f"rows of it are in batch {batch.id} already")
        with self._store.shards.numbering:
            made = self._made(job, handle, batch)
            lost_answers.bring_here(self._home, batch.shard, made.id)
            rows = self._store.shards.adopt(made, ids)
        return (
            f"batch {batch.id} has {rows:,} rows that were sent before the store was put back: adopted"
            if rows
            else None
        )

    def _find_last_known(self) -> datetime | None:
        """Return when the newest job was made that was sent; if none was sent, when the home was made.

        None if the home is new: it has no folder of a job that the store does not know.
        """
        jobs = self._store.jobs.newest(NEWEST)
        earlier = [one for one in jobs if one.created_at <= self._began]
        known = next((one.created_at for one in earlier if self._was_sent(one)), None)
        if known is None and self._home.job_folders() - {one.id for one in jobs}:
            return self._home.made_at(self._began)
        return known or min((one.created_at for one in earlier), default=None)

    def _was_sent(self, job: Job) -> bool:
        return job.finished_at is not None or any(one.sends for one in self._store.shards.of_job(job.id))

    def _taken_over(
        self,
        job: Job,
        shard: Shard,
        model: str,
        handle: BackendHandle,
        batch: RemoteBatch,
        dissolve: Callable[[Shard, str], None],
    ) -> str | None:
        """Take over the batch of a forgotten or ended job, and say so; None if it has no row of this job.

        Rows with the same lines are this job's. If the lines can no longer be read, a job of the same name needs
        consent to pay again, unless the store knows that the ended job has none of its rows.
        """
        if batch.id not in self._theirs:
            self._theirs[batch.id] = (batch := handle.api.retrieve(batch.id) or batch), handle.api.input_lines(batch)
        batch, theirs = self._theirs[batch.id]
        if theirs is None:
            of = _job_of(batch)
            is_known = self._store.jobs.find(of) is not None
            is_ours = self._shares(job, shard, of) if is_known else of.rpartition("-")[0] == job.name
            # Older ones may be of jobs that were removed, with their folders.
            is_newer = self._last_known is None or batch.created_at is None or batch.created_at >= self._last_known
            is_ours = is_ours and (is_newer or of in self._home.job_folders())
            if not is_ours or not self._is_lost(handle, batch):
                return None
            return LostAnswers.of(batch, shard).repay(
                self._store, job, replace(shard, model=model), handle, self._now()
            )
        found: set[str] = set()
        for other in self._store.shards.of_job(job.id):
            if other.state is not ShardState.PENDING or other.preflight is not None or other.backend != handle.name:
                continue
            ours = self._lines(job, other, handle)
            if same := {name for name, digest in ours.items() if theirs.get(name) == digest}:
                found |= same
                dissolve(other, f"rows of it are in batch {batch.id} already")
        if not found:
            return None
        with self._store.shards.numbering:
            rows = self._store.shards.adopt(self._made(job, handle, batch), found)
        return f"batch {batch.id} has {rows:,} of its rows, which a later state of the store had asked: adopted"

    def _shares(self, job: Job, shard: Shard, of: JobId) -> bool:
        """True if another job has a row of the shard, with the same request."""
        ids, known = sorted(self._store.rows.custom_ids(shard.id)), self._store.known
        for first in range(0, len(ids), CHUNK):
            some = ids[first : first + CHUNK]
            ours, theirs = known.before(job.id, some), known.before(of, some)
            if any(name in theirs and theirs[name].fingerprint == row.fingerprint for name, row in ours.items()):
                return True
        return False

    def _take(self, shard: Shard, handle: BackendHandle, batch: RemoteBatch) -> None:
        now = self._now()
        facts = {"intended_at": batch.created_at or now, "account": handle.api.account(), "sends": shard.sends + 1}
        self._store.shards.move(shard, ShardState.SUBMITTING, input_file_id=batch.input_file_id, **facts)
        self._store.shards.move(self._store.shards.get(shard.id), ShardState.SUBMITTED, **self._facts(batch))

    def _facts(self, batch: RemoteBatch) -> dict[str, object]:
        now = self._now()
        return facts_of(batch, now) | {"submitted_at": min(batch.created_at or now, now)}

    def _made(self, job: Job, handle: BackendHandle, batch: RemoteBatch) -> Shard:
        """Return a new shard for the batch, under its former number if that is free."""
        number = self._store.shards.next_number(job.id)
        _, _, tagged = (batch.shard or "").rpartition(".")
        if tagged.isdigit() and int(tagged) >= number:
            number = int(tagged)
        now = self._now()
        return Shard(
            id=ShardId(f"{job.id}.{number:03d}"),
            job_id=job.id,
            number=number,
            backend=handle.name,
            endpoint="",
            model="",
            state=ShardState.SUBMITTED,
            reason="its batch was found at its backend",
            rows=0,
            bytes=0,
            created_at=min(batch.created_at or now, now),
            intended_at=batch.created_at or now,
            account=handle.api.account(),
            input_file_id=batch.input_file_id,
            sends=1,
            **self._facts(batch),  # type: ignore[arg-type]
        )

    def _is_lost(self, handle: BackendHandle, batch: RemoteBatch) -> bool:
        """True if a batch is over and every file of its answers is gone."""
        is_answered = batch.status.is_final and batch.status is not BatchStatus.FAILED
        is_answered = is_answered and not _has_answered_nothing(batch)
        return is_answered and lost_answers.are_gone(handle, (batch.output_file_id, batch.error_file_id))


def _job_of(batch: RemoteBatch) -> JobId:
    return JobId((batch.shard or "").rpartition(".")[0])


def _has_answered_nothing(batch: RemoteBatch) -> bool:
    """True if a batch ended, by its backend's own counts, before any row had an answer."""
    return batch.status.is_final and batch.is_counted and not batch.completed and not batch.output_tokens
