"""Sizes of work: a job's open rows, and lengths of earlier prompts and answers of the same task."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, FromClause, func, select, true

from orchestrator.core.model import JobId, RequestState, Span
from orchestrator.store.database import Database
from orchestrator.store.records import OpenRows
from orchestrator.store.tables import IS_AWAITING, IS_CANARY, IS_ORIGINAL, requests

_PRIME, _STEP = 9_973, 6_163
"""Sorting rows by `seq` times the step, modulo the prime, spreads a sample evenly over a job."""


class Sizes:
    def __init__(self, database: Database) -> None:
        self._db = database

    def open_work(self, job_id: JobId, *, canary: bool = False, awaiting: bool = False) -> list[OpenRows]:
        """Return a job's open rows that it sends itself, grouped by the facts that decide their cost and backend.

        With `canary`, only canary rows count. With `awaiting`, only rows that await another job's rows count.
        """
        c = requests.c
        return self._grouped(
            requests, c.job_id == job_id, c.state == RequestState.PENDING, c.length > 0,
            IS_AWAITING if awaiting else c.twin_of.is_(None), IS_CANARY if canary else true(),
        )  # fmt: skip

    def last_work(self, shard_id: str, rows: int) -> list[OpenRows]:
        """Return the last `rows` open rows of a shard, grouped as by `open_work`."""
        c = requests.c
        open_rows = select(requests).where(c.shard_id == shard_id, c.state == RequestState.PENDING, c.length > 0)
        return self._grouped(open_rows.order_by(c.seq.desc()).limit(rows).subquery())

    def _grouped(self, source: FromClause, *where: ColumnElement[bool]) -> list[OpenRows]:
        c = source.c
        groups = (c.endpoint, c.model, c.task, c.prompt_version, c.avoid, c.shard_id)
        query = (
            select(
                *groups,
                func.count().label("rows"),
                func.sum(c.length).label("bytes"),
                func.sum(c.max_output).label("most"),
                func.count(c.max_output).label("bounded"),
            )
            .where(*where)
            .group_by(*groups)
            .order_by(*groups)
        )
        with self._db.read() as tx:
            return [
                OpenRows(
                    row.endpoint, row.model, row.task, row.prompt_version, row.avoid, row.shard_id, row.rows,
                    int(row.bytes), int(row.most) if row.bounded == row.rows else None,
                )
                for row in tx.execute(query)
            ]  # fmt: skip

    def output_lengths(
        self, runs: Sequence[JobId], task: str, prompt_version: str, most: int = 2000
    ) -> dict[int, int]:
        """Return the number of a task's answers of each length in tokens, from a sample spread over these runs' rows.

        Rows are in document order and settle in batches, so the newest answers are often the longest or the shortest.
        """
        c = requests.c
        sample = (
            select(c.output_tokens)
            .where(
                c.job_id.in_(runs),
                c.task == task,
                c.prompt_version == prompt_version,
                c.state == RequestState.SUCCEEDED,
                IS_ORIGINAL,
            )
            .order_by(c.seq % _PRIME * _STEP % _PRIME, c.job_id.desc(), c.seq)
            .limit(most)
            .subquery()
        )
        with self._db.read() as tx:
            query = select(sample.c.output_tokens, func.count()).group_by(sample.c.output_tokens)
            return {int(tokens): count for tokens, count in tx.execute(query)}

    def prompt_sizes(self, runs: Sequence[JobId], task: str, prompt_version: str) -> tuple[int, int, int]:
        """Return the number of answers to a task in these runs, and their total prompt tokens and line bytes."""
        c = requests.c
        query = select(
            func.count(), func.coalesce(func.sum(c.input_tokens), 0), func.coalesce(func.sum(c.length), 0)
        ).where(
            c.job_id.in_(runs),
            c.task == task,
            c.prompt_version == prompt_version,
            c.state == RequestState.SUCCEEDED,
            c.input_tokens > 0,
            IS_ORIGINAL,
        )
        with self._db.read() as tx:
            rows, tokens, size = tx.execute(query).one()
            return rows, int(tokens), int(size)

    def sample(self, job_id: JobId, task: str, many: int) -> list[Span]:
        """Return the byte ranges of up to `many` request lines of a task, spread evenly over the job."""
        c = requests.c
        mine = (c.job_id == job_id, c.task == task, c.length > 0)
        with self._db.read() as tx:
            rows = tx.scalar(select(func.count()).where(*mine)) or 0
            step = max(1, rows // many)
            numbered = select(c.offset, c.length, func.row_number().over(order_by=c.seq).label("nth")).where(*mine)
            picked = numbered.subquery()
            query = select(picked.c.offset, picked.c.length).where(picked.c.nth % step == 0).limit(many)
            return [Span(offset, length) for offset, length in tx.execute(query)]

    def cut_at(self, runs: Sequence[JobId], task: str, prompt_version: str) -> int | None:
        """Return the highest limit, in tokens, at which an answer to a task was cut off in these runs, or None."""
        c = requests.c
        query = select(func.max(c.max_output)).where(
            c.job_id.in_(runs),
            c.task == task,
            c.prompt_version == prompt_version,
            c.state.in_((RequestState.SUCCEEDED, RequestState.FAILED)),
            c.output_tokens >= c.max_output,
            IS_ORIGINAL,
        )
        with self._db.read() as tx:
            found = tx.scalar(query)
        return None if found is None else int(found)

    def mean_outputs(self, job_id: JobId) -> dict[str, float]:
        """Return the mean output tokens of a job's own answers, by task."""
        c = requests.c
        query = (
            select(c.task, func.avg(c.output_tokens))
            .where(c.job_id == job_id, c.state == RequestState.SUCCEEDED, IS_ORIGINAL)
            .group_by(c.task)
        )
        with self._db.read() as tx:
            return {task: float(mean) for task, mean in tx.execute(query)}
