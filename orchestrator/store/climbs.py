"""Rows whose answers failed their check and that go on with a stronger model: booked and freed in one step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import insert, select, update

from orchestrator.ladder import Step
from orchestrator.model import RequestState, Shard
from orchestrator.store.database import Database
from orchestrator.store.rows import Settled, _booked
from orchestrator.store.tables import ledger, requests


class Climbs:
    """The one verb on rows that climb."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def climb(self, shard: Shard, failed: Sequence[Settled], step: Step, now: datetime) -> int:
        """Book what answers cost that failed their check, and let their rows wait for the next rung; how many.

        One transaction: a kill leaves either both or nothing. Rows that have an outcome, or have left the shard, are
        left as they are, so that doing it again changes nothing. No attempt is counted.
        """
        if not failed:
            return 0
        c, by_seq = requests.c, {row.outcome.seq: row for row in failed}
        here = (c.job_id == shard.job_id) & (c.shard_id == shard.id) & (c.state == RequestState.PENDING)
        with self._db.write() as tx:
            query = select(c.seq).where(here, c.seq.in_(list(by_seq)))
            seqs = list(tx.scalars(query if self._db.is_sqlite else query.with_for_update()))
            booked = [
                _booked(shard.id, shard.job_id, shard.backend, row.outcome, kind, price, now)
                for row in map(by_seq.__getitem__, seqs)
                for kind, price in (("climbed", row.price), ("uncertain", row.uncertain))
                if price is not None
            ]
            if booked:
                tx.execute(insert(ledger), booked)
            going = update(requests).where(here, c.seq.in_(seqs))
            tx.execute(going.values(shard_id=None, model=step.alias, avoid=step.avoid))
            return len(seqs)
