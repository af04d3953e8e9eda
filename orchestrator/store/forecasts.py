"""Forecasts and actual results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update

from orchestrator.core.model import Forecast, JobId
from orchestrator.store.database import Database
from orchestrator.store.tables import forecasts

_FIELDS = Forecast.__struct_fields__


class Forecasts:
    """Verbs on forecasts."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def made(self, made: Sequence[Forecast]) -> None:
        """Record forecasts. The first one for a job, kind, shard and task stays: a forecast is never improved."""
        rows = [{name: getattr(one, name) for name in _FIELDS} for one in made]
        if rows:
            with self._db.write() as tx:
                tx.execute(self._db.upsert(forecasts).on_conflict_do_nothing(), rows)

    def settled(
        self,
        job_id: JobId,
        kind: str,
        actual: float,
        at: datetime,
        shard_id: str = "",
        task: str = "",
        *,
        censored: bool = False,
    ) -> None:
        """Record the actual result in the unit of the kind. The first figure stays; without a forecast nothing
        happens.

        `censored`: the run was cut short, so that its value would have been larger.
        """
        c = forecasts.c
        statement = (
            update(forecasts)
            .where(c.job_id == job_id, c.kind == kind, c.shard_id == shard_id, c.task == task, c.actual.is_(None))
            .values(actual=actual, known_at=at, censored=censored)
        )
        with self._db.write() as tx:
            tx.execute(statement)

    def turnaround_p95(self, job_id: JobId, shard_id: str) -> float | None:
        """Return the seconds within which a shard was forecast to end (95th percentile); None without a forecast."""
        c = forecasts.c
        with self._db.read() as tx:
            return tx.scalar(select(c.p95).where(c.job_id == job_id, c.kind == "turnaround", c.shard_id == shard_id))

    def since(self, when: datetime | None = None) -> list[Forecast]:
        """Return forecasts made since a time, or all, in the order of their creation."""
        query = select(*(forecasts.c[name] for name in _FIELDS)).order_by(forecasts.c.made_at, forecasts.c.id)
        if when is not None:
            query = query.where(forecasts.c.made_at >= when)
        with self._db.read() as tx:
            return [Forecast(**row._mapping) for row in tx.execute(query)]
