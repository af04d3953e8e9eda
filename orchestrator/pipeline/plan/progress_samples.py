"""Progress of jobs at our own backends, sampled about once a minute to learn the backends' speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core.model import Job, ProgressSample
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.refused_rows import rows_in_back_off
from orchestrator.policy.planner.stints import unfinished
from orchestrator.store import Store

EVERY = timedelta(minutes=1)


class Samples:
    """Samples the progress of jobs. Sample times are kept in memory, so every job is due after a restart."""

    def __init__(self, store: Store, health: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._store = store
        self._health = health
        self._noted: dict[tuple[str, str], datetime] = {}

    def take(self, job: Job, shards: Sequence[Shard], is_own: Callable[[Shard], bool], now: datetime) -> None:
        """Sample a job's progress at each of our own backends that has its rows and is due."""
        at = {shard.backend for shard in shards if shard.state is ShardState.SUBMITTED and is_own(shard)}
        due = [name for name in sorted(at) if self._is_due(job, name, now)]
        self._store.observations.note(_progress(job, name, shards, now, self._health(name)) for name in due)
        self._noted.update({(job.id, name): now for name in due})

    def _is_due(self, job: Job, backend: str, now: datetime) -> bool:
        last = self._noted.get((job.id, backend))
        return last is None or not last <= now < last + EVERY

    def forget(self, job: Job) -> None:
        self._noted = {key: at for key, at in self._noted.items() if key[0] != job.id}


def _progress(
    job: Job, backend: str, shards: Sequence[Shard], now: datetime, health: Mapping[str, Any] | None
) -> ProgressSample:
    there = [shard for shard in shards if shard.backend == backend]
    return ProgressSample(
        job.id,
        job.series,
        backend,
        now,
        sum(shard.done_rows for shard in there),
        sum(_left(shard, health) for shard in there if shard.state is ShardState.SUBMITTED),
        sum(shard.provider_input_tokens for shard in there),
        sum(shard.provider_output_tokens for shard in there),
    )


def _left(shard: Shard, health: Mapping[str, Any] | None) -> int:
    """Return how many rows the engine may be working on. Rows in back-off do not count: they show no speed."""
    left = unfinished(shard, shard.rows)
    return left if health is None else left - rows_in_back_off(health, shard.batch_id, left)
