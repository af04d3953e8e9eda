"""Rows by document, with the byte ranges of their request lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct
from sqlalchemy import BigInteger, ColumnElement, FromClause, and_, func, or_, select, tuple_, type_coerce

from orchestrator.core.model import FinishedRow, JobId, Span
from orchestrator.store.database import Database
from orchestrator.store.records import FINISHED, finished
from orchestrator.store.tables import HAS_FAILED, OF_SHARD, requests, shards

PAGE = 2000
NEAR = 64
"""Number of rows read at a time in the search for a document's rows."""
MAX_SEQ = 2**63 - 1


class FoundRow(Struct, frozen=True):
    """A row of a job. `request` is its request line's byte range; length 0 means that it has no line.

    `sent_model` is the backend's name for the model; None if the row was not sent. `text_at` is where the document's
    text is in the request, if answers quote it.
    """

    row: FinishedRow
    request: Span
    sent_model: str | None
    text_at: str | None = None


ORDERS = ("document", "task", "state", "input_tokens", "output_tokens", "cost", "attempt", "settled_at")
"""Columns that a list of rows can be sorted by. A row that is not settled counts as the oldest."""


class RowFilter(Struct, frozen=True):
    """Conditions for a list of a job's rows; None means no condition. `text` is searched for in documents and ids.

    `order` is a column from `ORDERS`, or None for input order. Rows with equal values are in input order;
    `descending` reverses the whole list.
    """

    state: str | None = None
    code: str | None = None
    task: str | None = None
    text: str | None = None
    order: str | None = None
    descending: bool = False


