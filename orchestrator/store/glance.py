"""A fast view of a SQLite database without the database library, for commands that only read.

A `Glance` has the store's few methods that a list of jobs needs. If it cannot read the database (other kind, other
version, missing or damaged), the caller asks the store, which repairs it or reports the problem.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from orchestrator.core.counts import MARKED, Counts, Failing
from orchestrator.core.model import PICO, Job, JobId, JobKind
from orchestrator.core.schedules import Misfire, Overlap, Schedule
from orchestrator.core.shards import Shard, ShardState
from orchestrator.store.schema import HEAD

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SQLITE = "sqlite:///"


class CannotGlance(Exception):
    """The caller has to use the store."""


@contextmanager
def glance(url: str, timeout: float) -> Iterator[Glance]:
    """Open a consistent, read-only view of a database. The block may raise CannotGlance."""
    path = url.removeprefix(_SQLITE)
    if path == url or not path or {"?", "%"} & set(path):  # only the library reads escapes and options
        raise CannotGlance(url)
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=timeout)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN")
            if connection.execute("SELECT version_num FROM alembic_version").fetchall() != [(HEAD,)]:
                raise CannotGlance(url)
            yield Glance(connection)
    except sqlite3.Error as error:
        raise CannotGlance(str(error)) from error


class Glance:
    """The store's methods on jobs, shards, failures, the ledger and schedules, under the same names."""

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
        """Yield rows as Python values by column name."""
        found = self._connection.execute(statement, values)
        names = [column[0] for column in found.description]
        for row in found:
            yield {name: _value(name, value) for name, value in zip(names, row, strict=True)}

    def tuples(self, statement: str, job_ids: Sequence[JobId]) -> list[tuple[Any, ...]]:
        """Return raw rows of a statement with a placeholder for a list of jobs."""
        return self._connection.execute(statement.format(", ".join("?" * len(job_ids))), job_ids).fetchall()


class _Jobs(_Table):
    def newest(self, limit: int | None = None) -> list[Job]:
        rows = self.rows("SELECT * FROM jobs ORDER BY created_at DESC, id LIMIT ?", -1 if limit is None else limit)
        return [Job(**{**row, "kind": JobKind(row["kind"])}) for row in rows]

    def counts(self, job_ids: Sequence[JobId]) -> dict[JobId, Counts]:
        found: dict[JobId, dict[str, int]] = {job_id: {} for job_id in job_ids}
        counted = "SELECT job_id, state, count(*) FROM requests WHERE job_id IN ({}) GROUP BY job_id, state"
        for job_id, state, number in self.tuples(counted, job_ids):
            found[job_id][state] = number
        marked = (
            "SELECT job_id, total(cut), total(repaired), total(odd_end), total(unverifiable) FROM requests "
            "WHERE job_id IN ({}) AND cut IS NOT NULL GROUP BY job_id"
        )
        for job_id, *numbers in self.tuples(marked, job_ids):
            found[job_id] |= dict(zip(MARKED, map(int, numbers), strict=True))
        return {job_id: Counts(**states) for job_id, states in found.items()}

    def submitted(self, job_ids: Sequence[JobId]) -> frozenset[JobId]:
        sent = "SELECT DISTINCT job_id FROM shards WHERE job_id IN ({}) AND state NOT IN ('pending', 'cancelled')"
        return frozenset(job_id for (job_id,) in self.tuples(sent, job_ids))


class _Shards(_Table):
    def of_job(self, job_id: JobId) -> list[Shard]:
        rows = self.rows("SELECT * FROM shards WHERE job_id = ? ORDER BY number", job_id)
        return [Shard(**{**row, "state": ShardState(row["state"])}) for row in rows]


class _Failures(_Table):
    def of_jobs(self, job_ids: Sequence[JobId]) -> dict[JobId, Failing]:
        found = dict.fromkeys(job_ids, Failing())
        for job_id, status, rows, since in self.tuples(_FAILING, job_ids):
            facts = {status: rows, **({"since": _instant(since)} if status == "known" else {})}
            found[job_id] = replace(found[job_id], **facts)
        return found


_FAILING = """\
SELECT r.job_id,
  CASE WHEN a.at IS NOT NULL THEN 'acknowledged' WHEN r.failed_since < j.created_at THEN 'known' ELSE 'new' END
  AS status, count(*), min(r.failed_since)
FROM requests AS r JOIN jobs AS j ON j.id = r.job_id
LEFT JOIN acknowledgements AS a
  ON a.series = j.series AND a.custom_id = r.custom_id AND a.code = r.error_code AND a.since = r.failed_since
WHERE r.job_id IN ({}) AND r.error_code >= '' AND r.state = 'failed'
GROUP BY r.job_id, status"""


class _Ledger(_Table):
    def spent(self, job_id: JobId) -> Decimal:
        [(total,)] = self.tuples("SELECT sum(cost) FROM ledger WHERE job_id IN ({})", [job_id])
        return int(total or 0) * PICO


class _Schedules(_Table):
    def all(self) -> list[Schedule]:
        return [_schedule(row) for row in self.rows("SELECT * FROM schedules ORDER BY name")]


def _schedule(row: Mapping[str, Any]) -> Schedule:
    values = {**row, "misfire": Misfire(row["misfire"]), "overlap": Overlap(row["overlap"])}
    return Schedule(grace=timedelta(seconds=values.pop("grace_seconds")), **values)


def _instant(value: int | None) -> datetime | None:
    return None if value is None else _EPOCH + timedelta(microseconds=value)


def _money(value: int | None) -> Decimal | None:
    return None if value is None else (value * PICO).normalize()


def _json(value: str | None) -> Any:
    return None if value is None else json.loads(value)


KINDS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("spec", "options", "ignored", "failing"), _json),
    "budget": _money,
    "since": _instant,
}
"""Converters for columns of jobs, shards and schedules, except those ending in `_at`."""


def _value(name: str, value: Any) -> Any:
    kind = _instant if name.endswith("_at") else KINDS.get(name)
    return value if kind is None else kind(value)
