"""What was forecast, held against what came: when a batch is over, and when a job is."""

from __future__ import annotations

from datetime import datetime

from orchestrator.core.model import Job
from orchestrator.core.shards import Shard
from orchestrator.core.wire import BatchStatus
from orchestrator.store import Store


def batch_over(store: Store, shard: Shard, status: BatchStatus, now: datetime) -> None:
    """How long a batch took. One that was cut short would have taken longer; one that was refused says nothing."""
    if shard.submitted_at is None or status is BatchStatus.FAILED:
        return
    took = (now - shard.submitted_at).total_seconds()
    cut = status is not BatchStatus.COMPLETED
    store.forecasts.settled(shard.job_id, "turnaround", took, now, shard_id=shard.id, censored=cut)


def job_over(store: Store, job: Job, now: datetime) -> None:
    """What a job cost, how long its answers were, when it was finished, and whether in time."""
    store.forecasts.settled(job.id, "cost", float(store.ledger.spent(job.id)), now)
    for task, mean in store.sizes.mean_outputs(job.id).items():
        store.forecasts.settled(job.id, "output", mean, now, task=task)
    if job.cancel_requested_at is not None:
        return
    store.forecasts.settled(job.id, "finish", (now - job.created_at).total_seconds(), now)
    if job.deadline_at is not None:
        store.forecasts.settled(job.id, "in_time", float(now <= job.deadline_at), now)
