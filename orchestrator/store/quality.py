"""Storage of comparisons of answers with known answers."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from sqlalchemy import delete, insert, select

from orchestrator.core.model import JobId
from orchestrator.store.database import Database
from orchestrator.store.night_tables import quality


class Quality(Struct, frozen=True):
    """Comparison of a job's answers with known answers: in `rows` rows, `hits` of `fields` fields are as expected.

    `absent` counts known answers whose row is missing or was never asked. `withheld` is the reason why the job's
    output is not delivered, or None.
    """

    hits: int
    fields: int
    rows: int
    absent: int
    withheld: str | None

    @property
    def share(self) -> float | None:
        """Share of the fields that are as expected, from 0 to 1; None without fields."""
        return self.hits / self.fields if self.fields else None


class Qualities:
    def __init__(self, database: Database) -> None:
        self._db = database

    def note(self, job_id: JobId, found: Quality, now: datetime) -> None:
        """Store a job's quality in place of an earlier record."""
        facts = {
            "hits": found.hits, "fields": found.fields, "rows": found.rows, "absent": found.absent,
            "withheld": found.withheld,
        }  # fmt: skip
        with self._db.write() as tx:
            tx.execute(delete(quality).where(quality.c.job_id == job_id))
            tx.execute(insert(quality).values(job_id=job_id, at=now, **facts))

    def of(self, job_id: JobId) -> Quality | None:
        """Return a job's quality, or None if the job has no known answers, or has not ended."""
        c = quality.c
        with self._db.read() as tx:
            row = tx.execute(select(c.hits, c.fields, c.rows, c.absent, c.withheld).where(c.job_id == job_id)).first()
        return None if row is None else Quality(*row)
