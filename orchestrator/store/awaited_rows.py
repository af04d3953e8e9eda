"""Rows that wait for the answer to another job's row instead of being sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, func, or_, select, true

from orchestrator.core.model import Job, JobId, JobKind, RequestState
from orchestrator.core.shards import AT_BACKEND, ShardId
from orchestrator.store import bulk, records
from orchestrator.store.database import Database
from orchestrator.store.earlier_answers import AGE, BACKEND, EARLIER, answers_to, earlier
from orchestrator.store.records import Earlier, RowInFlight, awaits, place_elsewhere
from orchestrator.store.rows import open_rows
from orchestrator.store.tables import HAS_KEY, IS_AWAITING, IS_FRESH, requests, shards

PAGE = 5000
_SOURCES = (
    select(requests.c.carried_from, func.count())
    .where(requests.c.job_id == bindparam("job"), IS_AWAITING)
    .group_by(requests.c.carried_from)
)


class AwaitedEnd(Struct, frozen=True):
    """A row whose wait is over. `answer` is the awaited row's outcome, or None if that row has no outcome or is gone.

    `is_shown_fault` is true if the awaited row's request showed the model the fault of an earlier answer.
    """

    seq: int
    fingerprint: str
    model: str
    caches: bool
    of_job: JobId
    answer: Earlier | None
    is_shown_fault: bool = False


class AwaitedRows:
    def __init__(self, database: Database) -> None:
        self._db = database

    def by_key(
        self, jobs: Collection[JobId], keys: Collection[str], *, checked: bool
    ) -> dict[str, list[RowInFlight]]:
        """Return these jobs' rows in flight whose requests have these cache keys, by cache key.

        With `checked`, return only rows whose answers go through a task's checks.
        """
        c = requests.c
        query = select(*_FOUND, c.cache_key.label("mark")).where(HAS_KEY, c.task != "" if checked else true())
        found: dict[str, list[RowInFlight]] = {}
        for key, row in self._in_flight(query, c.cache_key, keys, jobs):
            found.setdefault(key, []).append(row)
        return found

    def by_id(self, jobs: Collection[JobId], wanted: Mapping[str, str]) -> dict[str, RowInFlight]:
        """Return these jobs' rows in flight with these custom_ids and fingerprints, by custom_id.

        `wanted` maps each custom_id to its fingerprint.
        """
        c = requests.c
        query = select(*_FOUND, c.custom_id.label("mark")).where(IS_FRESH, c.twin_of.is_(None))
        found = self._in_flight(query, c.custom_id, list(wanted), jobs, wanted)
        return dict(found)

    def _in_flight(
        self,
        query: Any,
        key: ColumnElement[Any],
        values: Collection[str],
        jobs: Collection[JobId],
        fingerprints: Mapping[str, str] | None = None,
    ) -> list[tuple[str, RowInFlight]]:
        if not values or not jobs:
            return []
        with self._db.read() as tx:
            rows = [
                row
                for row in tx.execute(bulk.each(query, key, values, tx.dialect))
                if row.job_id in jobs
                and row.state == RequestState.PENDING
                and row.shard_id is not None
                and row.first_offset is None
                and (fingerprints is None or fingerprints[row.mark] == row.fingerprint)
            ]
            s, ids = shards.c, {row.shard_id for row in rows}
            of_ids = bulk.each(select(s.id, s.backend, s.model, s.state), s.id, sorted(ids), tx.dialect)
            sent = {row.id: row for row in tx.execute(of_ids) if row.state in AT_BACKEND} if ids else {}
        rows.sort(key=lambda row: (row.job_id, row.seq))
        return [
            (
                row.mark,
                RowInFlight(
                    JobId(row.job_id), row.seq, ShardId(row.shard_id), sent[row.shard_id].backend,
                    sent[row.shard_id].model,
                ),
            )
            for row in rows
            if row.shard_id in sent
        ]  # fmt: skip

    def taken(
        self,
        job: Job,
        runs: Collection[JobId],
        open_jobs: Collection[JobId],
        states: Collection[RequestState],
        *,
        task: str | None = None,
    ) -> dict[int, tuple[int, str]]:
        """Return, by `seq`, the other jobs' rows whose answers the job's rows in these states can take, as `awaits`
        does.

        An answer from a run of the same file is preferred, the newest first; then any job's answer to the same
        request. Without an answer, a row awaits the same request in flight, or an unsent request of the file's open
        runs.
        """
        others = set(open_jobs) - {job.id}
        c = requests.c
        columns = (c.seq, c.custom_id, c.fingerprint, c.cache_key, c.state, c.task, c.length)
        mine = select(*columns).where(c.job_id == job.id)
        found: dict[int, tuple[int, str]] = {}
        with self._db.read() as tx:
            end = 1 + (tx.scalar(select(func.max(c.seq)).where(c.job_id == job.id)) or 0)
        for start in range(0, end, PAGE):
            with self._db.read() as tx:
                # A range of `seq` instead of a LIMIT, which may sort the whole job. The range uses an index.
                page = tx.execute(mine.where(c.seq >= start, c.seq < start + PAGE))
                rows = [row for row in page if row.state in states and row.length and task in (None, row.task)]
                by_key = _answers_by_key(tx, job, {row.cache_key for row in rows if row.cache_key is not None})
                by_id = _answers_by_id(tx, set(runs) - {job.id}, {row.custom_id: row.fingerprint for row in rows})
            for row in rows:
                if (answer := by_id.get(row.custom_id) or by_key.get(row.cache_key)) is not None:
                    found[row.seq] = place_elsewhere(answer.seq), answer.job_id
            left = {row.seq: row.cache_key for row in rows if row.seq not in found and row.cache_key is not None}
            keys = set(left.values())
            under_way = self.asked_by(others & set(runs), keys)
            in_flight = self.by_key(others, keys, checked=job.kind is JobKind.DOCUMENTS)
            under_way |= {key: awaits(rows[0]) for key, rows in in_flight.items()}
            found |= {seq: under_way[key] for seq, key in left.items() if key in under_way}
        return found

    def asked_by(
        self, jobs: Collection[JobId], keys: Collection[str], ids: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, tuple[int, str]]:
        """Return the open rows that these jobs send themselves, by cache key or custom_id, in the form of `awaits`.

        `ids` maps each custom_id to its fingerprint.
        """
        if not jobs:
            return {}
        c, found = requests.c, list[Any]()
        with self._db.read() as tx:
            for column, values, is_one in ((c.cache_key, keys, HAS_KEY), (c.custom_id, list(ids), IS_FRESH)):
                query = select(*_FOUND, column.label("mark"), c.twin_of).where(is_one)
                found += tx.execute(bulk.each(query, column, values, tx.dialect)).all() if values else []
        return {
            row.mark: (place_elsewhere(row.seq), row.job_id)
            for row in found
            if row.job_id in jobs
            and row.state == RequestState.PENDING
            and row.twin_of is None
            and row.first_offset is None
            and ids.get(row.mark, row.fingerprint) == row.fingerprint
        }

    def sources(self, job_id: JobId) -> dict[JobId, int]:
        """Return the number of a job's awaiting rows, by the job whose rows they await."""
        with self._db.read() as tx:
            return {JobId(of): rows for of, rows in tx.execute(_SOURCES, {"job": job_id})}

    def is_awaited(self, jobs: Collection[JobId], shard_id: ShardId) -> bool:
        """True if one of these jobs awaits an open row of a shard."""
        theirs, mine = requests.alias("theirs"), requests.alias("mine")
        with self._db.read() as tx:
            for job_id in jobs:
                of = select(mine.c.seq).where(
                    mine.c.job_id == job_id,
                    mine.c.twin_of == place_elsewhere(theirs.c.seq),
                    mine.c.carried_from == theirs.c.job_id,
                    mine.c.settled_at.is_(None),
                )
                query = select(theirs.c.seq).where(
                    theirs.c.shard_id == shard_id,
                    theirs.c.state == RequestState.PENDING,
                    exists(of.correlate(theirs).offset(bulk.NONE_SKIPPED)),
                )
                if tx.execute(query.limit(1)).first() is not None:
                    return True
        return False

    def ended(self, job_id: JobId, limit: int) -> list[AwaitedEnd]:
        """Return up to `limit` of a job's awaiting rows for which the awaited row has an outcome or is gone."""
        c, mine = requests.c, requests.alias("mine").c
        columns = (mine.seq, mine.custom_id, mine.fingerprint, mine.model, mine.cache_key, mine.carried_from)
        with self._db.read() as tx:
            theirs, on = bulk.beside(requests.alias("theirs"), _awaited_by(mine), tx.dialect)
            over = or_(theirs.c.state.is_(None), theirs.c.state != RequestState.PENDING)
            query = (
                select(*columns, place_elsewhere(mine.twin_of).label("of_seq"))
                .select_from(mine.seq.table.outerjoin(theirs, on))
                .where(mine.job_id == job_id, mine.twin_of < 0, mine.settled_at.is_(None), over)
            )
            rows = tx.execute(query.limit(limit)).all()
            found: dict[tuple[str, int], Any] = {}
            for of_job in {row.carried_from for row in rows}:
                seqs = [row.of_seq for row in rows if row.carried_from == of_job]
                outcome = select(*EARLIER, c.seq, c.first_offset, BACKEND).where(c.job_id == of_job)
                for one in tx.execute(bulk.each(outcome, c.seq, seqs, tx.dialect)):
                    found[of_job, one.seq] = one
        return [_ended(row, found.get((row.carried_from, row.of_seq))) for row in rows]

    def of_source(self, job_id: JobId, of_job: JobId) -> list[int]:
        c = requests.c
        query = select(c.seq).where(c.job_id == job_id, IS_AWAITING, c.carried_from == of_job).order_by(c.seq)
        with self._db.read() as tx:
            return list(tx.scalars(query))

    def shards_of(self, job_id: JobId, of_job: JobId) -> set[ShardId]:
        """Return the shards of `of_job` that hold rows awaited by `job_id`."""
        mine = requests.alias("mine").c

        with self._db.read() as tx:
            theirs, on = bulk.beside(requests.alias("theirs"), _awaited_by(mine), tx.dialect)
            query = (
                select(theirs.c.shard_id)
                .distinct()
                .select_from(mine.seq.table.join(theirs, on))
                .where(mine.job_id == job_id, mine.twin_of < 0, mine.settled_at.is_(None))
                .where(mine.carried_from == of_job, theirs.c.shard_id.is_not(None))
            )
            return {ShardId(shard_id) for shard_id in tx.scalars(query)}

    def take(self, job_id: JobId, answers: Mapping[int, Earlier]) -> int:
        """Give rows the outcomes that they awaited, at no cost. Return the number of changed rows."""
        names = (*records.CARRIED, "carried_from", "twin_of")
        self._db.before_naming_files()
        with self._db.write() as tx:
            open_ = open_rows(tx, None, job_id, answers)
            values = [(*answers[seq].facts, answers[seq].job_id, None, job_id, seq) for seq in open_]
            return bulk.change(tx, requests, names, ("job_id", "seq"), values) if values else 0

    def release(self, job_id: JobId, seqs: Sequence[int]) -> int:
        """Let a job send awaiting rows itself, one per group of equal requests. Return the number of released
        rows.
        """
        c = requests.c
        with self._db.write() as tx:
            open_ = set(open_rows(tx, None, job_id, seqs))
            columns = (c.job_id, c.seq, c.cache_key, c.model, c.task, c.state, c.twin_of)
            mine = tx.execute(bulk.each(select(*columns).where(c.job_id == job_id), c.seq, sorted(open_), tx.dialect))
            freed = sorted((row for row in mine if (row.twin_of or 0) < 0), key=lambda row: int(row.seq))
            keys = {row.cache_key for row in freed if row.cache_key is not None}
            first: dict[tuple[str, str, str], int] = {}
            if keys:
                for row in tx.execute(bulk.each(select(*columns).where(HAS_KEY), c.cache_key, keys, tx.dialect)):
                    if row.job_id == job_id and row.state == RequestState.PENDING:
                        first[row.cache_key, row.model, row.task] = row.seq
            values = []
            for row in freed:
                key = (row.cache_key, row.model, row.task)
                place = row.seq if row.cache_key is None else first.setdefault(key, row.seq)
                values.append((None if place == row.seq else place, None, job_id, row.seq))
            bulk.change(tx, requests, ("twin_of", "carried_from"), ("job_id", "seq"), values)
            return len(values)


