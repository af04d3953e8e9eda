"""What was forecast, and what came."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select, update

from orchestrator.core.model import Forecast, JobId
from orchestrator.store.database import Database
from orchestrator.store.tables import forecasts

_FIELDS = Forecast.__slots__


class Forecasts:
    """Verbs on forecasts."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def made(self, made: Sequence[Forecast]) -> None:
        """Keep forecasts. Of one job, kind, shard and task the first stays: what was forecast is not made better."""
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
        """Say what came, in the unit of the kind. The first figure stays; nothing happens where none was forecast.

        With `censored`, it was cut short: all that is known is that it would have been more.
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
        """Within how many seconds a shard was forecast to end; None if nothing was forecast."""
        c = forecasts.c
        with self._db.read() as tx:
            return tx.scalar(select(c.p95).where(c.job_id == job_id, c.kind == "turnaround", c.shard_id == shard_id))

    def since(self, when: datetime | None = None) -> list[Forecast]:
        """Those made from then on, or all, in the order in which they were made."""
        query = select(*(forecasts.c[name] for name in _FIELDS)).order_by(forecasts.c.made_at, forecasts.c.id)
        if when is not None:
            query = query.where(forecasts.c.made_at >= when)
        with self._db.read() as tx:
            return [Forecast(**row._mapping) for row in tx.execute(query)]
