"""Forecasts of a plan, to be compared with what happens: a job's cost, end and length of answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from orchestrator.core.model import Forecast, Job
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.planner import Plan


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
