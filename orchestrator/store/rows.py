"""Rows (requests): created by builds, given to shards, settled, released again, and read for the merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    exc,
    exists,
    func,
    select,
    update,
)

from orchestrator.core import tokens
from orchestrator.core.errors import InputError
from orchestrator.core.model import FinishedRow, JobId, RequestState, Row, Span, Why
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.sharding import WaitingRow
from orchestrator.store import bulk, records
from orchestrator.store.database import Database
from orchestrator.store.records import Earlier, InShard, Settled
from orchestrator.store.tables import (
    FIRST_LINE,
    IS_AWAITING,
    IS_BLOCKED,
    IS_CANARY,
    IS_REDUCE,
    IS_TWIN,
    IS_WAITING,
    OF_SHARD,
    documents,
    jobs,
    keeps_from,
    ledger,
    requests,
    shards,
)

PAGE = 5000


# The columns are in the order of the index, so that databases use it.
_WAITING = (
    select(requests.c.seq)
    .where(requests.c.job_id == bindparam("job"), IS_WAITING)
    .order_by(requests.c.endpoint, requests.c.model, requests.c.seq)
    .limit(1)
)
_OF_AN_END = (
    "finished_at", "output_path", "cancel_requested_at", "cancel_code", "cancel_reason", "error", "error_code",
)  # fmt: skip
_OF_AN_ATTEMPT = (
    "shard_id", "settled_at", "carried_from", "error_code", "error_message", "result_shard", "result_kind",
    "sent_model", "answered_by", "upstream", "latency_ms", "tier", "cut", "repaired", "odd_end", "unverifiable",
    "quotes", "released_at", "failed_since", "first_model",
)  # fmt: skip


class Rows:
    def __init__(self, database: Database) -> None:
        self._db = database

    def clear(self, job_id: JobId) -> None:
        with self._db.write() as tx:
            tx.execute(delete(requests).where(requests.c.job_id == job_id))

    def add(
        self,
        job_id: JobId,
        rows: Sequence[tuple[Row, Span]],
        earlier: Mapping[str, Earlier],
        now: datetime,
        twins: Mapping[int, int] = MappingProxyType({}),
        whys: Mapping[int, Why] = MappingProxyType({}),
        awaited: Mapping[int, tuple[int, str]] = MappingProxyType({}),
    ) -> None:
        """Store rows with the byte ranges of their lines.

        Rows whose custom_id is in `earlier` take that outcome at no cost. `twins` maps the `seq` of an unsent row to
        the `seq` of the row whose outcome it takes. `whys` has the reason why each remaining row is asked. Rows in
        `awaited` wait for a row of another job. Raises InputError if a custom_id occurs twice in the job.
        """
        given = (
            records.added(
                job_id, row, span, now, whys.get(row.seq), earlier.get(row.custom_id),
                *awaited.get(row.seq, (twins.get(row.seq), None)),
            )
            for row, span in rows
        )  # fmt: skip
        try:
            with self._db.write() as tx:
                bulk.load(tx, requests, records.ADDED, given)
        except Exception as error:
            if isinstance(error.__cause__, exc.IntegrityError):
                raise InputError("a custom_id occurs twice in the job") from error
            raise

    def loaded(self) -> None:
        """Refresh the database's statistics after a job's rows are complete."""
        with self._db.write() as tx:
            bulk.refresh(tx, requests, documents)

    def has_waiting(self, job_id: JobId, *, canary: bool = False) -> bool:
        """True if a row of the job waits for a shard. With `canary`, only canary rows count."""
        if canary:
            return bool(self._of_canary(job_id))
        with self._db.read() as tx:
            return tx.execute(_WAITING, {"job": job_id}).first() is not None

    def waiting(self, job_id: JobId, avoid: tuple[str, ...] = (), *, canary: bool = False) -> Iterator[WaitingRow]:
        """Yield rows without an outcome or shard that avoid exactly `avoid`, sorted by endpoint, model and `seq`.

        With `canary`, only canary rows are yielded.
        """
        c = requests.c
        if canary:
            rows: Iterable[Any] = (row for row in self._of_canary(job_id) if row.avoid == avoid)
        else:
            query = select(*_WAITS).where(c.job_id == job_id, IS_WAITING, keeps_from(avoid))
            rows = self._db.stream(query.order_by(c.endpoint, c.model, c.seq))
        for row in rows:
            size = tokens.estimate(row.length)
            yield WaitingRow(
                row.seq, row.endpoint, row.model, row.length, size, row.inputs, row.max_output, row.attempt
            )

    def _of_canary(self, job_id: JobId) -> list[Any]:
        # These few rows are filtered in Python. In SQL, the other conditions would use indexes over all waiting rows.
        query = select(*_WAITS).where(requests.c.job_id == job_id, IS_CANARY)
        with self._db.read() as tx:
            rows = [
                row for row in tx.execute(query) if row.settled_at is None and row.shard_id is None and row.length
            ]
        return sorted(rows, key=lambda row: (row.endpoint, row.model, row.seq))

    def of_shard(self, shard_id: ShardId) -> Iterator[InShard]:
        """Yield the rows of a shard, in input order."""
        query = select(*_IN_SHARD).where(requests.c.shard_id == shard_id).order_by(requests.c.seq)
        for row in self._db.stream(query):
            yield _in_shard(row)

    def settled(self, shard_ids: Collection[ShardId]) -> dict[str, int]:
        """Return the number of rows with an outcome, for each of these collected shards.

        Rows that continue at another backend have left their shard, so an index alone suffices for the count.
        """
        rows = select(func.count()).where(requests.c.shard_id == bindparam("shard"))
        with self._db.read() as tx:
            return {shard_id: tx.scalar(rows, {"shard": shard_id}) or 0 for shard_id in shard_ids}

    def failed_by_shard(self, job_id: JobId) -> dict[str, int]:
        """Return the number of a job's failed rows for each shard that has failed rows."""
        c = requests.c
        query = select(c.shard_id, func.count()).where(c.job_id == job_id, c.state == RequestState.FAILED)
        with self._db.read() as tx:
            rows = tx.execute(query.where(c.shard_id.is_not(None)).group_by(c.shard_id)).all()
            return dict(map(tuple, rows))

    def custom_ids(self, shard_id: ShardId) -> set[str]:
        query = select(requests.c.custom_id).where(requests.c.shard_id == shard_id)
        return {custom_id for (custom_id,) in self._db.stream(query)}

    def all_ids(self, job_id: JobId) -> Iterator[str]:
        query = select(requests.c.custom_id).where(requests.c.job_id == job_id)
        for (custom_id,) in self._db.stream(query):
            yield custom_id

    def named(self, shard: Shard, custom_ids: Collection[str], *, anywhere: bool = False) -> dict[str, InShard]:
        """Return a shard's rows with these custom_ids. With `anywhere`, rows of its whole job count."""
        query = select(*_IN_SHARD, requests.c.shard_id).where(requests.c.job_id == shard.job_id)
        with self._db.read() as tx:
            rows = tx.execute(bulk.each(query, requests.c.custom_id, list(custom_ids), tx.dialect))
            found = ((_in_shard(row[:-1]), row[-1]) for row in rows)
            return {row.custom_id: row for row, of in found if anywhere or of == shard.id}

    def settle(
        self,
        shard_id: ShardId,
        job_id: JobId,
        backend: str,
        settled: Sequence[Settled],
        now: datetime,
        model: str | None = None,
        *,
        anywhere: bool = False,
    ) -> int:
        """Give rows their outcome and book their cost, in one transaction. Return how many outcomes are new.

        `model` is the backend's name for the model; without it, other jobs cannot take the answer. A row's twins end
        with the row, at no cost. Rows that have an outcome or left the shard (unless `anywhere`) stay unchanged:
        repeating the call after a crash is harmless. The cost of such rows is still booked, once.
        """
        if not settled:
            return 0
        by_seq = {row.outcome.seq: row for row in settled}
        self._db.before_naming_files()
        with self._db.write() as tx:
            fresh = [by_seq[seq] for seq in open_rows(tx, None if anywhere else shard_id, job_id, by_seq)]
            values = {row.outcome.seq: records.settled(shard_id, row, now, model) for row in fresh}
            changed = [(*value, job_id, seq) for seq, value in values.items()]
            bulk.change(tx, requests, records.SETTLED, ("job_id", "seq"), changed)
            twins = [(*values[seq][:-1], job_id, seq) for seq in _with_twins(tx, job_id, values)]
            bulk.change(tx, requests, records.CARRIED, ("job_id", "twin_of"), twins)
            book(tx, shard_id, job_id, backend, ((row, "settled") for row in fresh), now)
            if len(fresh) < len(settled):
                self._book_once(tx, shard_id, job_id, backend, settled, now)
            return len(fresh)

    def _book_once(
        self, tx: Connection, shard_id: ShardId, job_id: JobId, backend: str, rows: Sequence[Settled], now: datetime
    ) -> None:
        lines = _booked(shard_id, job_id, backend, ((row, "settled") for row in rows), now)
        if given := [dict(zip(records.BOOKED, line, strict=True)) for line in lines]:
            tx.execute(self._db.upsert(ledger).on_conflict_do_nothing(), given)

    def free(
        self, shard: Shard, seqs: Collection[int], *, count_attempt: bool, avoid: tuple[str, ...] | None = ()
    ) -> None:
        """Take rows without an outcome out of a shard, to wait for another shard at a backend outside `avoid`.

        If `avoid` is None, the rows avoid the same backends as before.
        """
        c = requests.c
        kept = {} if avoid is None else {"avoid": avoid}
        freed = (
            update(requests)
            .where(c.job_id == shard.job_id, c.seq == bindparam("b_seq"))
            .values(shard_id=None, attempt=c.attempt + int(count_attempt), **kept)
        )
        with self._db.write() as tx:
            if rows := [{"b_seq": seq} for seq in open_rows(tx, shard.id, shard.job_id, seqs)]:
                tx.execute(freed, rows)

    def release(self, shard_id: ShardId, *, count_attempt: bool) -> int:
        """Take the rows without an outcome out of a shard, to wait for another shard. Return the number of rows."""
        statement = (
            update(requests)
            .where(requests.c.shard_id == shard_id, requests.c.state == RequestState.PENDING)
            .values(shard_id=None, attempt=requests.c.attempt + (1 if count_attempt else 0))
        )
        with self._db.write() as tx:
            return tx.execute(statement).rowcount

    def end_open(self, job_id: JobId, state: RequestState, code: str, message: str, now: datetime) -> int:
        """End rows that no shard at a backend holds, and their twins, without a result. Return the number of rows.

        This includes rows that wait for their document's parts, even if the parts continue, and rows that await
        another job's rows.
        """
        planned = select(shards.c.id).where(
            shards.c.job_id == job_id, shards.c.state.in_((ShardState.PENDING, ShardState.CANCELLED))
        )
        c = requests.c
        statement = (
            update(requests)
            .where(c.job_id == job_id, c.state == RequestState.PENDING)
            .values(state=state, error_code=code, error_message=message, settled_at=now)
        )
        twins = statement.where(*ended_twins(job_id))
        with self._db.write() as tx:
            ended = tx.execute(statement.where(IS_WAITING | IS_BLOCKED | c.shard_id.in_(planned))).rowcount
            awaiting = statement.where(IS_AWAITING).values(twin_of=None, carried_from=None)
            return ended + tx.execute(awaiting).rowcount + tx.execute(twins).rowcount

    def retry(
        self, job_id: JobId, states: Sequence[RequestState], *, task: str | None = None,
        awaiting: Mapping[int, tuple[int, str]] = MappingProxyType({}),
    ) -> int:  # fmt: skip
        """Make rows in these states pending again, if they have a request or can get a request. The job continues.

        With `task`, only rows of that task are changed. `awaiting` maps the `seq` of each row that takes another
        job's answer to its `twin_of` and `carried_from`. All changes are one transaction. Returns the number of
        pending rows. Without pending rows, an ended job stays ended, unless it ended with an error.
        """
        c = requests.c
        of_task = () if task is None else (c.task == task,)
        again = (
            update(requests)
            .where(c.job_id == job_id, c.state.in_(states), *of_task, (c.length > 0) | IS_REDUCE)
            .values(
                state=RequestState.PENDING,
                attempt=c.attempt + 1,
                avoid=(),
                # Restart at the first model of the list, because the last may be at a backend that refused the row.
                model=func.coalesce(c.first_model, c.model),
                cost=Decimal(0),
                **dict.fromkeys(_OF_AN_ATTEMPT),
                **FIRST_LINE,
                **dict.fromkeys(records.COUNTS, 0),
            )
        )
        pending = select(func.count()).where(c.job_id == job_id, c.state == RequestState.PENDING)
        with self._db.write() as tx:
            tx.execute(again)
            places = sorted(awaiting)
            for start in range(0, len(places), PAGE):
                open_ = open_rows(tx, None, job_id, places[start : start + PAGE])
                links = [(*awaiting[seq], job_id, seq) for seq in open_]
                bulk.change(tx, requests, ("twin_of", "carried_from"), ("job_id", "seq"), links)
            # A user who retries a stopped job wants all its rows, not only the canary.
            tx.execute(update(requests).where(c.job_id == job_id, IS_CANARY).values(canary=None))
            number = tx.scalar(pending) or 0
            condition = jobs.c.id == job_id if number else (jobs.c.id == job_id) & jobs.c.error.is_not(None)
            tx.execute(update(jobs).where(condition).values(**dict.fromkeys(_OF_AN_END)))
            return number

    def finished(self, job_id: JobId, only: Collection[str] | None = None) -> Iterator[FinishedRow]:
        """Yield every row of a job in input order, open rows too. With `only`, yield only these custom_ids."""
        columns = (*(requests.c[name] for name in records.FINISHED), *OF_SHARD)
        of_shards = select(*columns).outerjoin(shards, shards.c.id == requests.c.result_shard)
        query = of_shards.where(requests.c.job_id == job_id)
        if only is None:
            rows: Iterable[Any] = self._db.stream(query.order_by(requests.c.seq))
        else:
            with self._db.read() as tx:
                found = tx.execute(bulk.each(query, requests.c.custom_id, only, tx.dialect)).all()
            rows = sorted(found, key=lambda row: int(row.seq))
        for row in rows:
            yield records.finished(row)

    def carried(self, job_id: JobId) -> Counter[RequestState]:
        """Return the number of a job's rows that carry an earlier outcome, by state."""
        # In the order of `seq`, SQLite reads the rows in three quarters of the time that the index of states takes.
        each = (func.count().filter(requests.c.state == state) for state in RequestState)
        query = select(*each).where(
            requests.c.job_id == job_id, requests.c.seq >= 0, requests.c.carried_from.is_not(None)
        )
        with self._db.read() as tx:
            return +Counter(dict(zip(RequestState, tx.execute(query).one(), strict=True)))  # without zeros


