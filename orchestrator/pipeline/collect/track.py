"""Stage 4: running batches are polled at sensible intervals until they are over and their files are there."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.backends import RemoteBatch
from orchestrator.core.errors import AccountError, BackendError, UsageError
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard
from orchestrator.core.wire import BatchStatus
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.policy import evidence, poll_schedule
from orchestrator.policy.evidence import BatchLife, Denied, EndedBatch, EvidenceVerdict, FileReading
from orchestrator.store import Store

UNKNOWN = poll_schedule.Usual()
SEEN_EVERY = timedelta(seconds=30)
PAST_VALIDATION = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED)
MOST_PUSHED = 10_000
"""Most pushed batches kept until polled; some may belong to other programs with the same account."""


class Came(Struct, frozen=True):
    """The best reading of one result file: its bytes, the rows that it names, and why it broke off."""

    bytes: int
    rows: int
    cut: str | None = None


class PolledShard(Struct):
    """Polling state of a shard: when it is due, how it was last `seen`, and since when it is so (`changed`).

    `denied`: its backend does not know the batch. `asked_at`: when it was first asked to end. `failing_since`: since
    when its calls fail. `busy_since`: since when the backend has no room. `came` is the best reading of each file,
    `reading` of all together, first read at `unchanged_since`. `least_told` is the smallest size that the backend has
    reported. `uploads` counts inputs that could not be used, and `strays` uploads answered with a foreign file.
    `unseen` counts lists without its batch. `refused_since` is when the present upload was first refused,
    `uploaded_at` when it was first visible.
    """

    due: datetime
    seen: object
    changed: datetime
    polls: int = 0
    denied: Denied | None = None
    asked_at: datetime | None = None
    failing_since: datetime | None = None
    came: dict[str, Came] = field(default_factory=dict)
    reading: FileReading | None = None
    unchanged_since: datetime | None = None
    least_told: int | None = None
    busy_since: datetime | None = None
    uploads: int = 0
    unseen: int = 0
    uploaded_at: datetime | None = None
    refused_since: datetime | None = None
    strays: int = 0

    def has_grown(self, told: int | None) -> bool:
        """True if its backend reports a larger size than before."""
        if told is not None and (self.least_told is None or told < self.least_told):
            self.least_told = told
        return told is not None and told != self.least_told


class PollSchedule(Struct):
    """When each shard is due for a poll. Kept in memory: after a restart, everything is polled once."""

    _by_shard: dict[str, PolledShard] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pushed: dict[str, None] = field(default_factory=dict)
    _hurried: set[str] = field(default_factory=set)

    def push(self, batch_id: str) -> None:
        """Note a provider's event that a batch changed, for an immediate poll. Callable from any thread.

        The event may come before the shard has its batch's id, so it is kept until then.
        """
        with self._lock:
            self._pushed[batch_id] = None
            if len(self._pushed) > MOST_PUSHED:
                del self._pushed[next(iter(self._pushed))]

    def of(self, shard: Shard, now: datetime) -> PolledShard:
        """Return what is known of a shard."""
        return self._by_shard.setdefault(shard.id, PolledShard(now, None, now))

    def is_due(self, shard: Shard, handle: BackendHandle, now: datetime) -> bool:
        """True if a shard is due for a poll; our own server always is."""
        if handle.is_own:
            return True
        look = self._by_shard.get(shard.id)
        # Taken before the poll: a later event may be about something that this poll misses, and counts for the next.
        if self._take(shard) and look is not None:
            look.due = now
        return look is None or now >= look.due

    def _take(self, shard: Shard) -> bool:
        """Take an event about the shard's batch; True if there was one."""
        with self._lock:
            if shard.batch_id not in self._pushed:
                return False
            del self._pushed[shard.batch_id]
            return True

    def looked(
        self,
        shard: Shard,
        handle: BackendHandle,
        now: datetime,
        *,
        seen: object = None,
        usual: poll_schedule.Usual = UNKNOWN,
    ) -> datetime:
        """Note a poll and what it saw; return since when the shard has looked like this."""
        look = self.of(shard, now)
        look.failing_since = look.busy_since = None
        if look.seen != seen:
            look.seen, look.changed, look.polls = seen, now, 0
        else:
            look.polls += 1
        ends_in = None
        if usual.is_known and shard.submitted_at is not None:
            ends_in = usual.total_p50 - (now - shard.submitted_at).total_seconds()
        wait = poll_schedule.next_look(
            handle.poll_seconds, look.polls, seed=f"{shard.id}/{look.polls}", ends_in=ends_in
        )
        look.due = now + timedelta(seconds=wait)
        return look.changed

    def failed(
        self,
        shard: Shard,
        handle: BackendHandle,
        now: datetime,
        retry_after: float | None = None,
        *,
        is_busy: bool = False,
    ) -> None:
        """Note a failed poll. The next comes as after a poll without news, or when the backend asked for it.

        `is_busy` means that the backend answered: it is not failing.
        """
        look = self.of(shard, now)
        look.polls += 1
        if is_busy:
            look.busy_since, look.failing_since = look.busy_since or now, None
        else:
            look.failing_since = look.failing_since or now
        wait = poll_schedule.next_look(handle.poll_seconds, look.polls, seed=f"{shard.id}/{look.polls}")
        look.due = now + timedelta(seconds=max(wait, retry_after or 0.0))

    def hurry(self, shard: Shard, now: datetime) -> None:
        """Poll a shard at once for a reason of our own; repeated calls have no effect."""
        if shard.id not in self._hurried and (look := self._by_shard.get(shard.id)) is not None:
            look.due = now
        self._hurried.add(shard.id)

    def forget(self, shard: Shard) -> None:
        """Forget a shard: its next stage is due at once."""
        self._by_shard.pop(shard.id, None)


