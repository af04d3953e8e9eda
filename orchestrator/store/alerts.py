"""Messages to people: alerts and reports, each sent once on each channel."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import and_, func, or_, select, update

from orchestrator.core.model import JobId
from orchestrator.store.database import Database
from orchestrator.store.night_tables import alerts
from orchestrator.store.tables import jobs


class AlertRecord(Struct, frozen=True):
    """A message to people; `key` is unique. An empty `message` is filled in when orch sends it.

    A message without a job is about its `home`.
    """

    key: str
    at: datetime
    kind: str
    job_id: JobId | None
    message: str
    action: str
    sent_at: datetime | None = None
    home: str | None = None


_FIELDS = AlertRecord.__struct_fields__


class AlertRecords:
    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, told: AlertRecord) -> bool:
        """Store a message. Return False, changing nothing, if a message with its key exists."""
        values = {name: getattr(told, name) for name in _FIELDS}
        with self._db.write() as tx:
            statement = self._db.upsert(alerts).values(**values).on_conflict_do_nothing(index_elements=["key"])
            return tx.execute(statement.returning(alerts.c.id)).first() is not None

    def unsent(self, home: str, since: datetime) -> list[AlertRecord]:
        """Return a home's unsent messages since a time, the oldest first."""
        query = (
            select(*(alerts.c[name] for name in _FIELDS))
            .outerjoin(jobs, jobs.c.id == alerts.c.job_id)
            .where(func.coalesce(jobs.c.home, alerts.c.home) == home)
            .where(alerts.c.sent_at.is_(None), alerts.c.at >= since)
            .order_by(alerts.c.at, alerts.c.id)
        )
        with self._db.read() as tx:
            return [_message(row) for row in tx.execute(query)]

    def of_job(self, job_id: JobId) -> list[AlertRecord]:
        """Return all messages about a job, sent or unsent, the oldest first."""
        query = select(*(alerts.c[name] for name in _FIELDS)).where(alerts.c.job_id == job_id).order_by(alerts.c.id)
        with self._db.read() as tx:
            return [_message(row) for row in tx.execute(query)]

    def sent(self, key: str, at: datetime) -> None:
        with self._db.write() as tx:
            tx.execute(update(alerts).where(alerts.c.key == key, alerts.c.sent_at.is_(None)).values(sent_at=at))

    def ended_jobs(self, home: str, since: datetime) -> list[JobId]:
        """Return a home's jobs that ended since a time, or were created since then and cannot continue, by creation
        time.
        """
        failed = and_(jobs.c.error.is_not(None), jobs.c.created_at >= since)
        query = (
            select(jobs.c.id)
            .where(jobs.c.home == home, or_(jobs.c.finished_at >= since, failed))
            .order_by(jobs.c.created_at, jobs.c.id)
        )
        with self._db.read() as tx:
            return [JobId(job_id) for job_id in tx.scalars(query)]


def _message(row: Any) -> AlertRecord:
    return AlertRecord(**row._mapping)
