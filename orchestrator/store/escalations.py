"""Rows asked again because their answers failed a check. Each row is booked and freed in one transaction.

The same model gets a request that shows the fault, or a stronger model gets the original request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection, bindparam, func, select, update

from orchestrator.core.model import JobId, Span
from orchestrator.core.shards import Shard
from orchestrator.settings.model_lists import Step
from orchestrator.store import bulk
from orchestrator.store.database import Database
from orchestrator.store.records import Settled
from orchestrator.store.rows import book, open_rows
from orchestrator.store.tables import FIRST_LINE, requests


class Escalations:
    def __init__(self, database: Database) -> None:
        self._db = database

    def escalate(self, shard: Shard, failed: Sequence[Settled], step: Step, now: datetime) -> int:
        """Book the cost of failed answers, and let their rows wait for the next model. Return the number of rows.

        The cost and the rows change in one transaction. Rows that have an outcome or left the shard stay unchanged,
        so a repeated call changes nothing. No attempt is counted.
        """
        if not failed:
            return 0
        c = requests.c
        self._db.before_naming_files()
        with self._db.write() as tx:
            seqs = self._booked(tx, shard, failed, "escalated", now)
            going = update(requests).where(c.job_id == shard.job_id, c.seq == bindparam("b_seq"))
            if seqs:
                first = func.coalesce(c.first_model, c.model)
                # The stronger model gets the first request.
                values = going.values(
                    shard_id=None, model=step.alias, first_model=first, avoid=step.avoid, **FIRST_LINE
                )
                tx.execute(values, [{"b_seq": seq} for seq in seqs])
            return len(seqs)

    def inherit(self, job_id: JobId, seqs: Collection[int], of_jobs: Collection[JobId]) -> int:
        """Let unsent rows begin with the model that the same row of another job reached. Return the number of rows.

        The other job has already paid for answers of the weaker models, which failed their check.
        """
        c = requests.c
        columns = (c.seq, c.custom_id, c.fingerprint)
        with self._db.write() as tx:
            unsent = select(*columns).where(
                c.job_id == job_id, c.settled_at.is_(None), c.shard_id.is_(None), c.twin_of.is_(None),
                c.cache_key.is_not(None), c.first_model.is_(None),
            )  # fmt: skip
            mine = {row.custom_id: row for row in tx.execute(bulk.each(unsent, c.seq, seqs, tx.dialect))}
            found = {}
            for of_job in of_jobs if mine else ():
                theirs = select(requests).where(c.job_id == of_job, c.first_model.is_not(None))
                for row in tx.execute(bulk.each(theirs, c.custom_id, mine.keys(), tx.dialect)):
                    if row.fingerprint == mine[row.custom_id].fingerprint and row.model != row.first_model:
                        place = mine[row.custom_id].seq
                        found[place] = (row.model, row.first_model, row.avoid, job_id, place)
            names = ("model", "first_model", "avoid")
            return bulk.change(tx, requests, names, ("job_id", "seq"), found.values())

    def reask_rows(self, shard: Shard, failed: Sequence[Settled], spans: Mapping[int, Span], now: datetime) -> int:
        """Book the cost of failed answers, and let their rows ask the same model again. Return the number of rows.

        `spans` has the byte ranges of the new request lines, by seq. Otherwise works like `escalate`.
        """
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
        by_seq = {row.outcome.seq: row for row in failed}
        seqs = open_rows(tx, shard.id, shard.job_id, by_seq)
        book(tx, shard.id, shard.job_id, shard.backend, ((by_seq[seq], kind) for seq in seqs), now)
        return seqs