_FIRST = requests.alias("first")
_IN_SHARD = [
    requests.c[name]
    for name in (
        "seq", "custom_id", "task", "attempt", "offset", "length", "state", "max_output", "again", "first_offset",
        "first_length", "text_at", "part", "parts",
    )
]  # fmt: skip
_WAITS = [
    requests.c[name]
    for name in (
        "seq", "endpoint", "model", "length", "inputs", "max_output", "attempt", "avoid", "settled_at", "shard_id",
    )
]  # fmt: skip


def ended_twins(job_id: JobId) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for a job's open twins of rows that have ended."""
    c = requests.c
    sent = _FIRST.c.job_id == job_id, _FIRST.c.seq == c.twin_of, _FIRST.c.state != RequestState.PENDING
    # OFFSET keeps Postgres from making the subquery a join, which may scan the whole job for each twin.
    has_ended = exists(select(_FIRST.c.seq).where(*sent).correlate(requests).offset(bulk.NONE_SKIPPED))
    return c.job_id == job_id, c.state == RequestState.PENDING, IS_TWIN, has_ended


def _in_shard(row: Sequence[Any]) -> InShard:
    seq, custom_id, task, attempt, offset, length, state, max_output, again, first_offset, first_length, *of = row
    first = None if first_offset is None else Span(first_offset, first_length)
    return InShard(
        seq, custom_id, task, attempt, Span(offset, length), records.STATES[state], max_output, again, first, *of
    )


