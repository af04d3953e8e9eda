"""Data for telemetry about ended jobs and shards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct
from sqlalchemy import BigInteger, ColumnElement, and_, case, cast, func, or_, select

from orchestrator.core.events import EventKind
from orchestrator.core.model import PICO, Job, JobId
from orchestrator.core.shards import ShardId
from orchestrator.store.database import Database
from orchestrator.store.jobs import job_of
from orchestrator.store.rows_by_document import FoundRow, RowsByDocument
from orchestrator.store.tables import HAS_FAILED, events, jobs, ledger, requests


class Spread(Struct, frozen=True):
    """A histogram: values per bucket (the last is above all bounds), and their sum, minimum and maximum."""

    counts: tuple[int, ...]
    total: int
    least: int
    most: int


class Booked(Struct, frozen=True):
    """A shard's cost in dollars, and histograms of tokens per row. A histogram is None if no row has tokens."""

    cost: Decimal
    input_tokens: Spread | None
    output_tokens: Spread | None


class TelemetryRecords:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._rows = RowsByDocument(database)

    def ended_jobs(self, home: str, since: datetime) -> list[tuple[Job, datetime]]:
        """Return a home's jobs that ended since a time, with their end times, sorted by end time."""
        c = jobs.c
        finished = select(jobs).where(c.home == home, c.finished_at >= since)
        # A job that could not continue has no `finished_at`, but its event has the time.
        failed = (
            select(events.c.job_id, func.max(events.c.at).label("at"))
            .join(jobs, c.id == events.c.job_id)
            .where(c.home == home, c.error.is_not(None), c.finished_at.is_(None))
            .where(events.c.kind == EventKind.FAILED, events.c.at >= since)
            .group_by(events.c.job_id)
        )
        with self._db.read() as tx:
            found = [(job, job.finished_at) for job in map(job_of, tx.execute(finished)) if job.finished_at]
            times = {row.job_id: row.at for row in tx.execute(failed)}
            rows = tx.execute(select(jobs).where(c.id.in_(times))).all() if times else []
        found += [(job, times[job.id]) for job in map(job_of, rows)]
        return sorted(found, key=lambda one: (one[1], one[0].id))

    def booked(self, shard_id: ShardId, bounds: Sequence[int]) -> Booked:
        """Return the cost of a shard in dollars, and histograms of its tokens per row with ascending `bounds`."""
        mine = ledger.c.shard_id == shard_id
        total = select(func.sum(cast(ledger.c.cost, BigInteger))).where(mine)
        with self._db.read() as tx:
            cost = int(tx.scalar(total) or 0) * PICO
        answered = (mine, ledger.c.kind != "uncertain")
        return Booked(
            cost,
            self._spreads(ledger.c.input_tokens, bounds, answered).get(None),
            self._spreads(ledger.c.output_tokens, bounds, answered).get(None),
        )

    def durations(self, shard_id: ShardId, bounds: Sequence[int]) -> dict[str | None, Spread]:
        """Return histograms of a shard's row times in ms, by error code. Rows without a reported time do not
        count.
        """
        c = requests.c
        measured = (c.shard_id == shard_id, c.latency_ms.is_not(None))
        return self._spreads(c.latency_ms, bounds, measured, by=c.error_code)

    def notable_rows(self, shard_id: ShardId, every: int | None, most: int) -> list[FoundRow]:
        """Return the first rows of a shard, in input order, that failed or whose `seq` is a multiple of `every`."""
        c = requests.c
        wanted = HAS_FAILED if every is None else or_(HAS_FAILED, c.seq % every == 0)
        # No condition on the job, because Postgres might then scan all rows of the job.
        return self._rows.where(c.shard_id == shard_id, c.settled_at.is_not(None), wanted, most=most)

    def never_sent(self, job_id: JobId, most: int) -> list[FoundRow]:
        """Return a job's first rows that failed before they were sent, for example because of unreadable
        documents.
        """
        c = requests.c
        # Phrased so that Postgres uses only the index of failures, and no index of most rows.
        is_own = and_(func.coalesce(c.carried_from, "") == "", func.coalesce(c.twin_of, -1) == -1)
        return self._rows.where(c.job_id == job_id, HAS_FAILED, c.shard_id.is_(None), is_own, most=most)

    def _spreads(
        self,
        value: ColumnElement[int],
        bounds: Sequence[int],
        where: tuple[ColumnElement[bool], ...],
        by: ColumnElement[Any] | None = None,
    ) -> dict[str | None, Spread]:
        bucket = case(*((value <= bound, number) for number, bound in enumerate(bounds)), else_=len(bounds))
        columns = (func.count(), func.sum(cast(value, BigInteger)), func.min(value), func.max(value))
        groups = [bucket.label("bucket"), *([] if by is None else [by.label("by")])]
        query = select(*groups, *columns).where(*where).group_by(*(each.name for each in groups))
        found: dict[str | None, list[tuple[int, int, int, int, int]]] = {}
        with self._db.read() as tx:
            for row in tx.execute(query):
                number, *rest = row
                key = None if by is None else rest.pop(0)
                found.setdefault(key, []).append((number, *(int(one) for one in rest)))
        return {key: _spread(parts, len(bounds)) for key, parts in found.items()}


def _spread(parts: Sequence[tuple[int, int, int, int, int]], bounds: int) -> Spread:
    counts = [0] * (bounds + 1)
    for number, count, *_ in parts:
        counts[number] += count
    return Spread(
        tuple(counts), sum(part[2] for part in parts), min(part[3] for part in parts), max(part[4] for part in parts)
    )
