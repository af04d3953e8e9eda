"""Airflow: a deferrable operator that leaves a job to orch's daemon, and a trigger that waits for its end.

A retry calls `submit` again. The same question finds its own job, by the content it asks about: what is under way or
answered is not sent, nor paid, a second time. Nothing of it is in XCom, which Airflow clears before a retry.
Airflow's workers, its triggerer and the daemon use one home (ORCH_HOME).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

import orchestrator as orch

LOOK_SECONDS = 15.0


class OrchOperator(BaseOperator):
    """Submits the question that `draft` returns, and defers until its job is over.

    Its result is a small dict: job, rows, failed, cost. `max_failed` fails the task if more rows failed.
    """

    def __init__(
        self,
        *,
        draft: Callable[[], Any],
        deadline: str | None = None,
        budget: float | None = None,
        max_failed: int | None = None,
        look_seconds: float = LOOK_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.draft, self.deadline, self.budget = draft, deadline, budget
        self.max_failed, self.look_seconds = max_failed, look_seconds

    def execute(self, context: Any) -> dict[str, Any] | None:
        """Submit the job, or find it again, and free the worker until it is over."""
        job = self.draft().submit(deadline=self.deadline, budget=self.budget, progress=False)
        self.log.info("orch job %s: %s", job.id, job.runner)
        if job.is_done:
            return self.finish(context, {"job": job.id})
        self.defer(trigger=OrchTrigger(job.id, self.look_seconds), method_name="finish")
        return None

    def finish(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of a job that is over."""
        line = orch.open_job(event["job"]).progress
        if line.state != "completed":
            raise RuntimeError(f"orch job {event['job']} is {line.state}: `orch status {event['job']}` says why")
        if self.max_failed is not None and line.counts.failed > self.max_failed:
            raise RuntimeError(f"orch job {event['job']}: {line.counts.failed} rows failed, {self.max_failed} may")
        return {
            "job": event["job"], "rows": line.counts.total, "failed": line.counts.failed, "cost": str(line.cost),
        }  # fmt: skip


class OrchTrigger(BaseTrigger):
    """Fires once a job is over. It may move to another triggerer: the job's id is all that it knows."""

    def __init__(self, job: str, look_seconds: float = LOOK_SECONDS) -> None:
        super().__init__()
        self.job, self.look_seconds = job, look_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "orch_airflow.OrchTrigger", {"job": self.job, "look_seconds": self.look_seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while not await asyncio.to_thread(lambda: orch.open_job(self.job).is_done):
            await asyncio.sleep(self.look_seconds)
        yield TriggerEvent({"job": self.job})