def open_rows(tx: Connection, shard_id: ShardId | None, job_id: JobId, seqs: Collection[int]) -> list[int]:
    """Return the `seqs` without an outcome in a shard (None: anywhere). Locks the rows until the transaction ends."""
    c = requests.c
    # Shard and state are filtered in Python. In the query, their indexes would find all rows of a job.
    query = select(c.seq, c.shard_id, c.state).where(c.job_id == job_id).with_for_update()
    rows = tx.execute(bulk.each(query, c.seq, sorted(seqs), tx.dialect))
    pending = ((seq, shard) for seq, shard, state in rows if state == RequestState.PENDING)
    return [seq for seq, shard in pending if shard_id in (None, shard)]


def _with_twins(tx: Connection, job_id: JobId, seqs: Collection[int]) -> set[int]:
    query = select(requests.c.twin_of).distinct().where(requests.c.job_id == job_id, IS_TWIN)
    return set(tx.scalars(bulk.each(query, requests.c.twin_of, sorted(seqs), tx.dialect)))


def book(
    tx: Connection, shard_id: ShardId, job_id: JobId, backend: str, rows: Iterable[tuple[Settled, str]], now: datetime
) -> None:
    """Book the costs of a shard's rows, each with its kind, and the possible costs of attempts without an answer."""
    if lines := _booked(shard_id, job_id, backend, rows, now):
        bulk.load(tx, ledger, records.BOOKED, lines)


def _booked(
    shard_id: ShardId, job_id: JobId, backend: str, rows: Iterable[tuple[Settled, str]], now: datetime
) -> list[tuple[Any, ...]]:
    return [
        records.booked(shard_id, job_id, backend, row, kind, price, now)
        for row, of in rows
        for kind, price in ((of, row.price), ("uncertain", row.uncertain))
        if price is not None
    ]
