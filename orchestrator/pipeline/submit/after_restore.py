"""Unknown batches with shards of our jobs, found because the store is older than the state of the backends.

This happens after a backup was restored, a snapshot was started, or a database lost its newest commits. So before a
process creates its first batch at a backend, it lists all batches of the home's unfinished jobs once. Their rows are
paid for, so the batches are adopted instead of sent again. If a backend's batches carry no ids, orch lists them only
if the store may lack the last batch. `create_once` handles a create request that was cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain
from threading import Lock

from msgspec.structs import replace

from orchestrator.backends import BATCH_GONE, RemoteBatch, SentLines
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import number_of
from orchestrator.core.errors import BackendError, RefusedError, Uncertain
from orchestrator.core.model import SUPERSEDED_BY, Job, JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline import lost_answers
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import ids_at_backend
from orchestrator.pipeline.lost_answers import LostAnswers
from orchestrator.pipeline.submit.batch_listing import BatchListing, job_of, note_last_create
from orchestrator.pipeline.submit.create_once import facts_of, take_lines
from orchestrator.pipeline.submit.rows_already_asked import Match, matches
from orchestrator.settings.home import Home
from orchestrator.store import Store

log = logging.getLogger(__name__)

CHUNK = 500
NEWEST = 100
"""Number of newest jobs among which orch looks for the last job that was sent."""
ASKED_ABOUT = "lost_batches"
"""Job option: batches with lost answers for which a person was asked to consent and has not decided yet."""


Lines = Callable[[Job, Shard, BackendHandle], Mapping[str, bytes]]


class UnknownBatches:
    """Finds and adopts unknown batches. Created when a process starts.

    A job newer than the process has no unknown batches of its own. But a forgotten job may have asked for the same
    rows.
    """

    def __init__(self, store: Store, home: Home, now: Callable[[], datetime], lines: Lines) -> None:
        """`lines` returns, by custom_id, the digest of each request of a shard in the form in which it is sent."""
        self._store = store
        self._home = home
        self._now = now
        self._began = now()
        self._last_known = self._find_last_known()
        self._listings: dict[str, BatchListing] = {}
        self._guard = Lock()
        self._adopting = Lock()
        """Held during an adoption. Several threads send shards, but a batch is adopted once."""
        self._lines = lines
        self._theirs: dict[str, tuple[RemoteBatch, SentLines | None]] = {}
        self._looked_up: dict[str, tuple[RemoteBatch, bool, frozenset[str] | None]] = {}

    def adopt(
        self, job: Job, shard: Shard, model: str, handle: BackendHandle, dissolve: Callable[[Shard, str], None]
    ) -> list[str]:
        """Adopt a job's unknown batches at a backend that contain waiting rows. Return a message about each.

        `shard` is about to be sent, and `model` is the backend's name for its model. `dissolve` gives up a shard that
        was not sent. Raises BackendError while the unknown batches cannot be listed. Raises RefusedError if the
        answers of a batch are gone and no person has agreed to pay for them again.
        """
        if job.created_at > self._began and (handle.is_own or self._last_known is None):
            return []
        done = []
        unknown = self._unknown(job, handle)
        listing = self._listings[handle.name]
        with self._adopting:
            by_request = [one for one in unknown if _is_told_by_requests(job, handle, one)]
            for batch in [one for one in unknown if one not in by_request]:
                told = self._adopt_listed(job, replace(shard, model=model), handle, batch, dissolve)
                if told is not None:
                    unknown.remove(batch)
                    done.append(told)
            left_behind = self._left_behind(job, listing)
            lists = [unknown, listing.forgotten, *left_behind, listing.unowned]
            self._reread_unowned(handle, listing)
            found = [*by_request, *listing.forgotten, *chain(*left_behind)]
            known = [*(self._read(job, handle, one) for one in found), *map(self._known, listing.unowned)]
            read = [(one, lines) for one, lines in known if lines is not None]
            for batch, told in self._take_over(job, handle, read, dissolve):
                _remove(lists, batch)
                done.append(told)
            for batch in [one for one, lines in known if lines is None]:
                if self._store.shards.get(shard.id).state is not ShardState.PENDING:
                    break
                if (told := self._repaid_unread(job, shard, model, handle, batch)) is not None:
                    _remove(lists, batch)
                    done.append(told)
        return done

    def undecided(self, job: Job, handle: BackendHandle) -> str | None:
        """Return why a job's rows wait for a running batch that may contain them, or None."""
        listing = self._listings.get(handle.name)
        if listing is None or job.id in listing.resigned or not (undecided := self._undecided(listing)):
            return None
        waiting = sum(one.rows for one in self._waiting(job, handle))
        batch = next((one for one in undecided if one.rows is None or one.rows <= waiting), None)
        if batch is None:
            return None
        rows = "some rows" if batch.rows is None else number_of(batch.rows, "row")
        return f"batch {batch.id} of {rows} runs at {handle.name}: only its end shows who owns it"

    def is_due(self, handle: BackendHandle) -> bool:
        """True if it is time to read again the batches without a known owner."""
        at = self._listings[handle.name].look_at
        return at is None or self._now() >= at

    def resign(self, job: Job, handle: BackendHandle) -> None:
        """Stop waiting for running batches that may contain rows of a job."""
        self._listings[handle.name].resigned.add(job.id)
        log.warning("%s: not known whose batches run at %s; rows are sent for the deadline", job.id, handle.name)

    def note_create(self, handle: BackendHandle, shard: Shard) -> None:
        """Record that a batch is about to be created, unless earlier batches are undecided. Raises StorageError."""
        listing = self._listings.get(handle.name)
        if not handle.profile.tells_shards and not (listing and self._undecided(listing)):
            note_last_create(self._home, shard)

    def _waiting(self, job: Job, handle: BackendHandle) -> list[Shard]:
        pending = [one for one in self._store.shards.of_job(job.id) if one.state is ShardState.PENDING]
        return [one for one in pending if one.preflight is None and one.backend == handle.name]

    def _reread_unowned(self, handle: BackendHandle, listing: BatchListing) -> None:
        if self.is_due(handle):
            listing.unowned = [self._current(handle, batch) for batch in listing.unowned]
            listing.look_at = self._now() + listing.pause

    def _current(self, handle: BackendHandle, batch: RemoteBatch) -> RemoteBatch:
        if not batch.status.is_final:
            batch = handle.api.retrieve(batch.id) or batch
        if batch.status.is_final and not batch.problems and self._lines_of(batch) is None:
            self._theirs[batch.id] = batch, handle.api.input_lines(batch)
        return batch

    def _undecided(self, listing: BatchListing) -> list[RemoteBatch]:
        return [one for one in listing.unowned if not one.problems and self._lines_of(one) is None]

    def _known(self, batch: RemoteBatch) -> tuple[RemoteBatch, SentLines | None]:
        return self._theirs.get(batch.id, (batch, None))

    def _lines_of(self, batch: RemoteBatch) -> SentLines | None:
        return self._known(batch)[1]

    def _left_behind(self, job: Job, listing: BatchListing) -> list[list[RemoteBatch]]:
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
            listing = self._listings.setdefault(handle.name, BatchListing())
        with listing.lock:
            if listing.unknown is None:
                try:
                    listing.fill(self._store, self._home, handle, self._last_known, self._now())
                except BackendError:
                    if listing.is_over(job, self._now()):
                        log.warning("%s: its list fails; rows are sent without it", handle.name)
                        return []
                    raise
            assert listing.unknown is not None
            return listing.unknown.setdefault(job.id, [])

    def _adopt_listed(
        self,
        job: Job,
        shard: Shard,
        handle: BackendHandle,
        batch: RemoteBatch,
        dissolve: Callable[[Shard, str], None],
    ) -> str | None:
        pending = [one for one in self._store.shards.of_job(job.id) if one.state is ShardState.PENDING]
        same = next((one for one in self._waiting(job, handle) if one.id == batch.shard), None)
        if batch.id not in self._looked_up:
            batch = self._listings[handle.name].confirmed(handle, batch, job, self._now())
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
                f"batch {batch.id} belongs to shard {same.id}, which was sent before the store was restored: adopted"
            )
        for other in pending:
            if not ids.isdisjoint(self._store.rows.custom_ids(other.id)):
                dissolve(other, f"some of its rows are already in batch {batch.id}")
        with self._store.shards.numbering:
            made = self._new_shard(job, handle, batch, self._store.shards.next_number(job.id))
            lost_answers.bring_here(self._home, batch.shard, made.id)
            rows = self._store.shards.adopt(made, ids)
        return (
            f"batch {batch.id} has {number_of(rows, 'row')} sent before the store was restored: adopted"
            if rows
            else None
        )

    def _find_last_known(self) -> datetime | None:
        """Return the creation time of the newest job that was sent.

        If no job was sent but the home has folders of jobs that the store lacks, return the home's creation time.
        Otherwise return the creation time of the oldest known job. None without known jobs.
        """
        jobs = self._store.jobs.newest(NEWEST)
        earlier = [one for one in jobs if one.created_at <= self._began]
        known = next((one.created_at for one in earlier if self._was_sent(one)), None)
        if known is None and self._home.job_folders() - {one.id for one in jobs}:
            return self._home.made_at(self._began)
        return known or min((one.created_at for one in earlier), default=None)

    def _was_sent(self, job: Job) -> bool:
        return job.finished_at is not None or any(
            one.sends or one.batch_id for one in self._store.shards.of_job(job.id)
        )

    def _read(self, job: Job, handle: BackendHandle, batch: RemoteBatch) -> tuple[RemoteBatch, SentLines | None]:
        if batch.id not in self._theirs:
            batch = self._listings[handle.name].confirmed(handle, batch, job, self._now())
            self._theirs[batch.id] = batch, handle.api.input_lines(batch)
        return self._theirs[batch.id]

    def _take_over(
        self,
        job: Job,
        handle: BackendHandle,
        read: list[tuple[RemoteBatch, SentLines]],
        dissolve: Callable[[Shard, str], None],
    ) -> list[tuple[RemoteBatch, str]]:
        """Take over batches of forgotten or ended jobs that contain waiting rows. Return each batch with a message.

        A batch in which no row has the same id may belong to another job. It is taken over only if all of its rows
        match.
        """
        if not read:
            return []
        is_by_name = handle.profile.tells_shards and handle.profile.names_rows
        read = sorted(read, key=lambda one: _name_of(one[0]) != job.name)
        waiting = ((other, self._lines(job, other, handle)) for other in self._waiting(job, handle))
        # Our own server shows a running batch's results, under the batch's own ids.
        found = [
            match
            for match in matches(read, waiting, under_other_ids=not handle.profile.is_orch)
            if not is_by_name or match.is_exact or match.is_whole or _name_of(match.batch) == job.name
        ]
        messages = []
        with self._store.shards.numbering:
            shards = self._made_of(job, handle, found)
            unsent = {other.id: (other, match.batch) for match in found for other, _ in match.shards}
            for other, batch in unsent.values():
                dissolve(other, f"some of its rows are already in batch {batch.id}")
            for match, shard in zip(found, shards, strict=True):
                names = match.names()
                if is_by_name and any(there != name for there, name in names.items()):
                    ids_at_backend.note(self._home, shard, names)
                rows = self._store.shards.adopt(shard, set(names.values()))
                text = f"batch {match.batch.id} has {rows:,} of its rows, sent by a later state of the store: adopted"
                messages.append((match.batch, text))
        return messages

    def _made_of(self, job: Job, handle: BackendHandle, found: list[Match]) -> list[Shard]:
        made, profile = list[Shard](), handle.profile
        for match in found:
            least = made[-1].number + 1 if made else self._store.shards.next_number(job.id)
            one = self._new_shard(job, handle, match.batch, least)
            path = self._home.shard_input(one.id)
            path.unlink(missing_ok=True)
            if not (profile.tells_shards and profile.names_rows):
                for other, same in match.shards:
                    take_lines(self._home.shard_input(other.id), path, same, handle.api.sent_line)
            if not profile.tells_shards:
                # The results of such a batch name rows by their lines.
                one = replace(one, input_file_id=handle.api.upload(path, f"{one.id}.jsonl"))
                lost_answers.forget_here(self._home, one.id)
            made.append(one)
        return made

    def _repaid_unread(
        self, job: Job, shard: Shard, model: str, handle: BackendHandle, batch: RemoteBatch
    ) -> str | None:
        """Return a message about the consent to pay again for a batch whose lines cannot be read.

        Return None if the batch belongs to another job. A batch of a job with the same name needs consent, unless the
        store shows that it has other rows. Raises RefusedError.
        """
        if not handle.profile.tells_shards:
            is_gone = any(problem.code == BATCH_GONE for problem in batch.problems)
            is_like = is_gone and batch.rows == shard.rows and self._is_newer(batch)
            return self._repaid(job, shard, model, handle, batch) if is_like else None
        of = job_of(batch)
        is_known = self._store.jobs.find(of) is not None
        is_ours = self._shares(job, shard, of) if is_known else _name_of(batch) == job.name
        # Older batches may belong to jobs that were removed together with their folders.
        is_told = self._is_newer(batch) or of in self._home.job_folders() or batch.id in _asked_about(job)
        if not is_ours or not is_told:
            return None
        is_gone = self._is_lost(handle, batch)
        if not is_gone and not _may_be_billed(handle, batch):
            return None
        return self._repaid(job, shard, model, handle, batch, is_gone=is_gone)

    def _is_newer(self, batch: RemoteBatch) -> bool:
        return self._last_known is None or batch.created_at is None or batch.created_at >= self._last_known

    def _repaid(
        self,
        job: Job,
        shard: Shard,
        model: str,
        handle: BackendHandle,
        batch: RemoteBatch,
        *,
        is_gone: bool = True,
    ) -> str:
        lost = replace(LostAnswers.of(batch, shard), is_gone=is_gone)
        try:
            return lost.repay(self._store, job, replace(shard, model=model), handle, self._now())
        except RefusedError:
            if batch.id not in (asked := _asked_about(self._store.jobs.get(job.id))):
                self._store.jobs.allow(job.id, **{ASKED_ABOUT: [*asked, batch.id]})
            raise

    def _shares(self, job: Job, shard: Shard, of: JobId) -> bool:
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

    def _new_shard(self, job: Job, handle: BackendHandle, batch: RemoteBatch, number: int) -> Shard:
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
            sends=0,
            **self._facts(batch),  # type: ignore[arg-type]
        )

    def _is_lost(self, handle: BackendHandle, batch: RemoteBatch) -> bool:
        """True if a batch has ended and all files with its answers are gone, not just late."""
        over_for = batch.ago(batch.over_at) or (None if batch.over_at is None else self._now() - batch.over_at)
        if over_for is not None and over_for < lost_answers.LATEST_FILES:
            return False
        is_answered = batch.status.is_final and batch.status is not BatchStatus.FAILED
        is_answered = is_answered and not _has_answered_nothing(batch)
        return is_answered and lost_answers.are_gone(handle, (batch.output_file_id, batch.error_file_id))


def _asked_about(job: Job) -> list[str]:
    found: list[str] = job.options.get(ASKED_ABOUT) or []
    return found


def _is_told_by_requests(job: Job, handle: BackendHandle, batch: RemoteBatch) -> bool:
    """True if only the requests in a batch show which rows it has.

    This holds if its backend stores no row ids. It also holds if the job was built after the batch: other documents
    may then have the same ids.
    """
    is_built_later = job.built_at is not None and batch.created_at is not None and batch.created_at < job.built_at
    return not handle.profile.names_rows or (handle.profile.reads_inputs and is_built_later)


def _remove(lists: list[list[RemoteBatch]], batch: RemoteBatch) -> None:
    for batches in lists:
        batches[:] = [one for one in batches if one.id != batch.id]


def _name_of(batch: RemoteBatch) -> str:
    return job_of(batch).rpartition("-")[0]


def _may_be_billed(handle: BackendHandle, batch: RemoteBatch) -> bool:
    is_refused = batch.status is BatchStatus.FAILED or _has_answered_nothing(batch)
    return not handle.profile.is_orch and not is_refused


def _has_answered_nothing(batch: RemoteBatch) -> bool:
    return batch.status.is_final and batch.is_counted and not batch.completed and not batch.output_tokens
