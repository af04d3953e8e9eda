"""The account that made a batch, and the check that the present key sees the batch."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.core.errors import AccountError, BackendError, UsageError
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.store import Store


def with_present_account(store: Store, shard: Shard, handle: BackendHandle) -> Shard:
    """Return the shard with the current key's account.

    Raises UsageError if that account cannot see the shard's batch. Keys of the same organisation belong to the same
    account. A key with no stated owner is accepted once it can see one of our batches.
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
