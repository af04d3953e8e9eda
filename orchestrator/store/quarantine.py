"""Rows in quarantine, whose lasting failures keep them from being asked again every night, and their release.

Quarantine is derived from the rows. A row is in quarantine if it has a lasting failure in the newest run of its job
file; the next run carries the failure over. `policy/row_errors` tells lasting failures from passing failures. A
changed document or question makes a new row, outside quarantine. After a release, the failure is no longer carried
over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, and_, func, select

from orchestrator.core.model import JobId, RequestState
from orchestrator.store import bulk
from orchestrator.store.database import Database
from orchestrator.store.failures import newest_runs
from orchestrator.store.tables import jobs, requests

CHUNK = 500


class Held(Struct, frozen=True):
    """A row in quarantine and its failure. `job` is the newest run of the row's job file.

    `since` is the run that first had the failure, and `runs` is the number of runs in which the row failed.
    """

    document: str
    task: str
    custom_id: str
    code: str
    reason: str
    job: JobId
    name: str
    since: JobId
    since_at: datetime
    runs: int


class Quarantine:
    def __init__(self, database: Database) -> None:
        self._db = database

    def held(self, home: str, is_passing: Callable[[str | None], bool], series: str | None = None) -> Iterator[Held]:
        """Yield the rows in quarantine of a home or of `series`, by newest run, then in input order.

        `is_passing` returns True for failures that another night retries anyway.
        """
        for job_id, name, of in self._newest(home, series):
            waiting: list[Any] = []
            for row in self._failures(job_id):
                if is_passing(row.error_code):
                    continue
                waiting.append(row)
                if len(waiting) == CHUNK:
                    yield from self._with_runs(job_id, name, of, waiting)
                    waiting.clear()
            yield from self._with_runs(job_id, name, of, waiting)

    def release(self, held: Sequence[Held], now: datetime) -> int:
        """Let the next run of each job file ask these rows again. Return how many rows were not released before."""
        c, released = requests.c, 0
        with self._db.write() as tx:
            for start in range(0, len(held), CHUNK):
                by_job: dict[JobId, list[str]] = {}
                for one in held[start : start + CHUNK]:
                    by_job.setdefault(one.since, []).append(one.custom_id)
                for job_id, custom_ids in by_job.items():
                    mine = select(c.custom_id).where(c.job_id == job_id, c.released_at.is_(None))
                    names = tx.scalars(bulk.each(mine, c.custom_id, custom_ids, tx.dialect)).all()
                    going = ((now, job_id, name) for name in names)
                    released += bulk.change(tx, requests, ("released_at",), ("job_id", "custom_id"), going)
        return released

    def _newest(self, home: str, series: str | None) -> Iterator[tuple[JobId, str, str]]:
        for job_id in newest_runs(self._db, home, series):
            with self._db.read() as tx:
                name, of = tx.execute(select(jobs.c.name, jobs.c.series).where(jobs.c.id == job_id)).one()
            yield job_id, name, of

    def _failures(self, job_id: JobId) -> Iterator[Any]:
        c = requests.c

        def is_origin(first: Any) -> ColumnElement[bool]:
            origin = func.coalesce(c.carried_from, c.job_id)
            return and_(first.job_id == origin, first.custom_id == c.custom_id)

        first, on = bulk.beside(requests.alias("first"), is_origin, self._db.dialect)
        query = (
            select(
                c.document, c.task, c.custom_id, c.fingerprint, first.c.error_code, first.c.error_message,
                first.c.job_id.label("since"), jobs.c.created_at.label("since_at"),
            )
            .select_from(requests.join(first, on).join(jobs, jobs.c.id == first.c.job_id))
            .where(c.job_id == job_id, c.state == RequestState.FAILED, first.c.fingerprint == c.fingerprint)
            .where(first.c.state == RequestState.FAILED, first.c.released_at.is_(None))
            .order_by(c.seq)
        )  # fmt: skip
        return self._db.stream(query)

    def _with_runs(self, job_id: JobId, name: str, series: str, rows: Sequence[Any]) -> Iterator[Held]:
        counted = self._runs(series, [row.custom_id for row in rows])
        for row in rows:
            yield Held(
                row.document,
                row.task,
                row.custom_id,
                row.error_code or "error",
                row.error_message or "",
                job_id,
                name,
                JobId(row.since),
                row.since_at,
                counted[row.custom_id, row.fingerprint],
            )

    def _runs(self, series: str, custom_ids: Sequence[str]) -> Counter[tuple[str, str]]:
        c, runs = requests.c, Counter[tuple[str, str]]()
        with self._db.read() as tx:
            for job_id in tx.scalars(select(jobs.c.id).where(jobs.c.series == series)).all():
                query = select(c.custom_id, c.fingerprint, c.state).where(c.job_id == job_id)
                rows = tx.execute(bulk.each(query, c.custom_id, custom_ids, tx.dialect))
                runs.update((row.custom_id, row.fingerprint) for row in rows if row.state == RequestState.FAILED)
        return runs
