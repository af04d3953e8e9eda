"""Outcomes of forecasts, recorded when a batch or job is over."""

from __future__ import annotations

from datetime import datetime

from orchestrator.core.model import Job
from orchestrator.core.shards import Shard
from orchestrator.core.wire import BatchStatus
from orchestrator.store import Store


def batch_over(store: Store, shard: Shard, status: BatchStatus, now: datetime) -> None:
    """Record how long a batch took. A batch cut short would have taken longer; a refused batch shows nothing."""
    if shard.submitted_at is None or status is BatchStatus.FAILED:
        return
    took = (now - shard.submitted_at).total_seconds()
    cut = status is not BatchStatus.COMPLETED
    store.forecasts.settled(shard.job_id, "turnaround", took, now, shard_id=shard.id, censored=cut)


def job_over(store: Store, job: Job, now: datetime) -> None:
    """Record a job's cost, the length of its answers, its duration, and if it was in time."""
    store.forecasts.settled(job.id, "cost", float(store.ledger.spent(job.id)), now)
    for task, mean in store.sizes.mean_outputs(job.id).items():
        store.forecasts.settled(job.id, "output", mean, now, task=task)
    if job.cancel_requested_at is not None:
        return
    store.forecasts.settled(job.id, "finish", (now - job.created_at).total_seconds(), now)
    if job.deadline_at is not None:
        store.forecasts.settled(job.id, "in_time", float(now <= job.deadline_at), now)
