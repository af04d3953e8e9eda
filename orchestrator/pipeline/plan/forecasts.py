"""Forecasts of plans and shards, and their outcomes, to be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.core.model import Forecast, Job
from orchestrator.core.shards import Shard
from orchestrator.core.wire import BatchStatus
from orchestrator.pipeline.plan.route_costs import seconds_of
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.planner import BatchOption, Plan
from orchestrator.policy.planner.job_orders import returning
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.pipeline.plan.planning import Planning

QUICK = 2.0
"""Seconds of the shortest batch: it is sent, and seen to be over."""


def turnarounds(planning: Planning, shards: Sequence[Shard], now: datetime) -> list[Forecast]:
    """Return how long each shard takes. An option works on all of a job's rows at a time, also returning rows."""
    job = planning.open_rows
    together: dict[str, int] = dict(job.synchronous)
    for shard in shards:
        together[shard.backend] = together.get(shard.backend, 0) + shard.rows
    back = returning(job, planning.options, planning.terms, now)
    found = []
    for shard in shards:
        option, rows = planning.option(shard.backend), together[shard.backend]
        p50, p95 = (
            QUICK + seconds_of(option, rows, chance, back.get(shard.backend, 0), job, now) for chance in (0.5, 0.95)
        )
        source = option.turnaround.source if isinstance(option, BatchOption) else option.pace.source
        found.append(
            Forecast(shard.job_id, "turnaround", shard.backend, shard.model, now, p50, p95, source, shard_id=shard.id)
        )
    return found


def foreseen_by(
    job: Job, plan: Plan, lengths: Mapping[str, tuple[str, Lengths]], rows: int, now: datetime
) -> list[Forecast]:
    """Return the forecasts of a plan; `lengths` has the answers' lengths by task, with the model of its rows."""
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
