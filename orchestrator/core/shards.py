"""Shards (the rows of a batch), with their states and transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NewType

from msgspec import Struct

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.counts import number_of
from orchestrator.core.model import JobId

ShardId = NewType("ShardId", str)


class ShardState(StrEnum):
    """States of a shard (the rows of a batch)."""

    PENDING = "pending"  # planned; nothing was sent
    SUBMITTING = "submitting"  # the intent is committed: a batch may exist at the backend
    SUBMITTED = "submitted"  # the batch's id is known
    ENDED = "ended"  # the backend says that the batch is over, whatever the result
    COLLECTED = "collected"  # every row has its outcome, or moved to another shard
    CANCELLED = "cancelled"  # given up before anything was sent

    @property
    def is_final(self) -> bool:
        """True if nothing more will happen to the shard."""
        return not TRANSITIONS[self]


class HoldCode(StrEnum):
    """Reasons why a shard waits; `Shard.held` puts them in words."""

    SLOW = "slow"  # its batch runs longer than usual
    UNREACHABLE = "unreachable"  # the last call to its backend failed
    REMOVED = "removed"  # orch.toml no longer has its backend
    BUSY = "busy"  # its backend has no room
    ACCOUNT = "account"  # the backend refuses its account
    NO_ROOM = "no_room"  # the disk has no room for its results
    ADMISSION = "admission"  # a quota, a budget, or a wait for its upload to appear
    PREFLIGHT = "preflight"  # a single row is tried first
    UNCONFIRMED = "unconfirmed"  # its batch may have been created without confirmation
    MISSING = "missing"  # its backend does not show its batch
    ENDING = "ending"  # its batch was cancelled but has not ended
    FILES = "files"  # its batch is over, but its files are not complete


TRANSITIONS: Mapping[ShardState, frozenset[ShardState]] = {
    ShardState.PENDING: frozenset({ShardState.SUBMITTING, ShardState.CANCELLED}),
    # To `pending`, the only move back: the backend has no batch of this shard. To `ended`: it refused the batch.
    ShardState.SUBMITTING: frozenset({ShardState.SUBMITTED, ShardState.PENDING, ShardState.ENDED}),
    ShardState.SUBMITTED: frozenset({ShardState.ENDED}),
    ShardState.ENDED: frozenset({ShardState.COLLECTED}),
    ShardState.COLLECTED: frozenset(),
    ShardState.CANCELLED: frozenset(),
}
AT_BACKEND = (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED)
"""States of a shard that was sent, or may have been, but is not collected: its cost is not booked yet."""
AHEAD = (ShardState.PENDING, ShardState.SUBMITTING, ShardState.SUBMITTED)
"""States of a shard whose backend still has work to do."""


class Shard(Struct, frozen=True):
    """The rows of a batch, with one backend, endpoint and model. The `provider_*` fields are as the provider reports
    them.

    `tokens` estimates the prompts' tokens. `max_output` limits the tokens of all answers, None if a row has no limit.
    `account` is the batch's owner. `refusal_code` and `refusal` say why the backend created no batch, in its own code
    and words. `held` says why the shard waits, for people; `held_code` is the same for programs. `preflight` names
    the fields of the single row that is tried at the synchronous endpoint before a batch; None for a batch.

    `intended_at` is when the intent to send the shard was last committed. `status_at` is when `provider_status` last
    changed, and `started_at` when the batch was first in progress. `first_at` is when its first row was seen done,
    and `seen_at` when the backend last reported the batch. `took_seconds` is the batch's duration by the provider's
    clock.

    `sends` counts the attempts to create the batch, 0 for an adopted batch. `rerouted_at` is when the decision to
    reroute its rows was made, for the reason `rerouted_for`. `owed` counts rows given up although their answers may
    exist. The search for these answers ends at `cleaned_at`, when remote files were deleted or given up. `failing`
    counts rows that failed while the batch runs, by `new` or `known` and by code. It is None if the results cannot be
    read before the batch ends.
    """

    id: ShardId
    job_id: JobId
    number: int
    backend: str
    endpoint: str
    model: str
    state: ShardState
    reason: str
    rows: int
    bytes: int
    created_at: datetime
    tokens: int = 0
    max_output: int | None = None
    intended_at: datetime | None = None
    account: str | None = None
    window_seconds: int = 86_400
    input_file_id: str | None = None
    batch_id: str | None = None
    provider_status: str | None = None
    status_at: datetime | None = None
    started_at: datetime | None = None
    seen_at: datetime | None = None
    sends: int = 0
    rerouted_at: datetime | None = None
    rerouted_for: str | None = None
    provider_completed: int = 0
    provider_failed: int = 0
    provider_input_tokens: int = 0
    provider_output_tokens: int = 0
    provider_seconds: float = 0.0
    output_file_id: str | None = None
    error_file_id: str | None = None
    refusal_code: str | None = None
    refusal: str | None = None
    held: str | None = None
    held_code: HoldCode | None = None
    failing: Mapping[str, Mapping[str, int]] | None = None
    submitted_at: datetime | None = None
    ended_at: datetime | None = None
    collected_at: datetime | None = None
    first_at: datetime | None = None
    took_seconds: float | None = None
    owed: int = 0
    cleaned_at: datetime | None = None
    preflight: str | None = None

    @property
    def done_rows(self) -> int:
        """Number of rows that the backend has finished, by its own count.

        If the batch was cancelled or has expired, its failed rows do not count.
        """
        cut = (BatchStatus.CANCELLED, BatchStatus.CANCELLING, BatchStatus.EXPIRED)
        return self.provider_completed + (0 if self.provider_status in cut else self.provider_failed)


def batches_words(shards: Sequence[Shard]) -> str:
    """Describe batches by their number, rows and backends: `2 batches of 30 rows at openai`."""
    rows, names = sum(one.rows for one in shards), ", ".join(sorted({one.backend for one in shards}))
    return f"{number_of(len(shards), 'batch')} of {number_of(rows, 'row')} at {names}"
