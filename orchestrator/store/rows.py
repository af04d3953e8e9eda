"""Requests: built, carried over from an earlier run, given to shards, settled, released again, read for the merge."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, case, delete, exc, func, insert, select, true, update

from orchestrator import tokens
from orchestrator.errors import InputError
from orchestrator.model import (
    FinishedRow,
    JobId,
    Outcome,
    Price,
    RequestState,
    Row,
    ShardId,
    ShardState,
    Span,
    Usage,
    Why,
)
from orchestrator.sharding import Waiting
from orchestrator.store.database import Database
from orchestrator.store.tables import (
    HAS_KEY,
    IS_BLOCKED,
    IS_CANARY,
    IS_FRESH,
    IS_ORIGINAL,
    IS_REDUCE,
    IS_WAITING,
    jobs,
    keeps_from,
    ledger,
    requests,
    shards,
)

PAGE = 5000
CARRIED = (
    "state", "settled_at", "result_shard", "result_kind", "result_offset", "result_length", "sent_model",
    "answered_by", "upstream", "latency_ms", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens",
    "cache_write_tokens", "tier", "error_code", "error_message",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Earlier:
    """The outcome that an earlier run has for a request; `facts` are the columns that carry over.

    `cut_from_tokens` is how long the document was before it was cut, where it was.
    """

    custom_id: str
    fingerprint: str
    state: RequestState
    error_code: str | None
    job_id: str
    facts: dict[str, Any]
    cut_from_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """What a row of an earlier run was made of, and how it ended."""

    fingerprint: str
    content: str | None
    wording: str | None
    prompt_version: str
    model: str
    state: RequestState


@dataclass(frozen=True, slots=True)
class Settled:
    """A row's outcome, what it cost (None: nothing is booked), and what sends without an answer may have cost."""

    outcome: Outcome
    price: Price | None
    uncertain: Price | None = None