def _answers_by_key(tx: Connection, job: Job, keys: Collection[str]) -> dict[str, Any]:
    if not keys:
        return {}
    # A job file's answers were checked; a batch file's answers were not.
    checked = job.kind is JobKind.DOCUMENTS
    columns = (*_ANSWER, requests.c.cache_key, requests.c.released_at)
    rows = answers_to(tx, columns, job.home, keys, checked=checked)
    return {row.cache_key: row for row in rows if row.released_at is None and row.job_id != job.id}


def _answers_by_id(tx: Connection, runs: Collection[str], wanted: Mapping[str, str]) -> dict[str, Any]:
    if not runs or not wanted:
        return {}
    c = requests.c
    # Runs are filtered in Python. With them in the query, Postgres might read every row of a run.
    rows = tx.execute(bulk.each(select(*_ANSWER).where(IS_FRESH, *_ANSWERED), c.custom_id, list(wanted), tx.dialect))
    same = (row for row in rows if row.job_id in runs and row.fingerprint == wanted[row.custom_id])
    return {row.custom_id: row for row in sorted(same, key=AGE)}


_ANSWER = [requests.c[name] for name in ("job_id", "seq", "custom_id", "fingerprint", "settled_at")]
_ANSWERED = (requests.c.state == RequestState.SUCCEEDED, requests.c.released_at.is_(None))


def _awaited_by(mine: Any) -> Callable[[Any], ColumnElement[bool]]:
    return lambda theirs: and_(theirs.job_id == mine.carried_from, theirs.seq == place_elsewhere(mine.twin_of))


_FOUND = [requests.c[name] for name in ("job_id", "seq", "fingerprint", "state", "shard_id", "first_offset")]


def _ended(row: Any, awaited: Any | None) -> AwaitedEnd:
    answer = None
    if awaited is not None and awaited.released_at is None:
        known = earlier(awaited)
        if known.state in (RequestState.SUCCEEDED, RequestState.FAILED):
            answer = Earlier(
                row.custom_id, awaited.fingerprint, known.state, known.error_code, known.job_id, known.facts,
                taken_from=None if awaited.backend is None else (awaited.backend, awaited.sent_model),
            )  # fmt: skip
    return AwaitedEnd(
        row.seq, row.fingerprint, row.model, row.cache_key is not None, JobId(row.carried_from),
        answer, awaited is not None and awaited.first_offset is not None,
    )  # fmt: skip
