"""What people were told, or are to be told: alerts and reports, each once on each way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, or_, select, update

from orchestrator.core.model import JobId
from orchestrator.store.database import Database
from orchestrator.store.night_tables import alerts
from orchestrator.store.tables import jobs


@dataclass(frozen=True, slots=True)
class Told:
    """Something to tell, and when it was told; `key` is its own. A `message` may be empty: then it is made anew.

    It is of a job, or of the `home` where no job is the matter of it.
    """

    key: str
    at: datetime
    kind: str
    job_id: JobId | None
    message: str
    action: str
    sent_at: datetime | None = None
    home: str | None = None


_FIELDS = Told.__slots__


class AlertRecords:
    """Verbs on alerts."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, told: Told) -> bool:
        """Keep something to tell; False where its key is known already, and nothing changes."""
        values = {name: getattr(told, name) for name in _FIELDS}
        with self._db.write() as tx:
            statement = self._db.upsert(alerts).values(**values).on_conflict_do_nothing(index_elements=["key"])
            return tx.execute(statement.returning(alerts.c.id)).first() is not None

    def unsent(self, home: str, since: datetime) -> list[Told]:
        """What a home has to tell from then on, and has not, oldest first."""
        query = (
            select(*(alerts.c[name] for name in _FIELDS))
            .outerjoin(jobs, jobs.c.id == alerts.c.job_id)
            .where(func.coalesce(jobs.c.home, alerts.c.home) == home)
            .where(alerts.c.sent_at.is_(None), alerts.c.at >= since)
            .order_by(alerts.c.at, alerts.c.id)
        )
        with self._db.read() as tx:
            return [_told(row) for row in tx.execute(query)]

    def of_job(self, job_id: JobId) -> list[Told]:
        """Everything that was told of a job, or is to be, oldest first."""
        query = select(*(alerts.c[name] for name in _FIELDS)).where(alerts.c.job_id == job_id).order_by(alerts.c.id)
        with self._db.read() as tx:
            return [_told(row) for row in tx.execute(query)]

    def sent(self, key: str, at: datetime) -> None:
        """It was taken."""
        with self._db.write() as tx:
            tx.execute(update(alerts).where(alerts.c.key == key, alerts.c.sent_at.is_(None)).values(sent_at=at))

    def ended_jobs(self, home: str, since: datetime) -> list[JobId]:
        """The jobs of a home that ended from then on, or were made from then on and cannot go on; oldest first."""
        failed = and_(jobs.c.error.is_not(None), jobs.c.created_at >= since)
        query = (
            select(jobs.c.id)
            .where(jobs.c.home == home, or_(jobs.c.finished_at >= since, failed))
            .order_by(jobs.c.created_at, jobs.c.id)
        )
        with self._db.read() as tx:
            return [JobId(job_id) for job_id in tx.scalars(query)]


def _told(row: Any) -> Told:
    return Told(**row._mapping)