@dataclass(frozen=True, slots=True)
class InShard:
    """A row of a shard: who it is, where its request line lies, and the most tokens that its answer may have.

    `again` counts how often its model was shown what was wrong with its answer; then `first` is where the line lies
    that does not show that.
    """

    seq: int
    custom_id: str
    task: str
    attempt: int
    span: Span
    state: RequestState
    max_output: int | None = None
    again: int = 0
    first: Span | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Open rows that are alike: `bytes` of their lines, and the most tokens of their answers (None: no bound).

    `shard_id` is None for rows that wait; those keep away from `avoid`.
    """

    endpoint: str
    model: str
    task: str
    prompt_version: str
    avoid: str | None
    shard_id: str | None
    rows: int
    bytes: int
    max_output: int | None


class Rows:
    """Verbs on requests."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def clear(self, job_id: JobId) -> None:
        """Drop what a build that was cut off left."""
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
    ) -> None:
        """Record rows with where their lines lie; those in `earlier` (by custom_id) carry that outcome over, unpaid.

        `twins` (by place) are not sent: they take the outcome of the row at the place they name, when it has one.
        `whys` (by place) say why the others are asked.
        Raises InputError naming a custom_id that the job has already.
        """
        fresh: list[dict[str, Any]] = []
        carried: list[dict[str, Any]] = []
        for row, span in rows:
            known = earlier.get(row.custom_id)
            made = _new(job_id, row, span, now, whys.get(row.seq))
            if known is None:
                fresh.append({**made, "twin_of": twins.get(row.seq)})
            else:
                carried.append({**made, **known.facts, "carried_from": known.job_id})
        try:
            with self._db.write() as tx:
                for batch in (fresh, carried):
                    if batch:
                        tx.execute(insert(requests), batch)
        except Exception as error:
            if isinstance(error.__cause__, exc.IntegrityError):
                raise InputError("a custom_id occurs twice in the job") from error
            raise

    def known_ids(self, job_id: JobId, custom_ids: Sequence[str]) -> frozenset[str]:
        """Those of the ids that the job has already."""
        query = select(requests.c.custom_id).where(requests.c.job_id == job_id, requests.c.custom_id.in_(custom_ids))
        with self._db.read() as tx:
            return frozenset(tx.scalars(query))

    def earlier(self, runs: Sequence[JobId], wanted: Mapping[str, str]) -> dict[str, Earlier]:
        """The newest outcome that one of these runs (oldest first) got afresh for the same request.

        `wanted` gives each custom_id's fingerprint: an answer to an older wording counts again when that returns.
        One that was released from quarantine since is none.
        """
        if not runs:
            return {}
        # The runs are told apart here and not in the query: by custom_id an index finds the few fresh answers,
        # while a join by job would look for every id in every night.
        query = select(requests).where(
            IS_FRESH,
            requests.c.custom_id.in_(list(wanted)),
            requests.c.fingerprint.in_(list(set(wanted.values()))),
            requests.c.state.in_((RequestState.SUCCEEDED, RequestState.FAILED)),
        )
        age = {job_id: number for number, job_id in enumerate(runs)}
        with self._db.read() as tx:
            rows = [
                row for row in tx.execute(query) if row.job_id in age and wanted[row.custom_id] == row.fingerprint
            ]
        rows.sort(key=lambda row: age[row.job_id])
        newest = {row.custom_id: row for row in rows}
        return {key: _earlier(row) for key, row in newest.items() if row.released_at is None}

    def before(self, job_id: JobId, custom_ids: Sequence[str]) -> dict[str, Before]:
        """What a run made these rows of, as far as it has them."""
        c = requests.c
        columns = (c.custom_id, c.fingerprint, c.content, c.wording, c.prompt_version, c.model, c.state)
        query = select(*columns).where(c.job_id == job_id, c.custom_id.in_(custom_ids))
        with self._db.read() as tx:
            return {row[0]: Before(*row[1:6], RequestState(row[6])) for row in tx.execute(query)}

    def gone(self, job_id: JobId, previous: JobId) -> Iterator[str]:
        """The documents, in their order, of which one run has rows and a later one has none."""
        c = requests.c
        before, now = (select(c.document).where(c.job_id == run) for run in (previous, job_id))
        found = before.except_(now).subquery()
        for row in self._db.stream(select(found.c.document).order_by(found.c.document), PAGE):
            yield row.document

    def answers(self, home: str, keys: Collection[str], *, checked: bool) -> dict[tuple[str, str, str], Earlier]:
        """The newest answer that a job of this home got afresh to each request, model and backend.

        By cache key, backend, and the model's name that was asked for there. With `checked`, only answers that have
        passed the checks of a task: rows of a ready batch file were put to none.
        """
        c = requests.c
        query = (
            select(requests, shards.c.backend)
            .join(shards, shards.c.id == c.result_shard)
            .join(jobs, jobs.c.id == c.job_id)
            .where(HAS_KEY, c.cache_key.in_(keys), c.state == RequestState.SUCCEEDED, jobs.c.home == home)
            # What was asked with the fault of a first answer shown is no answer to this request.
            .where(c.sent_model.is_not(None), c.first_offset.is_(None), c.task != "" if checked else true())
            .order_by(c.settled_at, c.job_id, c.seq)
        )
        with self._db.read() as tx:
            return {(row.cache_key, row.backend, row.sent_model): _earlier(row) for row in tx.execute(query)}

    def originals(self, job_id: JobId, keys: Collection[str]) -> dict[tuple[str, str, str], int]:
        """The places of the job's rows that are asked for themselves, by cache key, model and task."""
        c = requests.c
        # The job is told apart here and not in the query, which would look at every row of it.
        query = select(c.job_id, c.cache_key, c.model, c.task, c.seq).where(HAS_KEY, c.cache_key.in_(keys))
        with self._db.read() as tx:
            rows = tx.execute(query)
            return {(row.cache_key, row.model, row.task): row.seq for row in rows if row.job_id == job_id}

    def same(self, job_id: JobId, other_id: JobId) -> int:
        """How many rows of a job stand in another at the same place, with the same identity and fingerprint."""
        mine, theirs = requests.alias(), requests.alias()
        alike = (mine.c.seq == theirs.c.seq) & (mine.c.custom_id == theirs.c.custom_id)
        query = (
            select(func.count())
            .select_from(mine.join(theirs, alike & (mine.c.fingerprint == theirs.c.fingerprint)))
            .where(mine.c.job_id == job_id, theirs.c.job_id == other_id)
        )
        with self._db.read() as tx:
            return tx.scalar(query) or 0

    def has_waiting(self, job_id: JobId, *, canary: bool = False) -> bool:
        """Whether a row of the job waits for a shard; with `canary`, one of those that go first."""
        query = select(requests.c.seq).where(requests.c.job_id == job_id, IS_WAITING, _among(canary)).limit(1)
        with self._db.read() as tx:
            return tx.execute(query).first() is not None

    def open_work(self, job_id: JobId, *, canary: bool = False) -> list[Work]:
        """The rows of a job without outcome that are sent, by what decides their cost and place.

        With `canary`, only those that go first.
        """
        c = requests.c
        groups = (c.endpoint, c.model, c.task, c.prompt_version, c.avoid, c.shard_id)
        query = (
            select(
                *groups,
                func.count().label("rows"),
                func.sum(c.length).label("bytes"),
                func.sum(c.max_output).label("most"),
                func.count(c.max_output).label("bounded"),
            )
            .where(c.job_id == job_id, c.state == RequestState.PENDING, c.twin_of.is_(None), c.length > 0)
            .where(_among(canary))
            .group_by(*groups)
            .order_by(*groups)
        )
        with self._db.read() as tx:
            return [
                Work(
                    row.endpoint, row.model, row.task, row.prompt_version, row.avoid, row.shard_id, row.rows,
                    int(row.bytes), int(row.most) if row.bounded == row.rows else None,
                )
                for row in tx.execute(query)
            ]  # fmt: skip

    def output_lengths(
        self, runs: Sequence[JobId], task: str, prompt_version: str, newest: int = 2000
    ) -> dict[int, int]:
        """How many of the newest answers that these runs got to a task had so many tokens."""
        c = requests.c
        recent = (
            select(c.output_tokens)
            .where(
                c.job_id.in_(runs),
                c.task == task,
                c.prompt_version == prompt_version,
                c.state == RequestState.SUCCEEDED,
                IS_ORIGINAL,
            )
            .order_by(c.settled_at.desc())
            .limit(newest)
            .subquery()
        )
        with self._db.read() as tx:
            query = select(recent.c.output_tokens, func.count()).group_by(recent.c.output_tokens)
            return {int(tokens): count for tokens, count in tx.execute(query)}

    def prompt_sizes(self, runs: Sequence[JobId], task: str, prompt_version: str) -> tuple[int, int, int]:
        """Of the answers that these runs got to a task: how many, their prompts' tokens, the bytes of their lines."""
        c = requests.c
        query = select(
            func.count(), func.coalesce(func.sum(c.input_tokens), 0), func.coalesce(func.sum(c.length), 0)
        ).where(
            c.job_id.in_(runs),
            c.task == task,
            c.prompt_version == prompt_version,
            c.state == RequestState.SUCCEEDED,
            c.input_tokens > 0,
            IS_ORIGINAL,
        )
        with self._db.read() as tx:
            rows, tokens, size = tx.execute(query).one()
            return rows, int(tokens), int(size)

    def sample(self, job_id: JobId, task: str, many: int) -> list[Span]:
        """Where the request lines of up to so many rows of a task lie, spread evenly over the job."""
        c = requests.c
        mine = (c.job_id == job_id, c.task == task, c.length > 0)
        with self._db.read() as tx:
            rows = tx.scalar(select(func.count()).where(*mine)) or 0
            step = max(1, rows // many)
            numbered = select(c.offset, c.length, func.row_number().over(order_by=c.seq).label("nth")).where(*mine)
            picked = numbered.subquery()
            query = select(picked.c.offset, picked.c.length).where(picked.c.nth % step == 0).limit(many)
            return [Span(offset, length) for offset, length in tx.execute(query)]

    def cut_at(self, runs: Sequence[JobId], task: str, prompt_version: str) -> int | None:
        """The highest bound, in tokens, at which an answer to a task was cut off in these runs; None: none was."""
        c = requests.c
        query = select(func.max(c.max_output)).where(
            c.job_id.in_(runs),
            c.task == task,
            c.prompt_version == prompt_version,
            c.state.in_((RequestState.SUCCEEDED, RequestState.FAILED)),
            c.output_tokens >= c.max_output,
            IS_ORIGINAL,
        )
        with self._db.read() as tx:
            found = tx.scalar(query)
        return None if found is None else int(found)

    def mean_outputs(self, job_id: JobId) -> dict[str, float]:
        """The mean tokens of the answers that a job got itself, by task."""
        c = requests.c
        query = (
            select(c.task, func.avg(c.output_tokens))
            .where(c.job_id == job_id, c.state == RequestState.SUCCEEDED, IS_ORIGINAL)
            .group_by(c.task)
        )
        with self._db.read() as tx:
            return {task: float(mean) for task, mean in tx.execute(query)}

    def avoided(self, job_id: JobId) -> list[str | None]:
        """Which backends rows that wait have to keep away from; None stands for rows that may go anywhere."""
        query = select(requests.c.avoid).distinct().where(requests.c.job_id == job_id, IS_WAITING)
        with self._db.read() as tx:
            return sorted(tx.scalars(query), key=lambda name: name or "")

    def waiting(self, job_id: JobId, avoid: str | None = None, *, canary: bool = False) -> Iterator[Waiting]:
        """Rows without outcome and without shard that keep away from `avoid`, sorted by endpoint, model and place.

        With `canary`, only those that go first.
        """
        c = requests.c
        query = (
            select(c.seq, c.endpoint, c.model, c.length, c.inputs, c.max_output, c.attempt)
            .where(c.job_id == job_id, IS_WAITING, keeps_from(avoid), _among(canary))
            .order_by(c.endpoint, c.model, c.seq)
        )
        for row in self._db.stream(query, PAGE):
            yield Waiting(
                row.seq,
                row.endpoint,
                row.model,
                row.length,
                tokens.estimate(row.length),
                row.inputs,
                row.max_output,
                row.attempt,
            )

    def of_shard(self, shard_id: ShardId) -> Iterator[InShard]:
        """The rows of a shard, in input order."""
        yield from self._in_shard(requests.c.shard_id == shard_id)

    def named(self, job_id: JobId, custom_ids: Collection[str]) -> Iterator[InShard]:
        """The rows of a job that have these ids, wherever they are, in input order."""
        yield from self._in_shard((requests.c.job_id == job_id) & requests.c.custom_id.in_(custom_ids))

    def _in_shard(self, which: ColumnElement[bool]) -> Iterator[InShard]:
        c = requests.c
        query = (
            select(
                c.seq, c.custom_id, c.task, c.attempt, c.offset, c.length, c.state, c.max_output, c.again,
                c.first_offset, c.first_length,
            )
            .where(which)
            .order_by(c.seq)
        )  # fmt: skip
        for row in self._db.stream(query, PAGE):
            span = Span(row.offset, row.length)
            first = None if row.first_offset is None else Span(row.first_offset, row.first_length)
            state = RequestState(row.state)
            yield InShard(
                row.seq, row.custom_id, row.task, row.attempt, span, state, row.max_output, row.again, first
            )

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
        """Give rows their outcome and book what they cost, in one transaction; how many had none before.

        `model` is the name that the backend was asked for; other jobs take no answer of which it is not known. Twins
        of a row end with it, at no cost. Rows that have an outcome already, or are in another shard by now (unless
        they are taken from `anywhere`), are left as they are: doing it again after a crash changes nothing. What was
        paid for them here is booked all the same, once.
        """
        if not settled:
            return 0
        by_seq = {row.outcome.seq: row for row in settled}
        open_rows = select(requests.c.seq).where(
            requests.c.job_id == job_id,
            true() if anywhere else requests.c.shard_id == shard_id,
            requests.c.state == RequestState.PENDING,
            requests.c.seq.in_(list(by_seq)),
        )
        with self._db.write() as tx:
            if not self._db.is_sqlite:
                open_rows = open_rows.with_for_update()
            fresh = [by_seq[seq] for seq in tx.scalars(open_rows)]
            if fresh:
                tx.execute(_SETTLE, [_settled(shard_id, job_id, row, now, model) for row in fresh])
                self._end_twins(tx, job_id, _FIRST.c.seq.in_([row.outcome.seq for row in fresh]))
            booked = [
                _booked(shard_id, job_id, backend, row.outcome, kind, price, now)
                for row in settled
                for kind, price in (("settled", row.price), ("uncertain", row.uncertain))
                if price is not None
            ]
            if booked and len(fresh) == len(settled):
                tx.execute(insert(ledger), booked)
            elif booked:
                tx.execute(self._db.upsert(ledger).on_conflict_do_nothing(), booked)
            return len(fresh)

    @staticmethod
    def _end_twins(tx: Connection, job_id: JobId, first: ColumnElement[bool]) -> int:
        """Give twins the outcome of the row that was sent for them, where it has one; how many."""
        c = requests.c
        statement = (
            update(requests)
            .where(c.job_id == job_id, c.twin_of == _FIRST.c.seq, c.state == RequestState.PENDING)
            .where(_FIRST.c.job_id == job_id, _FIRST.c.state != RequestState.PENDING, first)
            .values({name: _FIRST.c[name] for name in CARRIED})
        )
        return tx.execute(statement).rowcount

    def free(self, shard_id: ShardId, seqs: Sequence[int], *, count_attempt: bool, avoid: str | None = None) -> None:
        """Rows of a shard that have no outcome wait for another one: anywhere, or not at `avoid`."""
        c = requests.c
        statement = (
            update(requests)
            .where(c.shard_id == shard_id, c.seq.in_(seqs), c.state == RequestState.PENDING)
            .values(shard_id=None, avoid=avoid, attempt=c.attempt + int(count_attempt))
        )
        with self._db.write() as tx:
            tx.execute(statement)

    def release(self, shard_id: ShardId, *, count_attempt: bool) -> int:
        """Rows of a shard that have no outcome wait for another one; how many."""
        statement = (
            update(requests)
            .where(requests.c.shard_id == shard_id, requests.c.state == RequestState.PENDING)
            .values(shard_id=None, attempt=requests.c.attempt + (1 if count_attempt else 0))
        )
        with self._db.write() as tx:
            return tx.execute(statement).rowcount

    def end_open(self, job_id: JobId, state: RequestState, code: str, message: str, now: datetime) -> int:
        """Give rows that no shard at a backend holds, and their twins, an outcome without a result; how many.

        Those that need the answers to their document's parts are among them, whatever becomes of these.
        """
        planned = select(shards.c.id).where(
            shards.c.job_id == job_id, shards.c.state.in_((ShardState.PENDING, ShardState.CANCELLED))
        )
        c = requests.c
        statement = (
            update(requests)
            .where(c.job_id == job_id, c.state == RequestState.PENDING)
            .where(IS_WAITING | IS_BLOCKED | c.shard_id.in_(planned))
            .values(state=state, error_code=code, error_message=message, settled_at=now)
        )
        with self._db.write() as tx:
            return tx.execute(statement).rowcount + self._end_twins(tx, job_id, true())

    def retry(self, job_id: JobId, states: Sequence[RequestState], *, task: str | None = None) -> int:
        """Rows with these outcomes, and with a request to send or to be made, are pending again; the job goes on.

        With `task`, only rows of that one. Both in one transaction. Gives how many rows are pending now; with none, a
        job that is over stays so.
        """
        c = requests.c
        again = (
            update(requests)
            .where(c.job_id == job_id, c.state.in_(states), (c.length > 0) | IS_REDUCE)
            .where(true() if task is None else c.task == task)
            .values(
                state=RequestState.PENDING,
                shard_id=None,
                attempt=c.attempt + 1,
                settled_at=None,
                carried_from=None,
                error_code=None,
                error_message=None,
                result_shard=None,
                result_kind=None,
                sent_model=None,
                answered_by=None,
                upstream=None,
                latency_ms=None,
                input_tokens=0,
                cached_tokens=0,
                output_tokens=0,
                reasoning_tokens=0,
                cache_write_tokens=0,
                tier=None,
                avoid=None,
                released_at=None,
                again=0,
                offset=func.coalesce(c.first_offset, c.offset),
                length=func.coalesce(c.first_length, c.length),
                first_offset=None,
                first_length=None,
                # Again from the first of the alias's list: the last may be at a backend that refused it.
                model=case((c.model.like("%@_"), func.substr(c.model, 1, func.length(c.model) - 2)), else_=c.model),
                cost=Decimal(0),
            )
        )
        pending = select(func.count()).where(c.job_id == job_id, c.state == RequestState.PENDING)
        over = {"finished_at": None, "output_path": None, "cancel_requested_at": None, "cancel_reason": None}
        with self._db.write() as tx:
            tx.execute(again)
            # Whoever tries a stopped job again wants all of it.
            tx.execute(update(requests).where(c.job_id == job_id, IS_CANARY).values(canary=None))
            number = tx.scalar(pending) or 0
            condition = jobs.c.id == job_id if number else (jobs.c.id == job_id) & jobs.c.error.is_not(None)
            tx.execute(update(jobs).where(condition).values(**over, error=None, error_code=None))
            return number

    def finished(self, job_id: JobId, only: Collection[str] | None = None) -> Iterator[FinishedRow]:
        """Every row of a job in input order, or those of `only` these custom_ids; those without outcome too."""
        query = (
            select(requests, shards.c.backend, shards.c.batch_id)
            .outerjoin(shards, shards.c.id == requests.c.result_shard)
            .where(requests.c.job_id == job_id, true() if only is None else requests.c.custom_id.in_(only))
            .order_by(requests.c.seq)
        )
        for row in self._db.stream(query, PAGE):
            yield _finished(row)

    def usage(self, job_id: JobId) -> Usage:
        """Tokens of the job's own answers; carried ones and those of twins are not among them."""
        c = requests.c
        columns = (c.input_tokens, c.cached_tokens, c.output_tokens, c.reasoning_tokens, c.cache_write_tokens)
        query = select(*(func.coalesce(func.sum(column), 0) for column in columns)).where(
            c.job_id == job_id, IS_ORIGINAL
        )
        with self._db.read() as tx:
            return Usage(*(int(value) for value in tx.execute(query).one()))

    def carried(self, job_id: JobId) -> int:
        """How many rows of a job carry an earlier outcome."""
        query = select(func.count()).where(requests.c.job_id == job_id, requests.c.carried_from.is_not(None))
        with self._db.read() as tx:
            return tx.scalar(query) or 0

    def reasons(self, job_id: JobId, limit: int = 20) -> list[tuple[str, str, int]]:
        """Why rows did not succeed: (code, one message of that code, how many), most first."""
        c = requests.c
        query = (
            select(c.error_code, func.min(c.error_message), func.count())
            .where(c.job_id == job_id, c.error_code.is_not(None))
            .group_by(c.error_code)
            .order_by(func.count().desc())
            .limit(limit)
        )
        with self._db.read() as tx:
            return [(code, message or "", number) for code, message, number in tx.execute(query)]


_FIRST = requests.alias("first")


def _among(canary: bool) -> ColumnElement[bool]:
    return IS_CANARY if canary else true()


_facts_of = attrgetter(*CARRIED)


def _earlier(row: Any) -> Earlier:
    facts = dict(zip(CARRIED, _facts_of(row), strict=True))
    state = RequestState(row.state)
    return Earlier(
        row.custom_id, row.fingerprint, state, row.error_code, row.job_id, facts, row.cut_from_tokens
    )  # fmt: skip


def _new(job_id: JobId, row: Row, span: Span, now: datetime, why: Why | None) -> dict[str, Any]:
    code, message = row.problem or (None, None)
    return {
        "job_id": job_id,
        "seq": row.seq,
        "custom_id": row.custom_id,
        "document": row.document,
        "task": row.task,
        "endpoint": row.endpoint,
        "model": row.model,
        "fingerprint": row.fingerprint,
        "prompt_version": row.prompt_version,
        "offset": span.offset,
        "length": span.length,
        "cut_from_tokens": row.cut_from_tokens,
        "inputs": row.inputs,
        "max_output": row.max_output,
        "trimmed_tokens": row.trimmed_tokens,
        "cache_key": row.cache_key,
        "why": why,
        "content": row.content,
        "wording": row.wording,
        "part": row.part,
        "parts": row.parts,
        "state": RequestState.PENDING if code is None else RequestState.FAILED,
        "settled_at": None if code is None else now,
        "error_code": code,
        "error_message": message,
    }


_SETTLE = (
    update(requests)
    .where(requests.c.job_id == bindparam("b_job"), requests.c.seq == bindparam("b_seq"))
    .values(
        {
            name: bindparam(name)
            for name in (*CARRIED, "cost")
        }
    )
)  # fmt: skip


def _settled(shard_id: ShardId, job_id: JobId, row: Settled, now: datetime, model: str | None) -> dict[str, Any]:
    outcome, price = row.outcome, row.price
    span = outcome.span
    return {
        "b_job": job_id,
        "b_seq": outcome.seq,
        "state": outcome.state,
        "settled_at": now,
        "result_shard": shard_id,
        "result_kind": outcome.kind,
        "result_offset": span.offset if span else None,
        "result_length": span.length if span else None,
        "sent_model": model,
        "answered_by": outcome.model,
        "upstream": outcome.upstream,
        "latency_ms": outcome.latency_ms,
        "input_tokens": outcome.usage.input_tokens,
        "cached_tokens": outcome.usage.cached_tokens,
        "output_tokens": outcome.usage.output_tokens,
        "reasoning_tokens": outcome.usage.reasoning_tokens,
        "cache_write_tokens": outcome.usage.cache_write_tokens,
        "tier": outcome.tier,
        "error_code": outcome.error_code,
        "error_message": outcome.error_message,
        "cost": price.cost if price else Decimal(0),
    }


def _booked(
    shard_id: ShardId, job_id: JobId, backend: str, outcome: Outcome, kind: str, price: Price, now: datetime
) -> dict[str, Any]:
    # The tokens stand with what was settled: those of a send without an answer nobody knows.
    usage = Usage() if kind == "uncertain" else outcome.usage
    return {
        "job_id": job_id,
        "seq": outcome.seq,
        "shard_id": shard_id,
        "at": now,
        "kind": kind,
        "backend": backend,
        "model": outcome.model or "",
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "tier": outcome.tier,
        "cost": price.cost,
        "price_source": price.source,
        "estimated": price.estimated,
    }


def _finished(row: Any) -> FinishedRow:
    result = None
    # A twin has its outcome from the job itself.
    is_twin = row.twin_of is not None and row.state != RequestState.PENDING
    if row.result_shard is not None and row.result_kind is not None:
        result = (row.result_shard, row.result_kind, Span(row.result_offset, row.result_length))
    return FinishedRow(
        row.seq,
        row.custom_id,
        row.document,
        row.task,
        row.model,
        row.prompt_version,
        row.cut_from_tokens,
        RequestState(row.state),
        row.attempt,
        result,
        row.answered_by,
        row.upstream,
        row.latency_ms,
        Usage(row.input_tokens, row.cached_tokens, row.output_tokens, row.reasoning_tokens, row.cache_write_tokens),
        row.tier,
        row.cost,
        row.error_code,
        row.error_message,
        row.job_id if is_twin else row.carried_from,
        row.backend,
        row.batch_id,
        row.settled_at,
        None if row.why is None else Why(row.why),
        row.part,
        row.parts,
    )
