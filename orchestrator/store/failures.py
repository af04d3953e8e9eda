"""Failed rows, with the start of each failure and people's acknowledgements.

A failure is known if an earlier run failed with the same code and no run since then had another outcome. An
acknowledgement lasts as long as its failure: a failure that returns later is new. `failed_since` is the creation time
of the first run with the failure. The row stores this time, because that run may be removed before the failure ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, delete, exists, func, literal_column, select

from orchestrator.core.fail_on import Failing
from orchestrator.core.model import Job, JobId, RequestState, scope_words
from orchestrator.store import bulk, job_figures
from orchestrator.store.database import Database
from orchestrator.store.night_tables import acknowledgements
from orchestrator.store.tables import HAS_FAILED, jobs, requests

CHUNK = 500
RUNS = 30
"""Maximum earlier runs searched for a row's last outcome. A cancelled run may have no outcome for the row."""


class FailureReason(Struct, frozen=True):
    """A reason why rows did not succeed: an example message, the number of rows, and how many of the rows are new.

    `since` is the start of the oldest known failure. The message is about `document`. `has_others` is true if other
    documents have rows with this reason too.
    """

    code: str
    message: str
    rows: int
    new: int
    since: datetime | None
    document: str = ""
    has_others: bool = False


class Failure(Struct, frozen=True):
    """A failed row of the newest run of a job file."""

    document: str
    task: str
    custom_id: str
    code: str
    message: str
    job: JobId
    name: str
    series: str
    since: datetime
    is_known: bool
    acknowledged_at: datetime | None
    note: str | None

    @property
    def status(self) -> str:
        """`new`, `known` or `acknowledged`."""
        return _ACKNOWLEDGED if self.acknowledged_at is not None else _KNOWN if self.is_known else _NEW


