"""Failures that keep a document from being asked again, night after night: which they are, and letting go of them.

Nothing is kept beside the rows. A row is in quarantine where the newest run of its job file has a lasting failure of
it, since the next run carries that over. It ends by itself when the document or the question changes, as the row is
another one then; where it is released, its failure carries over no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, func, select, update

from orchestrator.model import JobId, RequestState
from orchestrator.store.database import Database
from orchestrator.store.jobs import job_of
from orchestrator.store.tables import jobs, requests

PAGE = 2000
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Held:
    """A row in quarantine: its failure, the run `since` which it has it, and in how many runs it had it.

    `job` is the newest run of its job file.
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
    """Verbs on rows in quarantine."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def held(self, home: str, is_passing: Callable[[str | None], bool], series: str | None = None) -> Iterator[Held]:
        """The rows in quarantine of a home, or of one series of it: by job file, the newest first, in input order.

        `is_passing` tells the failures that another night tries again by itself.
        """
        for job_id, name, of in self._newest(home, series):
            waiting: list[Any] = []
            for row in self._failures(job_id):
                if is_passing(row.error_code):
                    continue
                waiting.append(row)
                if len(waiting) == CHUNK:
                    yield from self._told(job_id, name, of, waiting)
                    waiting.clear()
            yield from self._told(job_id, name, of, waiting)

    def release(self, held: Sequence[Held], now: datetime) -> int:
        """Let rows be asked again by the next run of their job file; how many were not let go of before."""
        c, released = requests.c, 0
        with self._db.write() as tx:
            for start in range(0, len(held), CHUNK):
                by_job: dict[JobId, list[str]] = {}
                for one in held[start : start + CHUNK]:
                    by_job.setdefault(one.since, []).append(one.custom_id)
                for job_id, custom_ids in by_job.items():
                    mine = (c.job_id == job_id, c.custom_id.in_(custom_ids), c.released_at.is_(None))
                    released += tx.execute(update(requests).where(*mine).values(released_at=now)).rowcount
        return released

    def _newest(self, home: str, series: str | None) -> list[tuple[JobId, str, str]]:
        """The newest built run of each job file, a whole one where there is one: id, name, series."""
        query = select(jobs).where(jobs.c.home == home, jobs.c.built_at.is_not(None))
        if series is not None:
            query = query.where(jobs.c.series == series)
        with self._db.read() as tx:
            runs = [job_of(row) for row in tx.execute(query.order_by(jobs.c.created_at.desc(), jobs.c.id))]
        found: dict[str, tuple[JobId, str, str]] = {}
        for run in sorted(runs, key=lambda job: job.is_limited):
            found.setdefault(run.series, (run.id, run.name, run.series))
        return list(found.values())

    def _failures(self, job_id: JobId) -> Iterator[Any]:
        """The failed rows of a run, with the row that failed itself where they carry that, and when."""
        c, first = requests.c, requests.alias("first")
        origin = and_(
            first.c.job_id == func.coalesce(c.carried_from, c.job_id),
            first.c.custom_id == c.custom_id,
            first.c.fingerprint == c.fingerprint,
            first.c.state == RequestState.FAILED,
            first.c.released_at.is_(None),
        )
        query = (
            select(
                c.document, c.task, c.custom_id, c.fingerprint, first.c.error_code, first.c.error_message,
                first.c.job_id.label("since"), jobs.c.created_at.label("since_at"),
            )
            .select_from(requests.join(first, origin).join(jobs, jobs.c.id == first.c.job_id))
            .where(c.job_id == job_id, c.state == RequestState.FAILED)
            .order_by(c.seq)
        )  # fmt: skip
        return self._db.stream(query, PAGE)

    def _told(self, job_id: JobId, name: str, series: str, rows: Sequence[Any]) -> Iterator[Held]:
        counted = self._runs(series, [row.custom_id for row in rows]) if rows else {}
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

    def _runs(self, series: str, custom_ids: Sequence[str]) -> dict[tuple[str, str], int]:
        """In how many runs of a job file rows failed, by custom_id and fingerprint."""
        c = requests.c
        query = (
            select(c.custom_id, c.fingerprint, func.count())
            .join(jobs, jobs.c.id == c.job_id)
            .where(jobs.c.series == series, c.custom_id.in_(custom_ids), c.state == RequestState.FAILED)
            .group_by(c.custom_id, c.fingerprint)
        )
        with self._db.read() as tx:
            return {(custom_id, fingerprint): runs for custom_id, fingerprint, runs in tx.execute(query)}
