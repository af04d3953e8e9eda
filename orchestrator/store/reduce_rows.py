"""Rows that ask about the answers to a document's parts, after all parts have ended.

Such a row precedes the rows of its parts in the same job. Its `seq` and the number of parts identify the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec import Struct
from sqlalchemy import bindparam, exists, select, update

from orchestrator.core.model import FinishedRow, JobId, RequestState, Span
from orchestrator.store import bulk, records
from orchestrator.store.database import Database
from orchestrator.store.tables import IS_BLOCKED, OF_SHARD, requests, shards

_PART = requests.alias("part")


class Unmade(Struct, frozen=True):
    """A row without a request line, and the facts for making it. `max_output` is the maximum tokens of its answer."""

    seq: int
    custom_id: str
    task: str
    parts: int
    max_output: int | None


class UnaskedRow(Struct, frozen=True):
    """A row that ends without being asked, with the reason."""

    seq: int
    state: RequestState
    code: str
    message: str


class Stages:
    def __init__(self, database: Database) -> None:
        self._db = database

    def complete(self, job_id: JobId, limit: int) -> list[Unmade]:
        """Return up to `limit` rows that lack a request line and whose parts have all ended, in input order."""
        c, part = requests.c, _PART.c
        # Most open rows of the job belong to other documents. The expression avoids the index of states, and OFFSET
        # keeps Postgres from turning it into a join.
        is_open = part.state.concat("") == RequestState.PENDING
        of_row = part.job_id == job_id, part.seq > c.seq, part.seq <= c.seq + c.parts
        open_part = exists(select(part.seq).where(*of_row, is_open).correlate(requests).offset(bulk.NONE_SKIPPED))
        query = (
            select(c.seq, c.custom_id, c.task, c.parts, c.max_output)
            .where(c.job_id == job_id, IS_BLOCKED, ~open_part)
            .order_by(c.seq)
            .limit(limit)
        )
        with self._db.read() as tx:
            return [Unmade(*row) for row in tx.execute(query)]

    def parts(self, job_id: JobId, of: Unmade) -> Iterator[FinishedRow]:
        c = requests.c
        query = (
            select(*(c[name] for name in records.FINISHED), *OF_SHARD)
            .outerjoin(shards, shards.c.id == c.result_shard)
            .where(c.job_id == job_id, c.seq > of.seq, c.seq <= of.seq + of.parts)
            .order_by(c.seq)
        )
        for row in self._db.stream(query):
            yield records.finished(row)

    def sent_parts(self, job_id: JobId, seq: int, parts: int) -> list[tuple[Span, str, int]]:
        """Return the request line, the text's position in it and the number of each part with a known text
        position.
        """
        c = requests.c
        query = (
            select(c.offset, c.length, c.text_at, c.part)
            .where(c.job_id == job_id, c.seq > seq, c.seq <= seq + parts)
            .order_by(c.seq)
        )
        with self._db.read() as tx:
            rows = tx.execute(query).all()
        return [(Span(row.offset, row.length), row.text_at, row.part) for row in rows if row.text_at is not None]

    def made(self, job_id: JobId, lines: Mapping[int, Span], faults: list[UnaskedRow], now: datetime) -> int:
        """Give rows their request lines, or end them without one. Return the number of changed rows.

        All changes are one transaction. Rows with a line or an outcome stay unchanged.
        """
        c = requests.c
        row = update(requests).where(c.job_id == job_id, c.seq == bindparam("b_seq"), IS_BLOCKED)
        waits = row.values(offset=bindparam("b_offset"), length=bindparam("b_length"))
        ends = row.values(
            state=bindparam("b_state"), error_code=bindparam("b_code"), error_message=bindparam("b_message"),
            settled_at=now,
        )  # fmt: skip
        spans = [{"b_seq": seq, "b_offset": at.offset, "b_length": at.length} for seq, at in lines.items()]
        ended = [
            {"b_seq": fault.seq, "b_state": fault.state, "b_code": fault.code, "b_message": fault.message}
            for fault in faults
        ]
        moved = 0
        self._db.before_naming_files()
        with self._db.write() as tx:
            for statement, values in ((waits, spans), (ends, ended)):
                if values:
                    moved += tx.execute(statement, values).rowcount
        return moved
