"""Forecasts of how long new shards take, to be compared with what happens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from orchestrator.core.model import Forecast
from orchestrator.core.shards import Shard
from orchestrator.pipeline.plan.options import seconds_of
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.policy.planner import BatchOption
from orchestrator.policy.planner.returning_rows import returning

QUICK = 2.0
"""Seconds of the shortest batch: it is sent, and seen to be over."""


def turnarounds(planning: Planning, shards: Sequence[Shard], now: datetime) -> list[Forecast]:
    """Return how long each shard takes. An option works on all of a job's rows at a time, also returning rows."""
    job = planning.lying
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