class Failures:
    def __init__(self, database: Database) -> None:
        self._db = database

    def trace(self, job: Job) -> None:
        """Find and record when each failure of a job began. Rows with a recorded start stay unchanged."""
        c = requests.c
        columns = (c.seq, c.custom_id, c.error_code, c.state, c.failed_since)
        query = select(*columns).where(c.job_id == job.id, HAS_FAILED)
        with self._db.read() as tx:
            runs = self._runs(tx, job)
        fresh: list[Any] = []
        for row in self._db.stream(query):
            if row.state == RequestState.FAILED and row.failed_since is None:
                fresh.append(row)
            if len(fresh) == CHUNK:
                self._began(job, runs, fresh)
                fresh.clear()
        if fresh:
            self._began(job, runs, fresh)

    def _began(self, job: Job, runs: Sequence[tuple[JobId, datetime]], rows: Sequence[Any]) -> None:
        with self._db.write() as tx:
            since = self._since(tx, job, runs, {row.custom_id: row.error_code for row in rows})
            told = ((since[row.custom_id], job.id, row.seq) for row in rows)
            bulk.change(tx, requests, ("failed_since",), ("job_id", "seq"), told)

    def known(self, job: Job, failing: Mapping[str, str]) -> frozenset[str]:
        """Return the custom_ids that failed with the same code in an earlier run. `failing` maps custom_ids to
        codes.
        """
        names, found = list(failing), set[str]()
        with self._db.read() as tx:
            runs = self._runs(tx, job)
            for start in range(0, len(names), CHUNK):
                part = {name: failing[name] for name in names[start : start + CHUNK]}
                since = self._since(tx, job, runs, part)
                found |= {name for name, at in since.items() if at < job.created_at}
        return frozenset(found)

    def of_jobs(self, job_ids: Sequence[JobId]) -> dict[JobId, Failing]:
        with self._db.asking() as ask:
            return job_figures.failing(ask, job_ids)

    def reasons(self, job_id: JobId, limit: int = 20) -> list[FailureReason]:
        """Return why rows did not succeed: up to `limit` reasons, most common first. Rows that never ran are new."""
        c = requests.c
        told, on = acknowledgement_of(requests.c, self._db)
        columns = c.error_code, func.count(), func.min(c.failed_since), func.min(c.seq)
        query = (
            select(_status(told.c.at), *columns, func.min(c.document), func.max(c.document))
            .select_from(requests.join(jobs, jobs.c.id == c.job_id).outerjoin(told, on))
            .where(c.job_id == job_id, HAS_FAILED)
            .group_by(c.error_code, "status")
        )
        found: dict[str, FailureReason] = {}
        firsts: dict[str, int] = {}
        with self._db.read() as tx:
            for status, code, rows, since, seq, *ends in tx.execute(query):
                old = found.get(code, FailureReason(code, "", 0, 0, None, ends[0]))
                begun = [at for at in (old.since, since if status != _NEW else None) if at is not None]
                found[code] = replace(
                    old,
                    rows=old.rows + rows,
                    new=old.new + (rows if status == _NEW else 0),
                    since=min(begun, default=None),
                    has_others=old.has_others or {*ends} != {old.document},
                )
                firsts[code] = min(firsts.get(code, seq), seq)
            most = sorted(found.values(), key=lambda one: (-one.rows, one.code))[:limit]
            named = c.seq.in_([firsts[one.code] for one in most])
            examples = select(c.error_code, c.error_message, c.document).where(c.job_id == job_id, named)
            texts = {code: (message or "", document) for code, message, document in tx.execute(examples)}
        return [
            replace(one, message=texts[one.code][0], document=texts[one.code][1]) for one in most if one.code in texts
        ]

    def of_home(self, home: str, series: str | None = None) -> Iterator[Failure]:
        """Yield the failed rows in the newest run of each job file of a home, or only of `series`.

        The newest run comes first, with its rows in input order.
        """
        c = requests.c
        told, on = acknowledgement_of(requests.c, self._db)
        columns = (c.document, c.task, c.custom_id, c.error_code, c.error_message, c.failed_since)
        query = (
            select(*columns, jobs, told.c.at, told.c.note)
            .select_from(requests.join(jobs, jobs.c.id == c.job_id).outerjoin(told, on))
            .where(HAS_FAILED, c.state == RequestState.FAILED)
            .order_by(c.seq)
        )
        for job_id in newest_runs(self._db, home, series):
            for row in self._db.stream(query.where(c.job_id == job_id)):
                since = row.failed_since or row.created_at
                yield Failure(
                    row.document, row.task, row.custom_id, row.error_code, row.error_message or "", job_id, row.name,
                    row.series, since, since < row.created_at, row.at, row.note,
                )  # fmt: skip

    def acknowledge(self, failures: Sequence[Failure], note: str | None, now: datetime) -> int:
        """Record that a person knows of these failures. Return how many were unacknowledged before."""
        rows = [
            {
                "series": one.series,
                "custom_id": one.custom_id,
                "code": one.code,
                "since": one.since,
                "at": now,
                "note": note,
            }
            for one in failures
        ]
        if rows:
            add = self._db.upsert(acknowledgements)
            again = {name: add.excluded[name] for name in ("since", "at", "note")}
            with self._db.write() as tx:
                tx.execute(add.on_conflict_do_update(index_elements=_KEYS, set_=again), rows)
        return sum(one.acknowledged_at is None for one in failures)

    def take_back(self, failures: Sequence[Failure]) -> int:
        """Withdraw the acknowledgements of these failures. Return how many were withdrawn."""
        mine = [one for one in failures if one.acknowledged_at is not None]
        given = [{"b_series": one.series, "b_custom_id": one.custom_id, "b_code": one.code} for one in mine]
        if given:
            same = [acknowledgements.c[name] == bindparam(f"b_{name}") for name in _KEYS]
            with self._db.write() as tx:
                tx.execute(delete(acknowledgements).where(*same), given)
        return len(mine)

    def _runs(self, tx: Connection, job: Job) -> list[tuple[JobId, datetime]]:
        """Return up to `RUNS` earlier built runs of the same job file with their creation times, newest first.

        A cancelled run counts only if a person has acknowledged failures that began with it.
        """
        c, told = jobs.c, acknowledgements.c
        is_told = exists().where(told.series == c.series, told.since == c.created_at)
        query = (
            select(c.id, c.created_at)
            .where(c.series == job.series, c.created_at < job.created_at, c.built_at.is_not(None))
            .where(c.cancel_requested_at.is_(None) | is_told)
            .order_by(c.created_at.desc())
            .limit(RUNS)
        )
        return [(JobId(job_id), at) for job_id, at in tx.execute(query)]

    def _since(
        self, tx: Connection, job: Job, runs: Sequence[tuple[JobId, datetime]], failing: Mapping[str, str]
    ) -> dict[str, datetime]:
        c, left = requests.c, dict(failing)
        since = dict.fromkeys(failing, job.created_at)
        for job_id, at in runs:
            if not left:
                break
            query = select(c.custom_id, c.state, c.error_code, c.failed_since).where(c.job_id == job_id)
            for row in tx.execute(bulk.each(query, c.custom_id, list(left), tx.dialect)):
                if row.state not in (RequestState.SUCCEEDED, RequestState.FAILED):
                    continue  # the row never ran in this run, so earlier runs decide
                if row.error_code == left[row.custom_id]:
                    since[row.custom_id] = row.failed_since or at
                if row.error_code != left[row.custom_id] or row.failed_since is not None:
                    del left[row.custom_id]
        return since


def newest_runs(database: Database, home: str, series: str | None = None) -> list[JobId]:
    """Return the newest built run of each job file of a home, or only of `series`. A run without limits wins."""
    c = jobs.c
    query = select(c.id, c.series, c.options).where(c.home == home, c.built_at.is_not(None))
    if series is not None:
        query = query.where(c.series == series)
    found: dict[str, JobId] = {}
    with database.read() as tx:
        runs = tx.execute(query.order_by(c.created_at.desc(), c.id)).all()
    for run in sorted(runs, key=lambda run: scope_words(run.options) is not None):
        found.setdefault(run.series, JobId(run.id))
    return list(found.values())


_NEW, _KNOWN, _ACKNOWLEDGED = "new", "known", "acknowledged"
_KEYS = ["series", "custom_id", "code"]


def acknowledgement_of(row: Any, database: Database) -> tuple[Any, ColumnElement[bool]]:
    """Return the acknowledgements to join with a row's failure, and the ON condition, which refers to `jobs`."""
    return bulk.beside(acknowledgements, lambda told: _same_failure(told, row), database.dialect)


def _same_failure(told: Any, row: Any) -> ColumnElement[bool]:
    same = and_(told.series == jobs.c.series, told.custom_id == row.custom_id, told.code == row.error_code)
    return and_(same, told.since == row.failed_since)


def _status(acknowledged_at: ColumnElement[Any]) -> ColumnElement[str]:
    return case(
        (acknowledged_at.is_not(None), literal_column(f"'{_ACKNOWLEDGED}'")),
        (requests.c.failed_since < jobs.c.created_at, literal_column(f"'{_KNOWN}'")),
        else_=literal_column(f"'{_NEW}'"),
    ).label("status")