class RowsByDocument:
    def __init__(self, database: Database) -> None:
        self._db = database

    def rows(self, job_id: JobId, document: str) -> list[FoundRow]:
        """Return the rows of a document, in input order. Reads every row of the job."""
        return self._of_job(job_id, requests.c.document == document)

    def near(self, job_id: JobId, document: str, ids: Collection[str]) -> list[FoundRow]:
        """Return the same as `rows`, but read few other rows; empty if no row of the document has one of `ids`.

        A document's rows are next to each other, followed by the rows of its parts.
        """
        c = requests.c
        query = select(c.seq).where(c.job_id == job_id, c.custom_id.in_(ids), c.document == document)
        with self._db.read() as tx:
            known = set(tx.scalars(query))
        found: list[FoundRow] = []
        at = min(known, default=None)
        while at is not None:
            rows = self._of_job(job_id, and_(c.seq >= at, c.seq < at + NEAR))
            found += takewhile(lambda one: one.row.document == document, rows)
            at = at + NEAR if len(rows) == NEAR and rows[-1].row.document == document else None
        return found if known <= {one.row.seq for one in found} else self.rows(job_id, document)

    def quotes(self, job_id: JobId) -> Iterator[str]:
        """Yield the stored quotes of each row whose answer has quotes. Reads every row of the job."""
        query = select(requests.c.quotes).where(requests.c.job_id == job_id, requests.c.quotes.is_not(None))
        with self._db.read() as tx:
            yield from tx.execution_options(yield_per=1000).scalars(query)

    def row(self, job_id: JobId, custom_id: str) -> FoundRow | None:
        return next(iter(self._of_job(job_id, requests.c.custom_id == custom_id)), None)

    def at(self, job_id: JobId, seq: int) -> FoundRow | None:
        """Return the row with this `seq`, or None."""
        if not 0 <= seq <= MAX_SEQ:
            return None  # databases accept no larger number
        return next(iter(self._of_job(job_id, requests.c.seq == seq)), None)

    def page(
        self, job_id: JobId, wanted: RowFilter, most: int, *, after: int = -1, before: int | None = None
    ) -> list[FoundRow]:
        """Return up to `most` rows in list order: the first rows after `after`, or the last rows before `before`.

        `after` and `before` are values of `seq`. A sorted page compares every row of the job.
        """
        c = requests.c
        is_forward = (before is None) is not wanted.descending
        conditions = [c.job_id == job_id]
        if before is not None or after >= 0:
            conditions.append(_beyond(job_id, wanted, after if before is None else before, is_forward=is_forward))
        if wanted.state is not None:
            conditions.append(c.state == wanted.state)
        if wanted.code is not None:
            conditions += [HAS_FAILED, c.error_code == wanted.code]
        if wanted.task is not None:
            conditions.append(c.task == wanted.task)
        if wanted.text:
            # LIKE of SQLite ignores case. `icontains` also calls lower() for each row, half of the time of a search.
            contains = ColumnElement.contains if self._db.is_sqlite else ColumnElement.icontains
            texts = (contains(column, wanted.text, autoescape=True) for column in (c.document, c.custom_id))
            conditions.append(or_(*texts))
        order = [key if is_forward else key.desc() for key in _keys(requests, wanted)]
        found = self._selected(and_(*conditions), most, order)
        return found if before is None else found[::-1]

    def where(self, *conditions: ColumnElement[bool], most: int) -> list[FoundRow]:
        """Return up to `most` rows that meet all conditions, in input order. For use inside the store."""
        return self._selected(and_(*conditions), most)

    def tasks(self, job_id: JobId) -> list[str]:
        """Return the distinct tasks of a job's first PAGE rows, in input order."""
        c = requests.c
        query = select(c.task).where(c.job_id == job_id).order_by(c.seq).limit(PAGE)
        with self._db.read() as tx:
            return list(dict.fromkeys(tx.scalars(query)))

    def has_document(self, job_id: JobId, document: str) -> bool:
        c = requests.c
        query = select(c.seq).where(c.job_id == job_id, c.document == document).limit(1)
        with self._db.read() as tx:
            return tx.execute(query).first() is not None

    def documents(self, job_id: JobId, is_meant: Callable[[str], bool], most: int) -> list[str]:
        """Return up to `most` documents of a job that `is_meant` accepts, in input order."""
        query = select(requests.c.document).where(requests.c.job_id == job_id).order_by(requests.c.seq)
        found: dict[str, None] = {}
        for row in self._db.stream(query):
            if len(found) < most and is_meant(row.document):
                found[row.document] = None
        return list(found)

    def _of_job(self, job_id: JobId, condition: ColumnElement[bool]) -> list[FoundRow]:
        return self._selected(and_(requests.c.job_id == job_id, condition), None)

    def _selected(
        self, condition: ColumnElement[bool], most: int | None, order: Sequence[ColumnElement[Any]] = ()
    ) -> list[FoundRow]:
        c = requests.c
        columns = (*(c[name] for name in FINISHED), *OF_SHARD)
        query = (
            select(*columns, c.offset, c.length, c.sent_model, c.text_at)
            .outerjoin(shards, shards.c.id == c.result_shard)
            .where(condition)
            .order_by(*(order or [c.seq]))
            .limit(most)
        )
        with self._db.read() as tx:
            rows = tx.execute(query).all()
        return [FoundRow(finished(row[:-4]), Span(row[-4], row[-3]), *row[-2:]) for row in rows]


def _keys(table: FromClause, wanted: RowFilter) -> list[ColumnElement[Any]]:
    if wanted.order is None:
        return [table.c.seq]
    column = table.c[wanted.order]
    nullable = func.coalesce(type_coerce(column, BigInteger), 0) if wanted.order == "settled_at" else column
    return [nullable, table.c.seq]


def _beyond(job_id: JobId, wanted: RowFilter, seq: int, *, is_forward: bool) -> ColumnElement[bool]:
    c, there = requests.c, requests.alias("there")
    if wanted.order is None:
        return c.seq > seq if is_forward else c.seq < seq
    row = select(*_keys(there, wanted)).where(there.c.job_id == job_id, there.c.seq == seq).scalar_subquery()
    here = tuple_(*_keys(requests, wanted))
    return here > row if is_forward else here < row
