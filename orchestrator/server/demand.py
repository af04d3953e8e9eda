"""Demand of unfinished batches, for engines that start and stop on demand."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.engines import ModelDemand
from orchestrator.server.dispatch.active_batch import ActiveBatch
from orchestrator.server.dispatch.bodies import DEFAULT_MODEL


def demand_of(runs: Iterable[ActiveBatch]) -> list[ModelDemand]:
    """Return the rows without a result, by the model that they name; None for rows that accept any model."""
    found: dict[str | None, ModelDemand] = {}
    for run in runs:
        if not run.rows_left or run.is_stopping:
            continue
        model = None if run.model == DEFAULT_MODEL else run.model
        before = found.get(model, ModelDemand(model, 0, 0, run.deadline))
        rows, out = before.rows + run.rows_left, before.in_flight + run.in_flight
        due = (*before.due, (run.deadline, run.rows_left))
        found[model] = ModelDemand(model, rows, out, min(before.deadline, run.deadline), due)
    return list(found.values())
