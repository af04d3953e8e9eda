"""Forecasts of a plan, and the outcomes compared with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.model import Forecast, Job
from orchestrator.core.shards import Shard
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.planner import Plan
from orchestrator.store import Store


def foreseen_by(
    job: Job, plan: Plan, lengths: Mapping[str, tuple[str, Lengths]], rows: int, now: datetime
) -> list[Forecast]:
    """Return the forecasts of a plan. `lengths` maps each task to its model and the lengths of its answers."""
    backends = "+".join(route.backend for route in plan.routes)

    def one(kind: str, p50: float, p95: float, source: str, model: str = "", task: str = "") -> Forecast:
        return Forecast(job.id, kind, backends, model, now, p50, p95, source, task=task)

    found = [one("cost", float(plan.expected), float(plan.at_most), "plan")]
    if plan.done_p50 is not None and plan.done_p95 is not None:
        p50, p95 = ((at - now).total_seconds() for at in (plan.done_p50, plan.done_p95))
        found.append(one("finish", p50, p95, "plan"))
    if job.deadline_at is not None:
        found.append(one("in_time", plan.chance, plan.chance, "plan"))
    for task, (model, answers) in lengths.items():
        found.append(one("output", answers.mean, answers.mean_p95(rows), answers.source, model, task))
    return found


def batch_over(store: Store, shard: Shard, status: BatchStatus, now: datetime) -> None:
    """Record how long a batch took. An incomplete batch gives a lower bound. A refused batch is not recorded."""
    if shard.submitted_at is None or status is BatchStatus.FAILED:
        return
    took = (now - shard.submitted_at).total_seconds()
    cut = status is not BatchStatus.COMPLETED
    store.forecasts.settled(shard.job_id, "turnaround", took, now, shard_id=shard.id, censored=cut)


def job_over(store: Store, job: Job, now: datetime) -> None:
    """Record a job's cost, mean answer lengths and duration, and if it met its deadline.

    For a cancelled job, only cost and answer lengths are recorded.
    """
    store.forecasts.settled(job.id, "cost", float(store.ledger.spent(job.id)), now)
    for task, mean in store.sizes.mean_outputs(job.id).items():
        store.forecasts.settled(job.id, "output", mean, now, task=task)
    if job.cancel_requested_at is not None:
        return
    store.forecasts.settled(job.id, "finish", (now - job.created_at).total_seconds(), now)
    if job.deadline_at is not None:
        store.forecasts.settled(job.id, "in_time", float(now <= job.deadline_at), now)
