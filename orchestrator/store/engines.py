"""Measured throughput of our own engines, and the periods for which they held GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select

from orchestrator.core.engines import EngineHold, EngineRates
from orchestrator.store.database import Database
from orchestrator.store.tables import engine_holds, engine_rates

_FIELDS = EngineRates.__struct_fields__


class MeasuredRates:
    def __init__(self, database: Database) -> None:
        self._db = database

    def put(self, rates: EngineRates) -> None:
        """Store an engine's rates in place of earlier rates for the same options, version and GPU."""
        values = {name: getattr(rates, name) for name in _FIELDS}
        keys = [column.name for column in engine_rates.primary_key]
        facts = {name: value for name, value in values.items() if name not in keys}
        with self._db.write() as tx:
            tx.execute(
                self._db.upsert(engine_rates).values(values).on_conflict_do_update(index_elements=keys, set_=facts)
            )

    def of(self, home: str, backend: str) -> dict[str, EngineRates]:
        """Return a backend's latest rates by model, whatever the options, version and GPU."""
        c = engine_rates.c
        query = (
            select(*(c[name] for name in _FIELDS)).where(c.home == home, c.backend == backend).order_by(c.measured_at)
        )
        with self._db.read() as tx:
            return {row.model: EngineRates(**row._mapping) for row in tx.execute(query)}


_HOLD_FIELDS = EngineHold.__struct_fields__
_MOVING = ("seen_at", "warm_at", "is_over")


class EngineHolds:
    def __init__(self, database: Database) -> None:
        self._db = database

    def keep(self, holds: Sequence[EngineHold]) -> None:
        """Insert new holds, and update the times and the end of stored holds."""
        rows = [{name: getattr(one, name) for name in _HOLD_FIELDS} for one in holds]
        if not rows:
            return
        statement = self._db.upsert(engine_holds)
        keys = [column.name for column in engine_holds.primary_key]
        moved = {name: statement.excluded[name] for name in _MOVING}
        with self._db.write() as tx:
            tx.execute(statement.on_conflict_do_update(index_elements=keys, set_=moved), rows)

    def since(self, when: datetime | None = None) -> list[EngineHold]:
        """Return the holds that lasted until `when` or later, by start. Without `when`, return all holds."""
        c = engine_holds.c
        query = select(*(c[name] for name in _HOLD_FIELDS)).order_by(c.began_at, c.backend, c.engine)
        if when is not None:
            query = query.where(c.seen_at >= when)
        with self._db.read() as tx:
            return [EngineHold(**row._mapping) for row in tx.execute(query)]
