"""What was paid for: sums over the ledger, which has a line for every row that an answer was paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, and_, case, cast, func, literal, select

from orchestrator.model import PICO, JobId, Price, Shard, Usage
from orchestrator.store.database import Database
from orchestrator.store.tables import jobs, ledger, tags

DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True, slots=True)
class Total:
    """A line of a cost report: tokens and dollars of one group and model; `uncertain` is a part of `cost`."""

    group: str
    model: str
    rows: int
    usage: Usage
    cost: Decimal
    uncertain: Decimal
    estimated: bool


class Ledger:
    """Sums over the ledger."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def spent(self, job_id: JobId) -> Decimal:
        """What a job has cost so far."""
        with self._db.read() as tx:
            total = tx.scalar(
                select(_picos(func.sum(cast(ledger.c.cost, BigInteger)))).where(ledger.c.job_id == job_id)
            )
        return int(total or 0) * PICO

    def book(self, shard: Shard, kind: str, prices: Mapping[int, Price], now: datetime) -> None:
        """Book what rows cost that got no outcome in a shard; once, however often it is called."""
        rows = [
            {
                "job_id": shard.job_id, "seq": seq, "shard_id": shard.id, "at": now, "kind": kind,
                "backend": shard.backend, "model": shard.model, "input_tokens": 0, "cached_tokens": 0,
                "output_tokens": 0, "cost": price.cost, "price_source": price.source, "estimated": price.estimated,
            }
            for seq, price in prices.items()
        ]  # fmt: skip
        if rows:
            with self._db.write() as tx:
                tx.execute(self._db.upsert(ledger).on_conflict_do_nothing(), rows)

    def totals(self, by: str, since: datetime | None = None, job_id: str | None = None) -> list[Total]:
        """Sums by `job`, `day` (UTC), `model`, `backend` or a tag's value (`tag:KEY`), each split by model."""
        group, uncertain = _group(by), ledger.c.kind == "uncertain"
        query = (
            select(
                group.label("group"),
                ledger.c.model,
                func.sum(case((uncertain, 0), else_=1)),
                func.sum(ledger.c.input_tokens),
                func.sum(ledger.c.cached_tokens),
                func.sum(ledger.c.output_tokens),
                func.sum(ledger.c.reasoning_tokens),
                func.sum(ledger.c.cache_write_tokens),
                _picos(func.sum(cast(ledger.c.cost, BigInteger))),
                _picos(func.sum(case((uncertain, cast(ledger.c.cost, BigInteger)), else_=0))),
                func.max(cast(ledger.c.estimated, BigInteger))
                if self._db.is_sqlite
                else func.bool_or(ledger.c.estimated),
            )
            .join(jobs, jobs.c.id == ledger.c.job_id)
            .group_by("group", ledger.c.model)
            .order_by("group", ledger.c.model)
        )
        if by.startswith("tag:"):
            query = query.outerjoin(tags, and_(tags.c.job_id == ledger.c.job_id, tags.c.key == by[4:]))
        if since is not None:
            query = query.where(ledger.c.at >= since)
        if job_id is not None:
            query = query.where(ledger.c.job_id == job_id)
        with self._db.read() as tx:
            return [
                Total(
                    _name(by, key),
                    model,
                    rows,
                    Usage(*(int(number) for number in tokens)),
                    int(cost) * PICO,
                    int(vain) * PICO,
                    bool(guessed),
                )
                for key, model, rows, *tokens, cost, vain, guessed in tx.execute(query)
            ]


def _picos(total: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(total, literal(0))


def _group(by: str) -> ColumnElement[Any]:
    if by.startswith("tag:"):
        return func.coalesce(tags.c.value, "")
    columns: dict[str, ColumnElement[Any]] = {
        "job": ledger.c.job_id,
        "day": cast(ledger.c.at, BigInteger) // DAY,
        "model": ledger.c.model,
        "backend": ledger.c.backend,
    }
    return columns[by]


def _name(by: str, key: object) -> str:
    return (date(1970, 1, 1) + timedelta(days=int(str(key)))).isoformat() if by == "day" else str(key)
