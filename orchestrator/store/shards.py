"""Shards: stored with their rows in one transaction, then moved from state to state by compare-and-set."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, TypeVar

from msgspec.structs import asdict
from sqlalchemy import Connection, bindparam, func, insert, or_, select, true, update

from orchestrator.core import tokens
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import StateConflict
from orchestrator.core.model import SUPERSEDED_BY, JobId, RequestState
from orchestrator.core.shards import AT_BACKEND, TRANSITIONS, HoldCode, Shard, ShardId, ShardState
from orchestrator.policy.sharding import Range
from orchestrator.store import bulk
from orchestrator.store.database import Database
from orchestrator.store.tables import IS_CANARY, IS_UNCLEAN, IS_WAITING, jobs, keeps_from, requests, shards

PAGE = 1000
# Built once, because building a statement takes three times as long as executing it.
_BY_ID = select(shards).where(shards.c.id == bindparam("shard"))
_OF_JOB = select(shards).where(shards.c.job_id == bindparam("job")).order_by(shards.c.number)
_UNCLEAN = (
    select(shards)
    .join(jobs, jobs.c.id == shards.c.job_id)
    .where(
        jobs.c.home == bindparam("home"),
        IS_UNCLEAN,
        shards.c.state.in_([state for state in ShardState if state.is_final]),
    )
    .order_by(shards.c.created_at, shards.c.id)
)
_ENDED = (
    select(shards.c.submitted_at, shards.c.started_at, shards.c.ended_at)
    .where(
        shards.c.backend == bindparam("backend"), shards.c.submitted_at.is_not(None), shards.c.ended_at.is_not(None),
        shards.c.started_at.is_not(None),
    )
    .order_by(shards.c.ended_at.desc())
    .limit(bindparam("newest"))
)  # fmt: skip
_SENT = (
    select(shards)
    .where(shards.c.backend == bindparam("backend"), shards.c.submitted_at.is_not(None))
    .order_by(shards.c.submitted_at.desc())
    .limit(bindparam("newest"))
)
T = TypeVar("T")


def shard_of(row: Any) -> Shard:
    values = dict(row._mapping)
    values["state"] = ShardState(values["state"])
    if values["held_code"] is not None:
        values["held_code"] = HoldCode(values["held_code"])
    return Shard(**values)


def _pages(values: list[T]) -> Iterator[list[T]]:
    return (values[first : first + PAGE] for first in range(0, len(values), PAGE))


class Shards:
    def __init__(self, database: Database) -> None:
        self._db = database
        self.numbering = Lock()
        """Held from choosing a shard's number until the shard is stored, because several threads make shards."""

    def add(self, shard: Shard, rows: Range, avoid: tuple[str, ...] = (), *, canary: bool = False) -> None:
        """Store a shard and give it the waiting rows of a range that avoid exactly `avoid`, all or nothing.

        With `canary`, only canary rows count. Raises StateConflict if the number of such rows has changed.
        """
        c = requests.c
        take = (
            update(requests)
            .where(
                c.job_id == shard.job_id,
                c.endpoint == rows.endpoint,
                c.model == rows.model,
                c.seq.between(rows.first, rows.last),
                IS_WAITING,
                keeps_from(avoid),
                IS_CANARY if canary else true(),
            )
            .values(shard_id=shard.id)
        )
        with self._db.write() as tx:
            tx.execute(insert(shards).values(**asdict(shard)))
            taken = tx.execute(take).rowcount
            if taken != rows.rows:
                raise StateConflict(f"{rows.rows} rows were to go into shard {shard.id}, but {taken} wait")

    def adopt(self, shard: Shard, custom_ids: Collection[str]) -> int:
        """Store a shard for an existing batch, with its rows that still wait. Return the number of rows.

        If no row waits, nothing is stored.
        """
        c = requests.c
        query = select(c.seq, c.endpoint, c.model, c.length, c.max_output, IS_WAITING.label("waits"))
        with self._db.write() as tx:
            rows = [
                row
                for some in _pages(sorted(custom_ids))
                for row in tx.execute(bulk.each(query.where(c.job_id == shard.job_id), c.custom_id, some, tx.dialect))
                if row.waits
            ]
            if not rows:
                return 0
            bounds = [row.max_output for row in rows]
            # A batch has rows of one endpoint and model.
            known = asdict(shard) | {
                "endpoint": rows[0].endpoint,
                "model": rows[0].model,
                "rows": len(rows),
                "bytes": sum(row.length + 1 for row in rows),
                "tokens": sum(tokens.estimate(row.length) for row in rows),
                "max_output": None if None in bounds else sum(bounds),
            }
            tx.execute(insert(shards).values(**known))
            take = update(requests).where(c.job_id == shard.job_id)
            for some in _pages([row.seq for row in rows]):
                tx.execute(take.where(c.seq.in_(some)).values(shard_id=shard.id))
        return len(rows)

    def next_number(self, job_id: JobId) -> int:
        with self._db.read() as tx:
            return (tx.scalar(select(func.max(shards.c.number)).where(shards.c.job_id == job_id)) or 0) + 1

    def of_job(self, job_id: JobId) -> list[Shard]:
        """Return the shards of a job, in order of their numbers."""
        with self._db.read() as tx:
            return [shard_of(row) for row in tx.execute(_OF_JOB, {"job": job_id})]

    def of_backend(self, backend: str) -> Iterator[Shard]:
        """Yield a backend's shards of every job, the oldest first."""
        query = select(shards).where(shards.c.backend == backend).order_by(shards.c.created_at, shards.c.id)
        for row in self._db.stream(query):
            yield shard_of(row)

    def asked_at(self, backend: str, batch_id: str) -> datetime | None:
        """Return when orch requested a batch from a backend, or None if the batch is not ours."""
        c = shards.c
        query = select(c.intended_at, c.created_at).where(c.backend == backend, c.batch_id == batch_id).limit(1)
        with self._db.read() as tx:
            found = tx.execute(query).first()
        return None if found is None else found.intended_at or found.created_at

    def uses_file(self, backend: str, file_id: str) -> bool:
        """True if a shard at this backend has the file as its input or as one of its results."""
        c = shards.c
        is_used = or_(c.input_file_id == file_id, c.output_file_id == file_id, c.error_file_id == file_id)
        with self._db.read() as tx:
            return tx.execute(select(c.id).where(c.backend == backend, is_used).limit(1)).first() is not None

    def of_account(self, backend: str, account: str, newest: int = 3) -> list[Shard]:
        """Return an account's newest shards with a batch at a backend."""
        c = shards.c
        query = select(shards).where(c.backend == backend, c.account == account, c.batch_id.is_not(None))
        with self._db.read() as tx:
            return [shard_of(row) for row in tx.execute(query.order_by(c.submitted_at.desc()).limit(newest))]

    def adopt_account(self, backend: str, known: str, account: str) -> None:
        """Move a backend's shards from one account to another, because both names mean the same account."""
        mine = update(shards).where(shards.c.backend == backend, shards.c.account == known)
        with self._db.write() as tx:
            tx.execute(mine.values(account=account))

    def unclean(self, home: str) -> list[Shard]:
        """Return a home's ended shards whose remote files orch still has to find or delete."""
        with self._db.read() as tx:
            return [shard_of(row) for row in tx.execute(_UNCLEAN, {"home": home})]

    def at_backend(self, backend: str) -> list[Shard]:
        """Return every job's shards whose batch counts, or may count, against a backend's quota now."""
        query = select(shards).where(
            shards.c.backend == backend,
            shards.c.state.in_((ShardState.SUBMITTING, ShardState.SUBMITTED)),
            shards.c.preflight.is_(None),
        )
        with self._db.read() as tx:
            return [shard_of(row) for row in tx.execute(query)]

    def intended_since(self, backend: str, since: datetime) -> int:
        """Return the number of batches requested from a backend since a time."""
        query = select(func.count()).where(
            shards.c.backend == backend, shards.c.intended_at >= since, shards.c.preflight.is_(None)
        )
        with self._db.read() as tx:
            return tx.scalar(query) or 0

    def told_tokens(self, backend: str, model: str, newest: int = 20) -> tuple[int, int]:
        """Return the total prompt tokens of the newest completed batches: our estimate, then the provider's count."""
        c = shards.c
        recent = (
            select(c.tokens, c.provider_input_tokens)
            .where(
                c.backend == backend,
                c.model == model,
                c.state == ShardState.COLLECTED,
                c.provider_status == BatchStatus.COMPLETED,
                c.provider_completed == c.rows,
                c.provider_input_tokens > 0,
            )
            .order_by(c.ended_at.desc())
            .limit(newest)
            .subquery()
        )
        total = select(func.coalesce(func.sum(recent.c.tokens), 0), func.sum(recent.c.provider_input_tokens))
        with self._db.read() as tx:
            estimated, told = tx.execute(total).one()
        return int(estimated), int(told or 0)

    def durations(self, backend: str, newest: int = 200) -> list[tuple[float, float]]:
        """Return the seconds from submission to the start and to the end, for the newest ended batches."""
        with self._db.read() as tx:
            return [
                ((began - sent).total_seconds(), (ended - sent).total_seconds())
                for sent, began, ended in tx.execute(_ENDED, {"backend": backend, "newest": newest})
            ]

    def longest_file_wait(self, backend: str, newest: int = 200) -> timedelta | None:
        """Return the longest time from a recent batch's end to the collection of its files, or None if unknown."""
        c = shards.c
        query = (
            select(c.ended_at, c.status_at, c.collected_at)
            .where(
                c.backend == backend, c.collected_at.is_not(None), c.ended_at.is_not(None),
                c.provider_status == BatchStatus.COMPLETED, c.provider_completed > 0,
            )
            .order_by(c.ended_at.desc())
            .limit(newest)
        )  # fmt: skip
        with self._db.read() as tx:
            return max((came - (since or ended) for ended, since, came in tx.execute(query)), default=None)

    def sent_to(self, backend: str, newest: int = 1000) -> list[Shard]:
        """Return the newest shards of all jobs that were sent to a backend, the latest last."""
        with self._db.read() as tx:
            rows = tx.execute(_SENT, {"backend": backend, "newest": newest}).all()
            return [shard_of(row) for row in reversed(rows)]

    def counted_since(self, backend: str, since: datetime) -> list[Shard]:
        """Return every job's shards, preflights too, that are at a backend or ended there after `since`."""
        query = select(shards).where(shards.c.backend == backend)
        query = query.where(or_(shards.c.ended_at > since, shards.c.state.in_(AT_BACKEND)))
        with self._db.read() as tx:
            return [shard_of(row) for row in tx.execute(query).all()]

    def move(self, shard: Shard, to: ShardState, **facts: Any) -> None:
        """Move a shard from the state in which it was read. Raises StateConflict if it has moved since.

        A superseded job sends nothing, so its shards cannot go to `submitting`.
        """
        if to not in TRANSITIONS[shard.state]:
            raise StateConflict(f"shard {shard.id} cannot go from {shard.state} to {to}")
        with self._db.write() as tx:
            if to is ShardState.SUBMITTING:
                _require_current(tx, shard.job_id)
            self._change(tx, shard, state=to, **facts)

    def dissolve(self, shard: Shard, reason: str) -> None:
        """Cancel an unsent shard. Its rows wait for another shard."""
        with self._db.write() as tx:
            self._change(tx, shard, state=ShardState.CANCELLED, held=reason)
            mine = update(requests).where(requests.c.shard_id == shard.id, requests.c.state == RequestState.PENDING)
            tx.execute(mine.values(shard_id=None))

    def note(self, shard: Shard, **facts: Any) -> None:
        """Store facts about a shard. Raises StateConflict if it has left the state in which it was read."""
        with self._db.write() as tx:
            self._change(tx, shard, **facts)

    def _change(self, tx: Connection, shard: Shard, **values: Any) -> None:
        if "held" in values:
            values.setdefault("held_code", None)
        statement = update(shards).where(shards.c.id == shard.id, shards.c.state == shard.state).values(**values)
        if tx.execute(statement).rowcount != 1:
            raise StateConflict(f"shard {shard.id} is no longer {shard.state}")

    def find(self, shard_id: ShardId) -> Shard | None:
        with self._db.read() as tx:
            found = tx.execute(_BY_ID, {"shard": shard_id}).first()
        return None if found is None else shard_of(found)

    def get(self, shard_id: ShardId) -> Shard:
        with self._db.read() as tx:
            return shard_of(tx.execute(_BY_ID, {"shard": shard_id}).one())


def _require_current(tx: Connection, job_id: JobId) -> None:
    """Raise StateConflict if an existing job has superseded this one. Locks the job until the transaction ends."""
    # Locked, so that the superseding process knows afterwards which shards were sent.
    options = tx.scalar(select(jobs.c.options).where(jobs.c.id == job_id).with_for_update(read=True))
    successor = (options or {}).get(SUPERSEDED_BY)
    if successor is not None and tx.execute(select(jobs.c.id).where(jobs.c.id == successor)).first() is not None:
        raise StateConflict(f"job {job_id} is superseded by {successor}")
