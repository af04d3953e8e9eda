"""Shards: planned with their rows in one transaction, then moved by compare-and-set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import func, insert, select, update

from orchestrator.errors import StateConflict
from orchestrator.model import TRANSITIONS, JobId, RequestState, Shard, ShardId, ShardState
from orchestrator.sharding import Range
from orchestrator.store.database import Database
from orchestrator.store.tables import requests, shards


def _shard(row: Any) -> Shard:
    values = dict(row._mapping)
    values["state"] = ShardState(values["state"])
    return Shard(**values)


class Shards:
    """Verbs on shards."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, shard: Shard, rows: Range) -> None:
        """Record a shard and give it the waiting rows of a range, all or nothing.

        Raises StateConflict where the rows are not those that were counted.
        """
        c = requests.c
        take = (
            update(requests)
            .where(
                c.job_id == shard.job_id,
                c.endpoint == rows.endpoint,
                c.model == rows.model,
                c.seq.between(rows.first, rows.last),
                c.state == RequestState.PENDING,
                c.shard_id.is_(None),
            )
            .values(shard_id=shard.id)
        )
        with self._db.write() as tx:
            tx.execute(insert(shards).values(**asdict(shard)))
            taken = tx.execute(take).rowcount
            if taken != rows.rows:
                raise StateConflict(f"{rows.rows} rows were to go into shard {shard.id}, but {taken} wait")

    def next_number(self, job_id: JobId) -> int:
        """The number of the job's next shard, from 1."""
        with self._db.read() as tx:
            return (tx.scalar(select(func.max(shards.c.number)).where(shards.c.job_id == job_id)) or 0) + 1

    def of_job(self, job_id: JobId) -> list[Shard]:
        """The shards of a job, in their order."""
        query = select(shards).where(shards.c.job_id == job_id).order_by(shards.c.number)
        with self._db.read() as tx:
            return [_shard(row) for row in tx.execute(query)]

    def move(self, shard: Shard, to: ShardState, **facts: Any) -> None:
        """Move a shard from the state it was read in. Raises StateConflict where it is elsewhere by now."""
        if to not in TRANSITIONS[shard.state]:
            raise StateConflict(f"shard {shard.id} cannot go from {shard.state} to {to}")
        self._update(shard, state=to, **facts)

    def note(self, shard: Shard, **facts: Any) -> None:
        """Record facts about a shard whose state stays as it was read."""
        self._update(shard, **facts)

    def _update(self, shard: Shard, **values: Any) -> None:
        statement = update(shards).where(shards.c.id == shard.id, shards.c.state == shard.state).values(**values)
        with self._db.write() as tx:
            if tx.execute(statement).rowcount != 1:
                raise StateConflict(f"shard {shard.id} is no longer {shard.state}")

    def get(self, shard_id: ShardId) -> Shard:
        """The shard with this id."""
        with self._db.read() as tx:
            return _shard(tx.execute(select(shards).where(shards.c.id == shard_id)).one())
