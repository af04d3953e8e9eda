"""Sets of request fields that a provider's models have answered, and waiting rows that could prove other sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime

from sqlalchemy import and_, func, select, true

from orchestrator.core.model import JobId, RequestState, Span
from orchestrator.core.shards import ShardState
from orchestrator.policy.prompt_cache import MARK
from orchestrator.store.database import Database
from orchestrator.store.learned_tables import proven_requests
from orchestrator.store.records import SampleRow
from orchestrator.store.tables import IS_CANARY, IS_WAITING, keeps_from, ledger, requests, shards

NEWEST_SHARDS = 5
"""Number of a model's newest batches whose requests prove field sets that an older version did not record."""


class Proofs:
    def __init__(self, database: Database) -> None:
        self._db = database

    def answered(self, backend: str, endpoint: str, model: str) -> frozenset[str]:
        """Return the field sets that a model has answered. `model` is the backend's name for the model."""
        c = proven_requests.c
        query = select(c.fields).where(c.backend == backend, c.endpoint == endpoint, c.model == model)
        with self._db.read() as tx:
            return frozenset(tx.scalars(query))

    def add(self, backend: str, endpoint: str, model: str, fields: Collection[str], now: datetime) -> None:
        """Record that a model has answered requests with these field sets. A known set keeps its time."""
        if not fields:
            return
        key = {"backend": backend, "endpoint": endpoint, "model": model, "at": now}
        with self._db.write() as tx:
            tx.execute(
                self._db.upsert(proven_requests).on_conflict_do_nothing(), [{**key, "fields": one} for one in fields]
            )

    def cache_use(self, backend: str, model: str, since: datetime) -> tuple[int, int]:
        """Return (tokens read, tokens written) of a model's cache, over jobs that wrote the cache before their
        batches.

        `model` is the backend's name for the model.
        """
        s, c = shards.c, ledger.c
        jobs = select(s.job_id).where(s.backend == backend, s.preflight.startswith(MARK), s.created_at >= since)
        sums = (func.coalesce(func.sum(c.cached_tokens), 0), func.coalesce(func.sum(c.cache_write_tokens), 0))
        query = select(*sums).where(c.job_id.in_(jobs), c.backend == backend, c.model == model)
        with self._db.read() as tx:
            read, written = tx.execute(query).one()
        return int(read), int(written)

    def smallest_waiting(self, job_id: JobId, avoid: tuple[str, ...], *, canary: bool = False) -> list[SampleRow]:
        """Return a job's waiting row with the shortest line for each endpoint, model and task."""
        c = requests.c
        of_job = and_(c.job_id == job_id, IS_WAITING, keeps_from(avoid), IS_CANARY if canary else true())
        kind = (c.endpoint, c.model, c.task)
        sizes = select(*kind, func.min(c.length).label("least"), func.count().label("rows")).where(of_job)
        found = []
        with self._db.read() as tx:
            for group in tx.execute(sizes.group_by(*kind).order_by(*kind)).all():
                of_group = and_(
                    of_job, c.endpoint == group.endpoint, c.model == group.model, c.task == group.task,
                    c.length == group.least,
                )  # fmt: skip
                first = select(c.seq, c.offset, c.length, c.max_output).where(of_group).order_by(c.seq).limit(1)
                if (row := tx.execute(first).first()) is not None:
                    span = Span(row.offset, row.length)
                    found.append(
                        SampleRow(
                            job_id, row.seq, group.endpoint, group.model, group.task, span, row.max_output,
                            int(group.rows),
                        )
                    )  # fmt: skip
        return found

    def first_waiting(
        self, job_id: JobId, avoid: tuple[str, ...], most: int, *, canary: bool = False
    ) -> Iterator[SampleRow]:
        """Yield up to `most` of a job's waiting rows, ordered by endpoint, model and `seq`."""
        c = requests.c
        query = (
            select(c.job_id, c.seq, c.endpoint, c.model, c.task, c.offset, c.length, c.max_output)
            .where(c.job_id == job_id, IS_WAITING, keeps_from(avoid), IS_CANARY if canary else true())
            .order_by(c.endpoint, c.model, c.seq)
            .limit(most)
        )
        for row in self._db.stream(query):
            span = Span(row.offset, row.length)
            yield SampleRow(JobId(row.job_id), row.seq, row.endpoint, row.model, row.task, span, row.max_output)

    def earlier_answers(self, backend: str, endpoint: str, alias: str) -> list[SampleRow]:
        """Return an answered row per job and task from a model's newest batches. `alias` is the model's name in job
        files.
        """
        s, c = shards.c, requests.c
        newest = (
            select(s.id)
            .where(
                s.backend == backend,
                s.state == ShardState.COLLECTED,
                s.endpoint == endpoint,
                s.model == alias,
                s.provider_completed > 0,
            )
            .order_by(s.created_at.desc())
            .limit(NEWEST_SHARDS)
        )
        with self._db.read() as tx:
            ids = tx.scalars(newest).all()
            first = (
                select(func.min(c.seq).label("seq"), c.job_id, c.task)
                .where(c.shard_id.in_(ids), c.state == RequestState.SUCCEEDED)
                .group_by(c.job_id, c.task)
                .subquery()
            )
            query = select(c.job_id, c.seq, c.endpoint, c.model, c.task, c.offset, c.length).join(
                first, and_(c.job_id == first.c.job_id, c.seq == first.c.seq)
            )
            return [
                SampleRow(JobId(row.job_id), row.seq, row.endpoint, row.model, row.task, Span(row.offset, row.length))
                for row in tx.execute(query)
            ]
