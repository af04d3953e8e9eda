"""A batch as seen by polls: its facts, and the reason for its delay."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec.structs import replace

from orchestrator.backends import RemoteBatch
from orchestrator.backends.profiles import Profile
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.poll_schedule import PolledShard, RunPhase
from orchestrator.policy import batch_evidence, overdue
from orchestrator.policy.batch_evidence import Denied, EndedBatch, EvidenceVerdict
from orchestrator.policy.overdue import BatchLife

SEEN_EVERY = timedelta(seconds=30)
PAST_VALIDATION = (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED)


def facts_of(shard: Shard, batch: RemoteBatch, now: datetime) -> dict[str, object]:
    """Return the facts about a shard that a poll has changed, by column."""
    facts: dict[str, object] = {
        "provider_status": batch.status,
        "provider_completed": batch.completed,
        "provider_failed": batch.failed,
        "provider_input_tokens": batch.input_tokens,
        "provider_output_tokens": batch.output_tokens,
        # The last poll of a batch states no upstream seconds: keep the earlier value until its rows are booked.
        "provider_seconds": max(batch.upstream_seconds, shard.provider_seconds),
    }
    if batch.status != shard.provider_status or (shard.status_at is not None and shard.status_at > now):
        facts["status_at"] = now  # a wrong clock has written a future time
    has_begun = batch.status in PAST_VALIDATION or batch.completed + batch.failed > 0
    if shard.started_at is None and has_begun:
        facts["started_at"] = now
    if shard.first_at is None and (batch.completed or (batch.failed and not batch.status.is_final)):
        facts["first_at"] = now
    if batch.status.is_final and batch.created_at is not None and batch.over_at is not None:
        facts["took_seconds"] = max(0.0, (batch.over_at - batch.created_at).total_seconds())
    found = {name: value for name, value in facts.items() if getattr(shard, name) != value}
    # Our own server is polled many times a minute, too often to store each poll.
    if found or shard.seen_at is None or abs(now - shard.seen_at) >= SEEN_EVERY:
        found["seen_at"] = now
    return found


def life_of(job: Job, shard: Shard, handle: BackendHandle, watched: PolledShard, *, may_leave: bool) -> BatchLife:
    """Return a batch's life so far. `may_leave` is true if another backend takes its rows."""
    made = shard.submitted_at or shard.created_at
    ends = [at for at in (job.cancel_requested_at, shard.rerouted_at) if at is not None]
    return BatchLife(
        made=made,
        window=timedelta(seconds=shard.window_seconds),
        overruns=handle.profile.overruns,
        shown=shard.seen_at or made,
        failing_since=watched.failing_since,
        ends_from=max(made, min(ends)) if ends else None,
        asked=watched.phase(RunPhase).asked_at,
        is_needed=shard.rerouted_at is not None and may_leave,
        cancels=handle.profile.cancels,
    )


def denied(watched: PolledShard, now: datetime, *, is_unlisted: bool | None) -> Denied:
    """Record another poll in which the backend did not know the batch. Return the count so far."""
    running = watched.phase(RunPhase)
    known = running.denied
    if known is None:
        running.denied = Denied(now, is_unlisted=is_unlisted)
    else:
        told = known.is_unlisted if is_unlisted is None else is_unlisted
        running.denied = replace(known, times=known.times + 1, is_unlisted=told)
    return running.denied


def files_named(
    shard: Shard, batch: RemoteBatch, profile: Profile, until: datetime, now: datetime
) -> EvidenceVerdict:
    """Decide if an ended batch can be collected. Some backends name the result files later."""
    named = EndedBatch(
        batch.status,
        batch.completed,
        batch.failed,
        batch.is_counted,
        batch.output_file_id is not None,
        batch.error_file_id is not None or (profile.one_file and batch.output_file_id is not None),
        shard.started_at is not None or batch.status is BatchStatus.COMPLETED,
    )
    return batch_evidence.named(named, shard.status_at or now, until, now)


def waits_for(
    shard: Shard,
    handle: BackendHandle,
    batch: RemoteBatch,
    moved_at: datetime,
    usual: overdue.Usual,
    now: datetime,
) -> str | None:
    """Return what takes a batch unusually long, or None. `moved_at` is the time of its last progress."""
    if handle.is_own or shard.submitted_at is None:
        return None
    since = shard.status_at if batch.status == shard.provider_status else now
    counts = batch.completed or batch.failed
    return overdue.stall(
        batch.status,
        in_status=(now - (since or shard.submitted_at)).total_seconds(),
        since_submission=(now - shard.submitted_at).total_seconds(),
        since_progress=(now - moved_at).total_seconds() if counts else None,
        window=shard.window_seconds,
        overruns=handle.profile.overruns,
        usual=usual,
    )
