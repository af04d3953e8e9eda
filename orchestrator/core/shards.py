"""Shards, the rows of one batch: their states, the moves between them, and the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from orchestrator.core.model import JobId

ShardId = NewType("ShardId", str)


class ShardState(StrEnum):
    """Where one shard (the rows of one batch) stands."""

    PENDING = "pending"  # planned; nothing was sent
    SUBMITTING = "submitting"  # the intent is committed: a batch may exist at the backend
    SUBMITTED = "submitted"  # the batch's id is known
    ENDED = "ended"  # the backend says that the batch is over, whatever the end
    COLLECTED = "collected"  # every row has its outcome here, or went on to another shard
    CANCELLED = "cancelled"  # given up before anything was sent

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the shard."""
        return not TRANSITIONS[self]


class HoldCode(StrEnum):
    """Why a shard waits; `Shard.held` says it in words."""

    SLOW = "slow"  # its batch runs, and takes longer than usual
    UNREACHABLE = "unreachable"  # the last call to its backend failed
    BUSY = "busy"  # its backend has no room
    ACCOUNT = "account"  # its account is refused
    NO_ROOM = "no_room"  # the disk has no room for its results
    ADMISSION = "admission"  # a quota or a budget, or its upload was given time to be found
    PREFLIGHT = "preflight"  # a row that is asked first
    UNCONFIRMED = "unconfirmed"  # its batch was created without a confirmation
    MISSING = "missing"  # its backend does not show its batch
    ENDING = "ending"  # its batch was asked to end, and has not
    FILES = "files"  # its batch is over, and its files are not complete


TRANSITIONS: Mapping[ShardState, frozenset[ShardState]] = {
    ShardState.PENDING: frozenset({ShardState.SUBMITTING, ShardState.CANCELLED}),
    # The one move back: nothing is at the backend that carries the shard's id. To `ended`: it refused the batch.
    ShardState.SUBMITTING: frozenset({ShardState.SUBMITTED, ShardState.PENDING, ShardState.ENDED}),
    ShardState.SUBMITTED: frozenset({ShardState.ENDED}),
    ShardState.ENDED: frozenset({ShardState.COLLECTED}),
    ShardState.COLLECTED: frozenset(),
    ShardState.CANCELLED: frozenset(),
}
AT_BACKEND = (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED)
"""States of a shard that was sent, or may have been, and is not collected: what it costs is not booked."""
AHEAD = (ShardState.PENDING, ShardState.SUBMITTING, ShardState.SUBMITTED)
"""States of a shard whose backend has work to do."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows of one backend, endpoint and model that make one batch. Facts of the provider: `provider_*`.

    `tokens` estimates the prompts, `max_output` is the most that the answers may have, None where a row has no bound.
    `refusal_code` and `refusal` are why the backend made no batch, in its own code and words; `held` what keeps the
    shard from going on now, for people, and `held_code` the same for decisions. `intended_at` is when the intent to
    send it was committed last, `account` whose batch it is. `status_at` is when `provider_status` was first seen as
    it is, `started_at` when it was first in progress, `first_at` when its first row was seen done, `seen_at` when the
    backend last answered for its batch. `sends` counts the times it was asked for. `rerouted_at` is when it was
    decided to take its rows back, and `rerouted_for` why. `owed` counts the rows that were let go though their
    answers may exist there: these are looked for until `cleaned_at`, when its remote files were deleted or given up.
    `took_seconds` is how long the batch took by the provider's own clock. `failing` counts rows that failed while the
    batch runs, by `new` or `known` and by code; None where its results cannot be read before its end. `preflight`
    names the fields of the one row that is asked at the synchronous endpoint before a batch; None for a batch.
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
