"""Dagster: an asset whose materialization is a job of orch.

A retry, or a run that Dagster starts again, asks the same question: it finds its own job by content and goes on with
it. Answered rows are neither sent nor paid again.
"""

from collections.abc import Callable
from typing import Any

import dagster


def orch_asset(
    draft: Callable[[], Any], *, name: str, deadline: str | None = None, budget: float | None = None, **asset: Any
) -> dagster.AssetsDefinition:
    """Return an asset of the rows that the question of `draft` gets; its metadata has job, counts and cost."""

    @dagster.asset(name=name, compute_kind="orch", **asset)
    def rows(context: dagster.AssetExecutionContext) -> dagster.Output[list[dict[str, Any]]]:
        job = draft().submit(deadline=deadline, budget=budget, daemon=False, progress=False)
        context.log.info(f"orch job {job.id}: {job.runner}")
        answers = job.wait(progress=False)
        line = job.progress
        found = [
            {
                "document": row.document,
                "answer": _plain(row.answer),
                "error": None if row.error is None else row.error.code,
            }
            for row in answers
        ]
        return dagster.Output(
            found,
            metadata={
                "job": job.id, "rows": line.counts.total, "failed": line.counts.failed, "cost": float(line.cost),
            },
        )  # fmt: skip

    return rows


def _plain(answer: Any) -> Any:
    return answer.model_dump(mode="json") if hasattr(answer, "model_dump") else answer
