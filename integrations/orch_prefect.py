"""Prefect: a task that asks a question by a job of orch.

A retry asks the same question: it finds its own job by content and goes on with it. Answered rows are neither sent
nor paid again.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

import orchestrator as orch


@task(name="orch job", retries=2, retry_delay_seconds=60, cache_policy=NO_CACHE)
def run_job(draft: Any, deadline: str | None = None, budget: float | None = None) -> list[orch.AnswerRow[Any]]:
    """Ask the question of a draft (`orch.frame`, or `orch.documents(…).map`) and return its rows in input order."""
    job = draft.submit(deadline=deadline, budget=budget, daemon=False, progress=False)
    return list(job.wait(progress=False))
