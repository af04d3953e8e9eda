"""Stage 4: batches that run are looked at, as often as makes sense, until they are over and their files are there."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator import polling
from orchestrator.backends import RemoteBatch
from orchestrator.errors import UsageError
from orchestrator.model import Shard
from orchestrator.pipeline.lanes import Lane
from orchestrator.wire import BatchStatus

UNKNOWN = polling.Usual()
FILES_APPEAR = timedelta(minutes=15)
"""A batch may be told as over before its files are named; behind this, what is not named is taken as missing."""
SEEN_EVERY = timedelta(seconds=30)
MOST_PUSHED = 10_000
"""Batches that were told of and not looked at; they may be other programs', which use the same account."""


@dataclass(slots=True)
class _Look:
    """When to look at a shard next; how far it was when we looked last, and since when it has been so."""

    due: datetime
    seen: object
    changed: datetime
    looks: int = 0


class Looks:
    """When each shard is due for a look. Kept in memory: after a start, everything is looked at once."""

    def __init__(self) -> None:
        self._by_shard: dict[str, _Look] = {}
        self._lock = threading.Lock()
        self._pushed: dict[str, None] = {}
        self._hurried: set[str] = set()

    def push(self, batch_id: str) -> None:
        """The provider says that a batch has changed: look at once. May be called from any thread.

        It may be told before the shard knows its batch's id, so it is kept until then.
        """
        with self._lock:
            self._pushed[batch_id] = None
            if len(self._pushed) > MOST_PUSHED:
                del self._pushed[next(iter(self._pushed))]

    def is_due(self, shard: Shard, lane: Lane, now: datetime) -> bool:
        """Whether to look at a shard now; our own server may always be asked."""
        if lane.is_own:
            return True
        look = self._by_shard.get(shard.id)
        # What is told from here on may be news that the look does not bring: it counts for another one.
        if self._take(shard) and look is not None:
            look.due = now
        return look is None or now >= look.due

    def _take(self, shard: Shard) -> bool:
        """Whether the provider has told of the shard's batch since this was asked last."""
        with self._lock:
            if shard.batch_id not in self._pushed:
                return False
            del self._pushed[shard.batch_id]
            return True

    def looked(
        self, shard: Shard, lane: Lane, now: datetime, *, seen: object = None, usual: polling.Usual = UNKNOWN
    ) -> datetime:
        """A shard was looked at, and was `seen` like this; gives since when it has been so."""
        look = self._by_shard.get(shard.id)
        if look is None or look.seen != seen:
            look = self._by_shard[shard.id] = _Look(now, seen, now)
        else:
            look.looks += 1
        ends_in = None
        if usual.is_known and shard.submitted_at is not None:
            ends_in = usual.total_p50 - (now - shard.submitted_at).total_seconds()
        wait = polling.next_look(lane.poll_seconds, look.looks, seed=f"{shard.id}/{look.looks}", ends_in=ends_in)
        look.due = now + timedelta(seconds=wait)
        return look.changed

    def failed(self, shard: Shard, lane: Lane, now: datetime, retry_after: float | None) -> None:
        """A look brought an error: the next one comes as if it had shown nothing new, or when it was asked for."""
        look = self._by_shard.setdefault(shard.id, _Look(now, None, now))
        look.looks += 1
        wait = polling.next_look(lane.poll_seconds, look.looks, seed=f"{shard.id}/{look.looks}")
        look.due = now + timedelta(seconds=max(wait, retry_after or 0.0))

    def hurry(self, shard: Shard, now: datetime) -> None:
        """Look at once, for a reason of our own: once, however often it is said."""
        if shard.id not in self._hurried and (look := self._by_shard.get(shard.id)) is not None:
            look.due = now
        self._hurried.add(shard.id)

    def forget(self, shard: Shard) -> None:
        """What comes next for the shard is something else, and due at once."""
        self._by_shard.pop(shard.id, None)


def check_account(shard: Shard, lane: Lane) -> None:
    """Raises UsageError where a batch belongs to another account than the one whose key is set now."""
    if shard.account is None:
        return
    account = lane.api.account()
    if account != shard.account:
        what = f"the batch of {shard.id}" if shard.batch_id is None else f"batch {shard.batch_id}"
        raise UsageError(
            f"{what} was made by the account {shard.account} of {lane.name}; the key that is set now "
            f"is of {account}, which cannot see it",
            hint=f"set the key of {shard.account} until the job is done; `orch reconcile {lane.name}` shows more",
        )


def facts_of(shard: Shard, batch: RemoteBatch, now: datetime) -> dict[str, object]:
    """What a look tells of a shard, by column; only what differs from what is recorded."""
    facts: dict[str, object] = {
        "provider_status": batch.status,
        "provider_completed": batch.completed,
        "provider_failed": batch.failed,
        "provider_input_tokens": batch.input_tokens,
        "provider_output_tokens": batch.output_tokens,
        # A batch that is over is told without its seconds: what was seen last stands until its rows are booked.
        "provider_seconds": max(batch.upstream_seconds, shard.provider_seconds),
    }
    if batch.status != shard.provider_status:
        facts["status_at"] = now
    if shard.started_at is None and batch.status is not BatchStatus.VALIDATING:
        facts["started_at"] = now
    if shard.first_at is None and (batch.completed or (batch.failed and not batch.status.is_final)):
        facts["first_at"] = now
    if batch.status.is_final and batch.created_at is not None and batch.over_at is not None:
        facts["took_seconds"] = max(0.0, (batch.over_at - batch.created_at).total_seconds())
    found = {name: value for name, value in facts.items() if getattr(shard, name) != value}
    # Our own server is asked many times a minute: that it answers need not be written each time.
    if found or shard.seen_at is None or now - shard.seen_at >= SEEN_EVERY:
        found["seen_at"] = now
    return found


def files_missing(shard: Shard, batch: RemoteBatch, now: datetime) -> str | None:
    """Why a batch that is over is not collected yet, None where it may be: its files are named some time later."""
    if batch.status is BatchStatus.FAILED:
        return None
    lacks = [
        kind
        for kind, rows, file_id in (
            ("output", batch.completed, batch.output_file_id),
            ("error", batch.failed, batch.error_file_id),
        )
        if rows and file_id is None
    ]
    # A provider that counts nothing, or not yet, names at least one file for a batch that had a row.
    if not lacks and not (batch.output_file_id or batch.error_file_id) and not batch.completed + batch.failed:
        lacks = ["output or error"]
    since = shard.status_at if shard.provider_status == batch.status else now
    if not lacks or (since is not None and now >= since + FILES_APPEAR):
        return None
    return f"the batch is {batch.status}; its {' and '.join(lacks)} file is not named yet"


def waits_for(
    shard: Shard, lane: Lane, batch: RemoteBatch, moved_at: datetime, usual: polling.Usual, now: datetime
) -> str | None:
    """What about a batch takes longer than is usual, for people; `moved_at` is when it was last seen to get on."""
    if lane.is_own or shard.submitted_at is None:
        return None
    since = shard.status_at if batch.status == shard.provider_status else now
    counts = batch.completed or batch.failed
    return polling.stall(
        batch.status,
        in_status=(now - (since or shard.submitted_at)).total_seconds(),
        since_submission=(now - shard.submitted_at).total_seconds(),
        since_progress=(now - moved_at).total_seconds() if counts else None,
        window=shard.window_seconds,
        overruns=lane.profile.overruns,
        usual=usual,
    )
