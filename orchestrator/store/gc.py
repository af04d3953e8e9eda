"""Database work of gc: carried answers, removal of jobs, and copies of the database with their checks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, delete, func, or_, select, update

from orchestrator.core.errors import StorageError
from orchestrator.core.model import Job, JobId, Span
from orchestrator.store.database import Database
from orchestrator.store.jobs import job_of
from orchestrator.store.night_tables import acknowledgements
from orchestrator.store.tables import jobs, ledger, requests

CLEARED = "cleared_at"
"""Job option that marks a job whose files are removed."""
IS_OVER: ColumnElement[bool] = or_(jobs.c.finished_at.is_not(None), jobs.c.error.is_not(None))


class Lines(Struct, frozen=True):
    """A shard's result file: the number of a home's rows that refer to it, and where the last line in use ends."""

    shard: str
    kind: str
    rows: int
    ends: int


class Removals:
    """Operations of gc. `home` is a home's id: each home on a shared database handles its own jobs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def jobs(self, home: str) -> list[Job]:
        """Return every job of a home, the newest first."""
        query = select(jobs).where(jobs.c.home == home).order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        with self._db.read() as tx:
            return [job_of(row) for row in tx.execute(query)]

    def carriers(self, home: str) -> dict[JobId, dict[JobId, int]]:
        """Return, for each job whose answers were carried over, the jobs that carry them, with numbers of rows."""
        c = requests.c
        query = (
            select(c.carried_from, c.job_id, func.count())
            .join(jobs, jobs.c.id == c.job_id)
            .where(jobs.c.home == home, c.carried_from.is_not(None))
            .group_by(c.carried_from, c.job_id)
        )
        found: dict[JobId, dict[JobId, int]] = {}
        with self._db.read() as tx:
            for origin, carrier, rows in tx.execute(query):
                if origin != carrier:
                    found.setdefault(JobId(origin), {})[JobId(carrier)] = rows
        return found

    def booked_since(self, at: datetime) -> frozenset[JobId]:
        """Return the jobs with a ledger line since a time."""
        with self._db.read() as tx:
            return frozenset(map(JobId, tx.scalars(select(ledger.c.job_id).distinct().where(ledger.c.at >= at))))

    def clear(self, job_id: JobId, folder: Path, now: datetime) -> bool:
        """Mark a job before its folder is removed, so that no run carries over its answers or retries its rows.

        Counts, costs and reasons of its rows stay. Returns False if the job has not ended.
        """
        with self._db.write() as tx:
            locked = select(jobs.c.options, jobs.c.output_path).where(jobs.c.id == job_id, IS_OVER).with_for_update()
            row = tx.execute(locked).first()
            if row is None:
                return False
            options = {**row.options, CLEARED: now.isoformat(timespec="seconds")}
            place = row.output_path
            if place is not None and Path(place).is_relative_to(folder):
                place = None
            tx.execute(update(jobs).where(jobs.c.id == job_id).values(options=options, output_path=place))
            gone: dict[str, Any] = {"fingerprint": "", "cache_key": None, "length": 0}
            tx.execute(update(requests).where(requests.c.job_id == job_id).values(**gone))
            return True

    def forget(self, job_id: JobId) -> bool:
        """Delete a job with its rows, events and ledger lines. Returns False if the job has not ended, or is gone.

        With the last job of a file, the file's acknowledgements are deleted too.
        """
        with self._db.write() as tx:
            series = tx.scalar(select(jobs.c.series).where(jobs.c.id == job_id))
            gone = tx.execute(delete(jobs).where(jobs.c.id == job_id, IS_OVER)).rowcount == 1
            if gone and tx.scalar(select(jobs.c.id).where(jobs.c.series == series).limit(1)) is None:
                tx.execute(delete(acknowledgements).where(acknowledgements.c.series == series))
            return gone

    def result_files(self, home: str) -> list[Lines]:
        """Return the files that rows of a home's jobs refer to, without jobs whose files are gone."""
        c = requests.c
        query = (
            select(c.result_shard, c.result_kind, func.count(), func.max(c.result_offset + c.result_length))
            .where(c.job_id.in_(_with_files(home)), c.result_shard.is_not(None), c.result_kind.is_not(None))
            .group_by(c.result_shard, c.result_kind)
            .order_by(c.result_shard, c.result_kind)
        )
        with self._db.read() as tx:
            return [Lines(*row) for row in tx.execute(query)]

    def result_lines(self, home: str) -> Iterator[tuple[str, str, Span]]:
        """Yield the shard, kind and byte range of each line that rows refer to, in the order of files and lines."""
        c = requests.c
        place = (c.result_shard, c.result_kind, c.result_offset, c.result_length)
        query = (
            select(*place)
            .distinct()
            .where(c.job_id.in_(_with_files(home)), c.result_shard.is_not(None), c.result_kind.is_not(None))
            .order_by(*place)
        )
        for row in self._db.stream(query):
            yield row.result_shard, row.result_kind, Span(row.result_offset, row.result_length)

    def request_files(self, home: str) -> list[tuple[JobId, int]]:
        """Return a home's jobs with a request file, and the offset at which the last line in use ends."""
        c = requests.c
        query = (
            select(c.job_id, func.max(c.offset + c.length))
            .join(jobs, jobs.c.id == c.job_id)
            .where(c.job_id.in_(_with_files(home)), jobs.c.built_at.is_not(None), c.length > 0)
            .group_by(c.job_id)
            .order_by(c.job_id)
        )
        with self._db.read() as tx:
            return [(JobId(job_id), ends) for job_id, ends in tx.execute(query)]

    @property
    def has_file(self) -> bool:
        """True if the database is a file that can be copied."""
        return self._db.path is not None

    def copy_to(self, path: Path) -> None:
        """Copy the database if it is a file. Other connections may write to it meanwhile."""
        if self._db.path is not None:
            copy_sqlite(self._db.path, path)


def _with_files(home: str) -> Any:
    return select(jobs.c.id).where(jobs.c.home == home, jobs.c.options[CLEARED].as_string().is_(None))


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a SQLite database consistently and durably, even while others write to it. Raises StorageError."""
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as here,
            closing(sqlite3.connect(target)) as there,
        ):
            # All pages in one step: writers do not wait (WAL), and the copy need not restart.
            here.backup(there)
    except sqlite3.Error as error:
        raise StorageError(f"the database {source} cannot be copied to {target}: {error}") from error


def check_sqlite(path: Path) -> str | None:
    try:
        with closing(sqlite3.connect(path)) as database:
            found = [str(row[0]) for row in database.execute("PRAGMA integrity_check(3)")]
    except sqlite3.Error as error:
        return str(error)
    return None if found == ["ok"] else "; ".join(found)


def served_files(path: Path) -> list[str]:
    """Return the files named in a batch server's database, relative to the database's folder. Raises StorageError."""
    try:
        with closing(sqlite3.connect(path)) as database:
            return [str(row[0]) for row in database.execute("SELECT path FROM files ORDER BY path")]
    except sqlite3.Error as error:
        raise StorageError(f"the server's database {path} cannot be read: {error}") from error
