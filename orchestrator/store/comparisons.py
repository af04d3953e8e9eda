"""Comparison of two runs, row by row: rows added, removed and answered differently. Results are streamed.

For a document asked in parts, only the row of the final answer is compared, because an edit changes the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, literal, or_, select

from orchestrator.core.model import FinishedRow, JobId, RequestState
from orchestrator.policy.diff import ComparedRow, DocumentRun
from orchestrator.store import bulk
from orchestrator.store.database import Database
from orchestrator.store.failures import acknowledgement_of
from orchestrator.store.records import FINISHED, finished
from orchestrator.store.tables import jobs, requests

_PLACE = ("result_shard", "result_kind", "result_offset", "result_length")

_NO_JOB = JobId("")
_THEN_MESSAGE = "\n"
"""Separator of a failure's code and message, which are compared as one text. No code contains a newline."""

_MINE, _THEIRS = requests.alias("mine"), requests.alias("theirs")


class Comparisons:
    """Comparisons of two runs. The jobs `before` and `after` may belong to different series."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def documents(self, before: JobId | None, after: JobId) -> Iterator[DocumentRun]:
        """Yield every document of run `after` in input order, compared with run `before` unless it is None."""
        other, on = self._beside(before)
        mine, theirs = _MINE.c, other.c
        changed = mine.fingerprint != theirs.fingerprint
        asked = and_(changed, mine.prompt_version != theirs.prompt_version)
        of_other_model = and_(changed, _declared(mine) != _declared(theirs))
        (told, acknowledged), of_job = acknowledgement_of(_MINE.c, self._db), jobs.c.id == mine.job_id
        is_old = or_(told.c.at.is_not(None), mine.failed_since < jobs.c.created_at)
        has_failed = mine.state.in_((RequestState.FAILED, RequestState.EXPIRED, RequestState.CANCELLED))
        failure = mine.error_code + _THEN_MESSAGE + func.coalesce(mine.error_message, "")
        query = (
            select(
                mine.document.label("name"),
                func.count().label("rows"),
                func.count(theirs.seq).label("known"),
                _number(changed).label("changed"),
                _number(asked).label("asked"),
                _number(of_other_model).label("other_model"),
                _number(has_failed).label("failed"),
                _number(and_(has_failed, mine.length == 0, mine.parts.is_(None))).label("unreadable"),
                _number(mine.state == RequestState.PENDING).label("open"),
                func.min(case((has_failed, failure))).label("code"),
                _number(and_(mine.state == RequestState.FAILED, is_old)).label("old"),
                func.min(case((has_failed, mine.failed_since))).label("since"),
            )
            .select_from(_MINE.join(jobs, of_job).outerjoin(told, acknowledged).outerjoin(other, on))
            .where(mine.job_id == after, mine.part.is_(None))
            .group_by(mine.document)
            .order_by(func.min(mine.seq))
        )
        for row in self._db.stream(query):
            code, _, message = (row.code or "").partition(_THEN_MESSAGE)
            yield DocumentRun(**{**row._mapping, "code": code or None, "message": message or None})

    def removed_documents(self, before: JobId, after: JobId) -> Iterator[str]:
        # Not a join: documents have no index, so SQLite would search all documents for each document.
        only = _documents(before).except_(_documents(after)).subquery()
        for row in self._db.stream(select(only.c.document).order_by(only.c.document)):
            yield row.document

    def only_in(self, job_id: JobId, other: JobId) -> Iterator[ComparedRow]:
        """Yield the rows of a run that the other run lacks, in input order."""
        mine, (there, on) = _MINE.c, self._beside(other)
        query = (
            select(mine.custom_id, mine.document, mine.task)
            .select_from(_MINE.outerjoin(there, on))
            .where(mine.job_id == job_id, mine.part.is_(None), there.c.seq.is_(None))
            .order_by(mine.seq)
        )
        for row in self._db.stream(query):
            yield ComparedRow(row.custom_id, row.document, row.task)

    def moved(self, before: JobId, after: JobId) -> Iterator[tuple[FinishedRow, FinishedRow]]:
        """Yield pairs (before, after) of rows that have an outcome in both runs and whose answers may differ.

        A row with the same result line in both runs, such as a carried row, is left out.
        """
        other, on = self._beside(before)
        mine, theirs = _MINE.c, other.c
        sides = [side[name].label(f"{key}_{name}") for key, side in (("t", theirs), ("m", mine)) for name in FINISHED]
        places = [mine[name].is_distinct_from(theirs[name]) for name in _PLACE]
        query = (
            select(*sides)
            .select_from(_MINE.join(other, on))
            .where(mine.job_id == after, mine.part.is_(None))
            .where(mine.state != RequestState.PENDING, theirs.state != RequestState.PENDING)
            .where(or_(mine.state != theirs.state, mine.error_code.is_distinct_from(theirs.error_code), *places))
            .order_by(mine.seq)
        )
        for row in self._db.stream(query):
            yield finished(row[: len(FINISHED)]), finished(row[len(FINISHED) :])

    def _beside(self, job_id: JobId | None) -> tuple[Any, ColumnElement[bool]]:
        # With `job_id IS NULL`, SQLite would scan all rows of all jobs for each row, because its index only covers
        # values.
        run = _NO_JOB if job_id is None else job_id

        def same_row(there: Any) -> ColumnElement[bool]:
            return and_(there.job_id == run, there.custom_id == _MINE.c.custom_id)

        return bulk.beside(_THEIRS, same_row, self._db.dialect)


def _documents(job_id: JobId) -> Select[tuple[str]]:
    return select(requests.c.document).where(requests.c.job_id == job_id).distinct()


def _number(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, literal(1)), else_=literal(0)))


def _declared(row: Any) -> ColumnElement[str]:
    return func.coalesce(row.first_model, row.model)
