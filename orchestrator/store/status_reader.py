"""Reads a list of jobs from SQLite without SQLAlchemy, whose import takes longer than the reading.

A `StatusReader` has the few methods of the store that such a list needs. The reader cannot read a database that is
missing, damaged, or of another kind or version. The caller then uses the store, which repairs the database or reports
the problem.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from orchestrator.core.counts import Counts
from orchestrator.core.fail_on import Failing
from orchestrator.core.model import PICO, Job, JobId, JobKind
from orchestrator.core.schedules import Misfire, Overlap, Schedule
from orchestrator.core.shards import Shard, ShardState
from orchestrator.store import job_figures
from orchestrator.store.job_figures import instant
from orchestrator.store.revision import HEAD

_SQLITE = "sqlite:///"


class CannotRead(Exception):
    """The database cannot be read without SQLAlchemy, so the caller has to use the store."""


@contextmanager
def status_reader(url: str, timeout: float) -> Iterator[StatusReader]:
    """Open a consistent, read-only view of a database. Raises CannotRead, also from within the `with` block."""
    path = url.removeprefix(_SQLITE)
    if path == url or not path or {"?", "%"} & set(path):  # only SQLAlchemy understands escapes and options
        raise CannotRead(url)
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=timeout)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN")
            if connection.execute("SELECT version_num FROM alembic_version").fetchall() != [(HEAD,)]:
                raise CannotRead(url)
            yield StatusReader(connection)
    except sqlite3.Error as error:
        raise CannotRead(str(error)) from error


class StatusReader:
    """Reads jobs, shards, failures, the ledger and schedules through methods named as in the store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.jobs = _Jobs(connection)
        self.shards = _Shards(connection)
        self.failures = _Failures(connection)
        self.ledger = _Ledger(connection)
        self.schedules = _Schedules(connection)


class _Table:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, *values: Any) -> Iterator[dict[str, Any]]:
        """Yield each row as a dictionary of Python values by column name."""
        found = self._connection.execute(statement, values)
        names = [column[0] for column in found.description]
        for row in found:
            yield {name: _value(name, value) for name, value in zip(names, row, strict=True)}

    def ask(self, statement: str, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement.format(", ".join("?" * len(ids))), ids).fetchall()


class _Jobs(_Table):
    def newest(self, limit: int | None = None) -> list[Job]:
        rows = self.rows("SELECT * FROM jobs ORDER BY created_at DESC, id LIMIT ?", -1 if limit is None else limit)
        return [Job(**{**row, "kind": JobKind(row["kind"])}) for row in rows]

    def counts(self, job_ids: Sequence[JobId]) -> dict[JobId, Counts]:
        return job_figures.counts(self.ask, job_ids)

    def submitted(self, job_ids: Sequence[JobId]) -> frozenset[JobId]:
        return job_figures.submitted(self.ask, job_ids)


class _Shards(_Table):
    def of_job(self, job_id: JobId) -> list[Shard]:
        rows = self.rows("SELECT * FROM shards WHERE job_id = ? ORDER BY number", job_id)
        return [Shard(**{**row, "state": ShardState(row["state"])}) for row in rows]


class _Failures(_Table):
    def of_jobs(self, job_ids: Sequence[JobId]) -> dict[JobId, Failing]:
        return job_figures.failing(self.ask, job_ids)


class _Ledger(_Table):
    def spent(self, job_id: JobId) -> Decimal:
        return job_figures.spent(self.ask, job_id)


class _Schedules(_Table):
    def all(self) -> list[Schedule]:
        return [_schedule(row) for row in self.rows("SELECT * FROM schedules ORDER BY name")]


def _schedule(row: Mapping[str, Any]) -> Schedule:
    values = {**row, "misfire": Misfire(row["misfire"]), "overlap": Overlap(row["overlap"])}
    return Schedule(grace=timedelta(seconds=values.pop("grace_seconds")), **values)


def _money(value: int | None) -> Decimal | None:
    return None if value is None else (value * PICO).normalize()


def _json(value: str | None) -> Any:
    return None if value is None else json.loads(value)


KINDS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("spec", "options", "ignored", "failing"), _json),
    "budget": _money,
    "since": instant,
}
"""Converters for columns of jobs, shards and schedules, except for columns that end in `_at`."""


def _value(name: str, value: Any) -> Any:
    kind = instant if name.endswith("_at") else KINDS.get(name)
    return value if kind is None else kind(value)