def check_account(store: Store, shard: Shard, handle: BackendHandle) -> Shard:
    """Return the shard with the account of the present key, if that is its own or sees the same batches.

    Keys of the same organisation are of the same account. A key with no stated owner is accepted once it can see one
    of our batches. Otherwise raises UsageError.
    """
    if shard.account is None:
        return shard
    account = handle.api.account()
    if account == shard.account:
        return shard
    of_orgs = account.startswith("org:") and shard.account.startswith("org:")
    if not handle.is_own and not of_orgs and _sees_the_same(store, shard, handle):
        store.shards.adopt_account(shard.backend, shard.account, account)
        return replace(shard, account=account)
    what = f"the batch of {shard.id}" if shard.batch_id is None else f"batch {shard.batch_id}"
    raise UsageError(
        f"{what} was made by the account {shard.account} of {handle.name}; the current key "
        f"belongs to {account}, which cannot see it",
        hint=f"set the key of {shard.account} until the job is done; `orch reconcile {handle.name}` shows more",
    )


def _sees_the_same(store: Store, shard: Shard, handle: BackendHandle) -> bool:
    """True if the present key shows a batch that the shard's account has made."""
    assert shard.account is not None
    for other in [shard, *store.shards.of_account(handle.name, shard.account)]:
        if other.batch_id is None:
            continue
        try:
            batch = handle.api.retrieve(other.batch_id)
        except AccountError:
            raise
        except BackendError:
            continue
        if batch is not None and batch.shard in (None, other.id) and (batch.rows or 0) <= other.rows:
            return True
    return False


def facts_of(shard: Shard, batch: RemoteBatch, now: datetime) -> dict[str, object]:
    """Return what a poll says of a shard, by column, without what is already recorded."""
    facts: dict[str, object] = {
        "provider_status": batch.status,
        "provider_completed": batch.completed,
        "provider_failed": batch.failed,
        "provider_input_tokens": batch.input_tokens,
        "provider_output_tokens": batch.output_tokens,
        # The end of a batch comes without its seconds: keep the last value until its rows are booked.
        "provider_seconds": max(batch.upstream_seconds, shard.provider_seconds),
    }
    if batch.status != shard.provider_status:
        facts["status_at"] = now
    has_begun = batch.status in PAST_VALIDATION or batch.completed + batch.failed > 0
    if shard.started_at is None and has_begun:
        facts["started_at"] = now
    if shard.first_at is None and (batch.completed or (batch.failed and not batch.status.is_final)):
        facts["first_at"] = now
    if batch.status.is_final and batch.created_at is not None and batch.over_at is not None:
        facts["took_seconds"] = max(0.0, (batch.over_at - batch.created_at).total_seconds())
    found = {name: value for name, value in facts.items() if getattr(shard, name) != value}
    # Our own server is polled many times a minute, which need not be recorded each time.
    if found or shard.seen_at is None or now - shard.seen_at >= SEEN_EVERY:
        found["seen_at"] = now
    return found


def life_of(job: Job, shard: Shard, handle: BackendHandle, watched: PolledShard, *, may_leave: bool) -> BatchLife:
    """Return a batch's life so far; `may_leave` says if another backend takes its rows."""
    made = shard.submitted_at or shard.created_at
    ends = [at for at in (job.cancel_requested_at, shard.rerouted_at) if at is not None]
    return BatchLife(
        made=made,
        window=timedelta(seconds=shard.window_seconds),
        overruns=handle.profile.overruns,
        shown=shard.seen_at or made,
        failing_since=watched.failing_since,
        ends_from=max(made, min(ends)) if ends else None,
        asked=watched.asked_at,
        is_needed=shard.rerouted_at is not None and may_leave,
    )


def denied(watched: PolledShard, now: datetime, *, is_unlisted: bool | None) -> Denied:
    """Note once more that the backend does not know a batch."""
    known = watched.denied
    if known is None:
        watched.denied = Denied(now, is_unlisted=is_unlisted)
    else:
        told = known.is_unlisted if is_unlisted is None else is_unlisted
        watched.denied = replace(known, times=known.times + 1, is_unlisted=told)
    return watched.denied


def files_named(shard: Shard, batch: RemoteBatch, until: datetime, now: datetime) -> EvidenceVerdict:
    """Decide if a batch that is over may be collected: its files may be named some time later."""
    since = shard.status_at if shard.provider_status == batch.status else now
    named = EndedBatch(
        batch.status,
        batch.completed,
        batch.failed,
        batch.is_counted,
        batch.output_file_id is not None,
        batch.error_file_id is not None,
        shard.started_at is not None or batch.status is BatchStatus.COMPLETED,
    )
    return evidence.named(named, since or now, until, now)


def waits_for(
    shard: Shard,
    handle: BackendHandle,
    batch: RemoteBatch,
    moved_at: datetime,
    usual: poll_schedule.Usual,
    now: datetime,
) -> str | None:
    """Describe what takes unusually long about a batch; `moved_at` is when it last progressed."""
    if handle.is_own or shard.submitted_at is None:
        return None
    since = shard.status_at if batch.status == shard.provider_status else now
    counts = batch.completed or batch.failed
    return poll_schedule.stall(
        batch.status,
        in_status=(now - (since or shard.submitted_at)).total_seconds(),
        since_submission=(now - shard.submitted_at).total_seconds(),
        since_progress=(now - moved_at).total_seconds() if counts else None,
        window=shard.window_seconds,
        overruns=handle.profile.overruns,
        usual=usual,
    )
