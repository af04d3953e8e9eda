"""Rows whose answers failed their check and that are re-asked: booked and freed in one step.

Of the same model, with a request that says what was wrong, or of a stronger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, update

from orchestrator.core.model import Span
from orchestrator.core.shards import Shard
from orchestrator.settings.model_lists import Step
from orchestrator.store.database import Database
from orchestrator.store.records import Settled
from orchestrator.store.rows import book, open_rows
from orchestrator.store.tables import requests


class Escalations:
    """Verbs on rows that are re-asked for a bad answer."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def escalate(self, shard: Shard, failed: Sequence[Settled], step: Step, now: datetime) -> int:
        """Book what answers cost that failed their check, and let their rows wait for the next rung; how many.

        One transaction: a kill leaves either both or nothing. Rows that have an outcome, or have left the shard, are
        left as they are, so that doing it again changes nothing. No attempt is counted.
        """
        if not failed:
            return 0
        c = requests.c
        self._db.before_naming_files()
        with self._db.write() as tx:
            seqs = self._booked(tx, shard, failed, "escalated", now)
            going = update(requests).where(c.job_id == shard.job_id, c.seq == bindparam("b_seq"))
            # The stronger model is asked as the first one was.
            anew = {
                "offset": func.coalesce(c.first_offset, c.offset),
                "length": func.coalesce(c.first_length, c.length),
                **{"first_offset": None, "first_length": None, "again": 0},
            }
            if seqs:
                first = func.coalesce(c.first_model, c.model)
                values = going.values(shard_id=None, model=step.alias, first_model=first, avoid=step.avoid, **anew)
                tx.execute(values, [{"b_seq": seq} for seq in seqs])
            return len(seqs)

    def reask_rows(self, shard: Shard, failed: Sequence[Settled], spans: Mapping[int, Span], now: datetime) -> int:
        """The same for rows that are re-asked of their model, by the request lines at `spans` (by seq)."""
        if not failed:
            return 0
        c = requests.c
        self._db.before_naming_files()
        with self._db.write() as tx:
            seqs = self._booked(tx, shard, failed, "reasked", now)
            going = (
                update(requests)
                .where(c.job_id == shard.job_id, c.seq == bindparam("b_seq"))
                .values(
                    shard_id=None,
                    again=c.again + 1,
                    first_offset=func.coalesce(c.first_offset, c.offset),
                    first_length=func.coalesce(c.first_length, c.length),
                    offset=bindparam("b_offset"),
                    length=bindparam("b_length"),
                )
            )
            if seqs:
                places = [(seq, spans[seq]) for seq in seqs]
                tx.execute(
                    going, [{"b_seq": seq, "b_offset": at.offset, "b_length": at.length} for seq, at in places]
                )
            return len(seqs)

    def _booked(self, tx: Connection, shard: Shard, failed: Sequence[Settled], kind: str, now: datetime) -> list[int]:
        """Book answers of rows that are open in a shard; the places of these rows."""
        by_seq = {row.outcome.seq: row for row in failed}
        seqs = open_rows(tx, shard.id, shard.job_id, by_seq)
        book(tx, shard.id, shard.job_id, shard.backend, ((by_seq[seq], kind) for seq in seqs), now)
        return seqs
