"""Rows held back because a backend refused all rows of the same job, task and model.

A held row keeps its `seq` and its attempts, and avoids the backend until the hold is lifted. Before that, a single
row may be sent as a probe.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, select, update

from orchestrator.core.model import JobId, RequestState
from orchestrator.store.database import Database
from orchestrator.store.learned_tables import refusal_holds
from orchestrator.store.records import RefusalHold
from orchestrator.store.rows import ended_twins
from orchestrator.store.tables import IS_WAITING, keeps_from, requests, shards

_OF_JOB = select(refusal_holds).where(refusal_holds.c.job_id == bindparam("job")).order_by(*refusal_holds.primary_key)


class RefusalHolds:
    def __init__(self, database: Database) -> None:
        self._db = database

    def put(self, hold: RefusalHold) -> None:
        """Store a hold. Waiting rows of its job, task and model then avoid the backend."""
        values = {name: getattr(hold, name) for name in RefusalHold.__struct_fields__}
        keys = [column.name for column in refusal_holds.primary_key]
        facts = {name: value for name, value in values.items() if name not in keys}
        with self._db.write() as tx:
            upsert = self._db.upsert(refusal_holds).values(values)
            tx.execute(upsert.on_conflict_do_update(index_elements=keys, set_=facts))
            for avoid in _avoided(tx, hold):
                if hold.backend not in avoid:
                    _reroute(tx, hold, avoid, tuple(sorted({*avoid, hold.backend})))

    def of(self, job_id: JobId) -> list[RefusalHold]:
        with self._db.read() as tx:
            return [RefusalHold(**row._mapping) for row in tx.execute(_OF_JOB, {"job": job_id})]

    def waiting(self, hold: RefusalHold) -> int:
        """Return the number of rows that a hold keeps from its backend."""
        with self._db.read() as tx:
            found = tx.execute(select(requests.c.avoid, func.count()).where(*_waits(hold)).group_by(requests.c.avoid))
            return sum(rows for avoid, rows in found if hold.backend in avoid)

    def lift(self, holds: Iterable[RefusalHold]) -> None:
        """Delete these holds, and let their rows go to the backends again."""
        with self._db.write() as tx:
            for hold in holds:
                tx.execute(delete(refusal_holds).where(*_is(hold)))
                for avoid in _avoided(tx, hold):
                    _reroute(tx, hold, avoid, _without(avoid, hold.backend))

    def probe(self, hold: RefusalHold, again_at: datetime) -> bool:
        """Release one held row as a probe. The next probe is due at `again_at`. Returns False if no row waits."""
        c = requests.c
        with self._db.write() as tx:
            tx.execute(update(refusal_holds).where(*_is(hold)).values(probe_at=again_at))
            for avoid in _avoided(tx, hold):
                if hold.backend not in avoid:
                    continue
                first = tx.scalar(select(c.seq).where(*_waits(hold), keeps_from(avoid)).order_by(c.seq).limit(1))
                going = update(requests).where(c.job_id == hold.job_id, c.seq == first)
                tx.execute(going.values(avoid=_without(avoid, hold.backend)))
                return True
            return False

    def end(self, hold: RefusalHold, now: datetime) -> int:
        """Fail the rows that still wait, with the provider's code and message. Return their number, twins included.

        The failed rows are released from quarantine at once, so the next run of their job file asks them again.
        """
        ended = update(requests).values(
            state=RequestState.FAILED, error_code=hold.code, error_message=hold.message, settled_at=now,
            released_at=now,
        )  # fmt: skip
        twins = ended.where(*ended_twins(hold.job_id))
        with self._db.write() as tx:
            rows = 0
            for avoid in _avoided(tx, hold):
                if hold.backend in avoid:
                    rows += tx.execute(ended.where(*_waits(hold), keeps_from(avoid))).rowcount
            return rows + (tx.execute(twins).rowcount if rows else 0)

    def has_answers(self, job_id: JobId, backend: str | None, model: str, task: str) -> bool:
        """True if a backend has answered a row of this job, model and task. With None, any backend counts."""
        c, s = requests.c, shards.c
        there = select(s.id).where(s.job_id == job_id, s.model == model)
        if backend is not None:
            there = there.where(s.backend == backend)
        query = select(c.seq).where(
            c.job_id == job_id,
            c.state == RequestState.SUCCEEDED,
            c.task == task,
            c.carried_from.is_(None),
            c.result_shard.in_(there),
        )
        with self._db.read() as tx:
            return tx.execute(query.limit(1)).first() is not None


def _is(hold: RefusalHold) -> tuple[ColumnElement[bool], ...]:
    c = refusal_holds.c
    return c.job_id == hold.job_id, c.backend == hold.backend, c.model == hold.model, c.task == hold.task


def _waits(hold: RefusalHold) -> tuple[ColumnElement[bool], ...]:
    c = requests.c
    return c.job_id == hold.job_id, IS_WAITING, c.model == hold.model, c.task == hold.task


def _avoided(tx: Connection, hold: RefusalHold) -> list[tuple[str, ...]]:
    found = tx.scalars(select(requests.c.avoid).distinct().where(*_waits(hold)))
    return sorted({avoid or () for avoid in found})


def _reroute(tx: Connection, hold: RefusalHold, avoid: tuple[str, ...], to: tuple[str, ...]) -> None:
    tx.execute(update(requests).where(*_waits(hold), keeps_from(avoid)).values(avoid=to))


def _without(avoid: tuple[str, ...], backend: str) -> tuple[str, ...]:
    return tuple(name for name in avoid if name != backend)
