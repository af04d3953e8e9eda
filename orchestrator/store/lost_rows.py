"""Rows that were paid for and whose answers are lost. Paying for them again needs consent."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from decimal import Decimal

from msgspec import Struct
from sqlalchemy import select

from orchestrator.core.model import Job, JobId
from orchestrator.core.shards import Shard
from orchestrator.store import bulk
from orchestrator.store.database import Database
from orchestrator.store.tables import IS_LOST, jobs, ledger, requests, shards

LOST, REPAID = "lost", "repaid"
"""Kinds of ledger lines: for lost rows, and for rows that a person agreed to pay for again."""


class LostRow(Struct, frozen=True):
    """A lost row's ledger line. `made_at` is when the row's batch was submitted, or None if unknown."""

    line: int
    batch: str
    made_at: datetime | None
    cost: Decimal


class LostRows:
    def __init__(self, database: Database) -> None:
        self._db = database

    def like(self, job: Job, shard: Shard, model: str) -> list[LostRow]:
        """Return lost rows at the shard's backend with the same request as a row of this unsent shard.

        `model` is the backend's name for the model. A lost row of another file counts if its cache key is the same. A
        job that carries no answers over asks its rows again, so only its own lost rows count.
        """
        with self._db.read() as tx:
            found = tx.execute(_LOST.where(ledger.c.backend == shard.backend, ledger.c.model == model)).all()
        theirs = [row for row in found if row.home == job.home and _may_share(job, row.job_id)]
        if not theirs:
            return []
        names, keys = self._rows_of(shard)
        return [
            LostRow(row.id, row.batch_id or row.shard_id, row.submitted_at, row.cost)
            for row in theirs
            if (row.series == job.series and (row.custom_id, row.fingerprint) in names) or row.cache_key in keys
        ]

    def agree(self, lost: Collection[LostRow]) -> None:
        values = [(REPAID, one.line) for one in lost]
        with self._db.write() as tx:
            bulk.change(tx, ledger, ("kind",), ("id",), values)

    def _rows_of(self, shard: Shard) -> tuple[set[tuple[str, str]], set[str]]:
        names: set[tuple[str, str]] = set()
        keys: set[str] = set()
        query = select(requests.c.custom_id, requests.c.fingerprint, requests.c.cache_key)
        for row in self._db.stream(query.where(requests.c.shard_id == shard.id)):
            names.add((row.custom_id, row.fingerprint))
            if row.cache_key is not None:
                keys.add(row.cache_key)
        return names, keys


def _may_share(job: Job, other: JobId) -> bool:
    return other == job.id or bool(job.options.get("carry", True))


_r, _l = requests.c, ledger.c
_LOST = (
    select(
        _l.id, _l.job_id, _l.shard_id, _l.cost, _r.custom_id, _r.fingerprint, _r.cache_key, jobs.c.home,
        jobs.c.series, shards.c.batch_id, shards.c.submitted_at,
    )
    .select_from(ledger)
    .join(requests, (_r.job_id == _l.job_id) & (_r.seq == _l.seq))
    .join(jobs, jobs.c.id == _l.job_id)
    .outerjoin(shards, shards.c.id == _l.shard_id)
    .where(IS_LOST)
)  # fmt: skip
