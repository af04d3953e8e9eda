"""Unanswered creates: the batch is found and adopted, or the shard is sent again.

As long as a batch may still appear, nothing is sent.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.backends import Intent, RemoteBatch, Sighting
from orchestrator.core.errors import AccountError, BackendError
from orchestrator.core.shards import HoldCode, Shard, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect.track import PolledShard
from orchestrator.pipeline.submit.batch_creation import facts_of, give_up
from orchestrator.policy.evidence import DENIALS
from orchestrator.settings.home import Home
from orchestrator.store import Store

MOST_SENDS = 8
LONGEST_APPEAR = 6 * 3600.0
UNDECIDED_FOR = timedelta(days=2)


class SendOutcome(Struct, frozen=True):
    """Result for a shard between intent and fact: the reason, and further batches made from it."""

    why: str
    doubles: tuple[RemoteBatch, ...] = ()


def _may_appear(
    store: Store, shard: Shard, handle: BackendHandle, watched: PolledShard, seen: Sighting, now: datetime
) -> str | None:
    """Return why a batch that the list does not show may still exist, or None."""
    since = shard.intended_at or shard.created_at
    # Each failed search doubles the time until giving up: every create may cost the whole batch.
    patience = min(LONGEST_APPEAR, handle.api.appear_seconds * 2 ** max(0, shard.sends - 1))
    told = "it was created without a confirmation"
    if seen.is_blank and shard.account is not None and store.shards.of_account(handle.name, shard.account):
        patience, told = LONGEST_APPEAR, f"{handle.name} lists no batch at all, though this account has some there"
    appears_until = since + timedelta(seconds=patience)
    if now < appears_until:
        return f"{told}; by {appears_until:%H:%M} UTC it shows whether the batch exists"
    if watched.unseen < DENIALS and not handle.is_own:
        return f"{told}; orch reads its list once more"
    return None


def recover(
    store: Store, home: Home, shard: Shard, handle: BackendHandle, watched: PolledShard, now: datetime
) -> SendOutcome | None:
    """Adopt the batch of a shard found between intent and fact, or make it pending again; return which, and why.

    None while it cannot be known; `held` then says what it waits for, for two days at most. `watched` counts the
    lists without the batch. Raises BackendError.
    """
    since = shard.intended_at or shard.created_at
    intent = Intent(
        shard.id,
        shard.rows,
        since,
        home.shard_input(shard.id),
        lambda batch_id: store.shards.asked_at(shard.backend, batch_id),
        shard.input_file_id,
    )
    is_over = now >= since + UNDECIDED_FOR
    try:
        seen = handle.api.find(intent)
    except BackendError as error:
        if isinstance(error, AccountError) or not is_over:
            raise
        seen = Sighting()
    if seen.batch is not None:
        store.shards.move(shard, ShardState.SUBMITTED, **facts_of(seen.batch, now))
        return SendOutcome(f"batch {seen.batch.id} belongs to this shard: adopted", seen.doubles)
    watched.unseen += seen.undecided is None
    if not is_over and (held := seen.undecided or _may_appear(store, shard, handle, watched, seen, now)) is not None:
        if held != shard.held:
            store.shards.note(shard, held=held, held_code=HoldCode.UNCONFIRMED)
        return None
    if shard.sends >= MOST_SENDS:
        give_up(store, shard, f"{shard.sends} creates were not answered, and none of them made a batch", now)
        return SendOutcome("no batch belongs to this shard, and it is not submitted again")
    store.shards.move(shard, ShardState.PENDING, held=None)
    return SendOutcome("no batch belongs to this shard: it is submitted again")
