"""Queries about requests before orch sends them: earlier outcomes, other jobs' answers, and equal rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Row, and_, func, select, true

from orchestrator.core.model import JobId, RequestState
from orchestrator.store import bulk
from orchestrator.store.database import Database
from orchestrator.store.records import CARRIED, STATES, Earlier, EarlierRow
from orchestrator.store.tables import HAS_KEY, IS_FRESH, jobs, requests, shards

_ABOUT = (
    "custom_id", "fingerprint", "job_id", "carried_from", "released_at", "cut_from_tokens", "sent_as", "notes",
)  # fmt: skip
EARLIER = [requests.c[name] for name in (*CARRIED, *_ABOUT)]
"""Columns that `earlier` reads: only half of all columns, because a night reads a row per unchanged document."""
_STATE, _ERROR_CODE = CARRIED.index("state"), CARRIED.index("error_code")
_FACTS = len(CARRIED)
_CUSTOM_ID, _FINGERPRINT, _JOB_ID, _, _RELEASED_AT = range(_FACTS, _FACTS + 5)


class Known:
    def __init__(self, database: Database) -> None:
        self._db = database

    def known_ids(self, job_id: JobId, custom_ids: Sequence[str]) -> frozenset[str]:
        """Return the given custom_ids that the job already has."""
        query = select(requests.c.custom_id).where(requests.c.job_id == job_id)
        with self._db.read() as tx:
            return frozenset(tx.scalars(bulk.each(query, requests.c.custom_id, custom_ids, tx.dialect)))

    def earlier(self, runs: Sequence[JobId], wanted: Mapping[str, str]) -> dict[str, Earlier]:
        """Return the newest outcome of each request in these runs, which are given oldest first.

        `wanted` maps custom_ids to fingerprints. An answer to an old wording counts again once that wording returns.
        If no run got an answer of its own, an answer that the newest run took over counts. An outcome released from
        quarantine does not count.
        """
        if not runs or not wanted:
            return {}
        found = self._newest_answers(runs, wanted)
        left = {name: mark for name, mark in wanted.items() if name not in found}
        return found | self._taken(runs, left) if left else found

    def _newest_answers(self, runs: Sequence[JobId], wanted: Mapping[str, str]) -> dict[str, Earlier]:
        # Runs are filtered in Python, not in SQL. An index by custom_id finds the few fresh answers. A join by job
        # would look for every id in every night.
        query = select(*EARLIER).where(IS_FRESH, requests.c.state.in_((RequestState.SUCCEEDED, RequestState.FAILED)))
        age = {job_id: number for number, job_id in enumerate(runs)}
        # Fingerprints belong in the query: a document that changes every night has an answer from every night.
        fingerprints = requests.c.fingerprint, list(wanted.values())
        with self._db.read() as tx:
            each = bulk.each(query, requests.c.custom_id, list(wanted), tx.dialect, also=fingerprints)
            found = tx.execute(each).all()
        # Columns by position: access by name takes a third of the time per row.
        rows = [row for row in found if row[_JOB_ID] in age and wanted[row[_CUSTOM_ID]] == row[_FINGERPRINT]]
        rows.sort(key=lambda row: age[row[_JOB_ID]])
        newest = {row[_CUSTOM_ID]: row for row in rows}
        return {key: earlier(row) for key, row in newest.items() if row[_RELEASED_AT] is None}

    def _taken(self, runs: Sequence[JobId], wanted: Mapping[str, str]) -> dict[str, Earlier]:
        query = select(*EARLIER, BACKEND).where(requests.c.job_id == runs[-1])
        with self._db.read() as tx:
            rows = tx.execute(bulk.each(query, requests.c.custom_id, list(wanted), tx.dialect)).all()
        own = set(runs)  # a renamed document has the answer that its former name got in an earlier run
        return {
            row.custom_id: replace(
                earlier(row), taken_from=None if row.carried_from in own else (row.backend, row.sent_model)
            )
            for row in rows
            if row.state == RequestState.SUCCEEDED
            and row.fingerprint == wanted[row.custom_id]
            and row.carried_from is not None
        }

    def before(self, job_id: JobId, custom_ids: Sequence[str]) -> dict[str, EarlierRow]:
        """Return the inputs and state of these rows in a run, by custom_id. Rows that the run lacks are left out."""
        c = requests.c
        columns = (c.custom_id, c.fingerprint, c.content, c.wording, c.prompt_version, c.model, c.state, c.sent_model)
        with self._db.read() as tx:
            query = bulk.each(select(*columns).where(c.job_id == job_id), c.custom_id, custom_ids, tx.dialect)
            return {row.custom_id: _before(row) for row in tx.execute(query)}

    def gone(self, job_id: JobId, previous: JobId) -> Iterator[str]:
        """Yield the names of documents that only the previous run has, sorted by name."""
        c = requests.c
        before, now = (select(c.document).where(c.job_id == run) for run in (previous, job_id))
        found = before.except_(now).subquery()
        for row in self._db.stream(select(found.c.document).order_by(found.c.document)):
            yield row.document

    def answers(self, home: str, keys: Collection[str], *, checked: bool) -> dict[tuple[str, str, str], Earlier]:
        """Return the newest answer that a home's jobs got from a backend, per request, backend and model.

        Keys are the cache key, the backend, and the backend's name for the model. With `checked`, only answers that
        passed a task's checks count. Rows of batch files have no checks.
        """
        with self._db.read() as tx:
            columns = (*EARLIER, requests.c.seq, requests.c.cache_key, BACKEND)
            rows = answers_to(tx, columns, home, keys, checked=checked)
        return {(row.cache_key, row.backend, row.sent_model): earlier(row) for row in rows if row.backend is not None}

    def originals(self, job_id: JobId, keys: Collection[str]) -> dict[tuple[str, str, str], int]:
        """Return the `seq` of each row that the job sends itself, by cache key, model and task."""
        c = requests.c
        # The job is filtered in Python. With it in the query, Postgres would read all rows of the job.
        query = select(c.job_id, c.cache_key, c.model, c.task, c.seq).where(HAS_KEY)
        with self._db.read() as tx:
            rows = tx.execute(bulk.each(query, c.cache_key, keys, tx.dialect))
            return {(row.cache_key, row.model, row.task): row.seq for row in rows if row.job_id == job_id}

    def same(self, job_id: JobId, other_id: JobId) -> int:
        """Return how many rows of a job have the same `seq`, identity and fingerprint in another job."""
        mine = requests.alias("mine").c

        def same_place(there: Any) -> ColumnElement[bool]:
            return and_(there.job_id == other_id, there.seq == mine.seq)

        with self._db.read() as tx:
            theirs, on = bulk.beside(requests.alias("theirs"), same_place, tx.dialect)
            alike = theirs.c.custom_id == mine.custom_id, theirs.c.fingerprint == mine.fingerprint
            query = select(func.count()).select_from(mine.seq.table.join(theirs, on))
            return tx.scalar(query.where(mine.job_id == job_id, *alike)) or 0


def answers_to(
    tx: Connection, columns: Sequence[Any], home: str, keys: Collection[str], *, checked: bool
) -> list[Row[Any]]:
    """Return answers that a home's jobs got from backends to requests with these cache keys, oldest first.

    `columns` must include the columns of `AGE`. With `checked`, only answers that passed a task's checks count.
    """
    c = requests.c
    # The home is looked up per answer, because a join from the home's jobs would find all rows of these jobs.
    whose = select(jobs.c.home).where(jobs.c.id == c.job_id).scalar_subquery().label("home")
    query = (
        select(*columns, whose)
        .where(HAS_KEY, c.state == RequestState.SUCCEEDED)
        # An answer to a request that showed the fault of an earlier answer is no answer to this request.
        .where(c.sent_model.is_not(None), c.first_offset.is_(None), c.task != "" if checked else true())
    )
    found = tx.execute(bulk.each(query, c.cache_key, keys, tx.dialect))
    return sorted((row for row in found if row.home == home), key=AGE)


def earlier(row: Any) -> Earlier:
    """Convert a row whose first columns are `EARLIER` to an outcome."""
    name, fingerprint, job_id, carried_from, _, cut, sent_as, notes = row[_FACTS : _FACTS + len(_ABOUT)]
    return Earlier(
        name, fingerprint, STATES[row[_STATE]], row[_ERROR_CODE], carried_from or job_id, row[:_FACTS], cut,
        sent_as=sent_as, notes=notes,
    )  # fmt: skip


AGE = attrgetter("settled_at", "job_id", "seq")
BACKEND = select(shards.c.backend).where(shards.c.id == requests.c.result_shard).scalar_subquery().label("backend")


def _before(row: Any) -> EarlierRow:
    state = RequestState(row.state)
    return EarlierRow(
        row.fingerprint, row.content, row.wording, row.prompt_version, row.model, state, row.sent_model
    )  # fmt: skip
