"""Sums over the ledger. Each line books a cost against a row, even for attempts without an answer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    case,
    cast,
    delete,
    distinct,
    func,
    literal,
    or_,
    select,
)

from orchestrator.core.model import PICO, BookedUsage, JobId, Price, RequestState, Usage
from orchestrator.core.shards import AT_BACKEND, Shard
from orchestrator.core.zones import utc_offsets
from orchestrator.store import job_figures
from orchestrator.store.database import Database
from orchestrator.store.records import COUNTS
from orchestrator.store.shards import shard_of
from orchestrator.store.tables import ledger, requests, shards, tags

_NOTHING = Usage()
DAY = 86_400_000_000  # microseconds


class BookedJob(Struct, frozen=True):
    """Tokens that a job paid for. `estimated` is true if part of the cost is an estimate.

    `unpriced` counts rows whose answer used something that the cost does not cover.
    """

    usage: Usage
    estimated: bool
    unpriced: int


class Ledger:
    """Sums over the ledger, in dollars and tokens."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def spent(self, job_id: JobId) -> Decimal:
        """Return the cost of a job so far, in dollars."""
        with self._db.asking() as ask:
            return job_figures.spent(ask, job_id)

    def booked(self, job_id: JobId, running: Collection[str] = ()) -> BookedJob:
        """Return the sums of a job's lines. Backends report the tokens of `running` shards, which are left out."""
        c = ledger.c
        counted = [case((c.shard_id.in_(running), 0), else_=c[name]) if running else c[name] for name in COUNTS]
        query = select(
            func.count().filter(c.estimated),
            func.count(distinct(case((c.unpriced, c.seq)))),
            *(func.coalesce(func.sum(column), 0) for column in counted),
        ).where(c.job_id == job_id)
        with self._db.read() as tx:
            estimated, unpriced, *tokens = map(int, tx.execute(query).one())
        return BookedJob(Usage(*tokens), estimated > 0, unpriced)

    def of_answer(self, shard_id: str, seq: int) -> Price | None:
        """Return the price booked for a row's answer from a shard, or None."""
        c = ledger.c
        query = select(c.cost, c.price_source, c.estimated, c.unpriced).where(
            c.shard_id == shard_id, c.seq == seq, c.kind == "settled"
        )
        with self._db.read() as tx:
            found = tx.execute(query).one_or_none()
        return None if found is None else Price(found.cost, found.price_source, found.estimated, bool(found.unpriced))

    def paid(self, since: datetime, until: datetime | None, tag: tuple[str, str] | None) -> Decimal:
        """Return the dollars booked from `since` until just before `until`, for all jobs or jobs with a (key, value)
        tag.
        """
        query = select(_picos(func.sum(cast(ledger.c.cost, BigInteger)))).where(ledger.c.at >= since)
        if until is not None:
            query = query.where(ledger.c.at < until)
        if tag is not None:
            query = query.where(ledger.c.job_id.in_(_tagged(tag)))
        with self._db.read() as tx:
            return int(tx.scalar(query) or 0) * PICO

    def by_tier(self, since: datetime) -> dict[tuple[str, str], tuple[Decimal, Decimal]]:
        """Return booked dollars by backend and service tier ("" if unknown).

        Each value is (total, part of the total for attempts without an answer).
        """
        c = ledger.c
        query = (
            select(c.backend, c.tier, c.kind, _picos(func.sum(cast(c.cost, BigInteger))))
            .where(c.at >= since)
            .group_by(c.backend, c.tier, c.kind)
        )
        found: dict[tuple[str, str], tuple[Decimal, Decimal]] = {}
        with self._db.read() as tx:
            for backend, tier, kind, total in tx.execute(query):
                cost, uncertain = found.get((backend, tier or ""), (Decimal(0), Decimal(0)))
                booked = int(total or 0) * PICO
                found[backend, tier or ""] = cost + booked, uncertain + (booked if kind == "uncertain" else 0)
        return found

    def newest(self) -> int:
        """Return the number of the newest line, or 0 for an empty ledger. Lines may be committed out of order."""
        with self._db.read() as tx:
            return tx.scalar(select(func.max(ledger.c.id))) or 0

    def unpaid(self, tag: tuple[str, str] | None) -> list[Shard]:
        """Return all homes' shards whose cost may still be booked, from intent until collection."""
        query = select(shards).where(shards.c.state.in_(AT_BACKEND)).order_by(shards.c.created_at, shards.c.id)
        if tag is not None:
            query = query.where(shards.c.job_id.in_(_tagged(tag)))
        with self._db.read() as tx:
            return [shard_of(row) for row in tx.execute(query)]

    def book(
        self,
        shard: Shard,
        kind: str,
        prices: Mapping[int, Price],
        now: datetime,
        usages: Mapping[int, Usage] = MappingProxyType({}),
    ) -> None:
        """Book cost and usage of a shard's rows without setting their outcomes. A repeated call books nothing
        more.
        """
        rows = [
            {
                "job_id": shard.job_id, "seq": seq, "shard_id": shard.id, "at": now, "kind": kind,
                "backend": shard.backend, "model": shard.model, "cost": price.cost, "price_source": price.source,
                "estimated": price.estimated, "unpriced": price.unpriced or None,
                "listed": price.listed if seq in usages else None, **asdict(usages.get(seq, _NOTHING)),
            }
            for seq, price in prices.items()
        ]  # fmt: skip
        if rows:
            with self._db.write() as tx:
                tx.execute(self._db.upsert(ledger).on_conflict_do_nothing(), rows)

    def settle_uncertain(self, shard: Shard, seqs: Sequence[int]) -> None:
        """Remove the assumed cost of rows whose real cost is known."""
        same = (ledger.c.job_id == shard.job_id, ledger.c.shard_id == shard.id, ledger.c.kind == "uncertain")
        with self._db.write() as tx:
            tx.execute(delete(ledger).where(*same, ledger.c.seq.in_(seqs)))

    def totals(
        self, by: str, since: datetime | None = None, job_id: str | None = None, zone: tzinfo | None = UTC
    ) -> list[BookedUsage]:
        """Return sums by `job`, `day`, `task`, `model`, `backend`, a tag's value (`tag:KEY`) or every tag (`tag`).

        Each sum is split by backend, model and day. `zone` sets where a day begins; None means this machine's time
        zone. By `tag`, a line counts once for every tag of its job.
        """
        day = self._day(zone)
        in_vain, cost = ledger.c.kind == "uncertain", cast(ledger.c.cost, BigInteger)
        guessed = (
            func.max(cast(ledger.c.estimated, BigInteger)) if self._db.is_sqlite else func.bool_or(ledger.c.estimated)
        )
        query = (
            select(
                _group(by, day).label("group"),
                ledger.c.backend,
                ledger.c.model,
                day.label("day"),
                func.sum(case((in_vain, 0), else_=1)),
                *(func.sum(ledger.c[name]) for name in COUNTS),
                _picos(func.sum(cost)),
                _picos(func.sum(case((in_vain, cost), else_=0))),
                _picos(func.sum(case((_WASTED, cost), else_=0))),
                guessed,
                func.count().filter(ledger.c.unpriced),
                func.sum(cast(ledger.c.listed, BigInteger)),
            )
            .group_by("group", ledger.c.backend, ledger.c.model, "day", ledger.c.listed.is_(None))
            .order_by("group", ledger.c.backend, ledger.c.model, "day", ledger.c.listed.is_(None))
        )
        with self._db.read() as tx:
            of_job = None if job_id is None else [job_id]
            return [_total(by, *values) for values in tx.execute(_narrowed(query, by, since, of_job))]

    def documents(
        self, by: str, since: datetime | None = None, job_id: str | None = None, zone: tzinfo | None = UTC
    ) -> dict[str | None, int]:
        """Return the number of paid documents by group, as in `totals`, with the total under None.

        A document read by two jobs counts twice, and a document in two groups counts in both.
        """
        of_job = None if job_id is None else [job_id]
        counted = self._documents(by, since, of_job, self._day(zone) if by == "day" else None)
        found: Counter[str | None] = Counter()
        groups: dict[str, list[int]] = defaultdict(list)
        for group, job, number in counted:
            found[_name(by, group)] += number
            groups[job].append(number)
        found[None] = sum(numbers[0] for numbers in groups.values() if len(numbers) == 1)
        # Several groups of one job may share documents, so their sum is not the total.
        if several := [job for job, numbers in groups.items() if len(numbers) > 1]:
            found[None] += sum(number for *_, number in self._documents("job", since, several, None))
        return dict(found)

    def _documents(
        self, by: str, since: datetime | None, job_ids: Collection[str] | None, day: ColumnElement[int] | None
    ) -> Sequence[Any]:
        c = ledger.c
        query = select(_group(by, day).label("group"), c.job_id, func.count(distinct(requests.c.document)))
        with self._db.read() as tx:
            return tx.execute(_narrowed(query, by, since, job_ids).group_by("group", c.job_id)).all()

    def _day(self, zone: tzinfo | None) -> ColumnElement[int]:
        at = cast(ledger.c.at, BigInteger)
        if zone is UTC:
            return at // DAY
        # The first and last line booked stand for `min` and `max`, which would read every line.
        with self._db.read() as tx:
            first, last = (
                tx.scalar(select(ledger.c.at).order_by(end).limit(1)) for end in (ledger.c.id, ledger.c.id.desc())
            )
        if first is None or last is None:
            return at // DAY
        ends = [(_micros(end), offset // _MICROSECOND) for end, offset in utc_offsets(zone, first, last)]
        *earlier, (_, offset) = ends
        if not earlier:
            return (at + offset) // DAY
        return (at + case(*((at < end, before) for end, before in earlier), else_=offset)) // DAY


def _total(by: str, key: object, backend: str, model: str, number: object, rows: int, *sums: Any) -> BookedUsage:
    *tokens, cost, vain, waste, guessed, unpriced, listed = sums
    return BookedUsage(
        _name(by, key), backend, model, _date(number), rows, Usage(*map(int, tokens)), int(cost) * PICO,
        int(vain) * PICO, int(waste) * PICO, bool(guessed), unpriced, None if listed is None else int(listed) * PICO,
    )  # fmt: skip


def _narrowed(query: Select[Any], by: str, since: datetime | None, job_ids: Collection[str] | None) -> Select[Any]:
    same_row = and_(requests.c.job_id == ledger.c.job_id, requests.c.seq == ledger.c.seq)
    found = query.select_from(ledger).join(requests, same_row)
    if by == "tag":
        found = found.outerjoin(tags, tags.c.job_id == ledger.c.job_id)
    elif by.startswith("tag:"):
        found = found.outerjoin(tags, and_(tags.c.job_id == ledger.c.job_id, tags.c.key == by[4:]))
    if since is not None:
        found = found.where(ledger.c.at >= since)
    return found if job_ids is None else found.where(ledger.c.job_id.in_(job_ids))


# The line that paid for a row's answer belongs to the answer's shard. All other lines paid for nothing.
_WASTED = or_(
    ledger.c.kind != "settled",
    requests.c.state != RequestState.SUCCEEDED,
    requests.c.result_shard != ledger.c.shard_id,
)
_MICROSECOND = timedelta(microseconds=1)


def _micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND


def _tagged(tag: tuple[str, str]) -> Select[tuple[str]]:
    key, value = tag
    return select(tags.c.job_id).where(tags.c.key == key, tags.c.value == value)


def _picos(total: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(total, literal(0))


def _group(by: str, day: ColumnElement[int] | None) -> ColumnElement[Any]:
    if by == "tag":
        return func.coalesce(tags.c.key + "=" + tags.c.value, "")
    if by.startswith("tag:"):
        return func.coalesce(tags.c.value, "")
    if by == "day" and day is not None:
        return day
    columns: dict[str, ColumnElement[Any]] = {
        "job": ledger.c.job_id,
        "task": requests.c.task,
        "model": ledger.c.model,
        "backend": ledger.c.backend,
    }
    return columns[by]


def _name(by: str, key: object) -> str:
    return _date(key).isoformat() if by == "day" else str(key)


def _date(day: object) -> date:
    return date(1970, 1, 1) + timedelta(days=int(str(day)))
