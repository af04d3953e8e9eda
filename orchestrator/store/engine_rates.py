"""Measured throughput of our own engines."""

from __future__ import annotations

from sqlalchemy import select

from orchestrator.core.engines import EngineRates
from orchestrator.store.database import Database
from orchestrator.store.tables import engine_rates

_FIELDS = EngineRates.__struct_fields__


class MeasuredRates:
    """Verbs on measured rates."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def put(self, rates: EngineRates) -> None:
        """Record an engine's rates: the latest ones replace those for the same options, version and GPU."""
        values = {name: getattr(rates, name) for name in _FIELDS}
        keys = [column.name for column in engine_rates.primary_key]
        facts = {name: value for name, value in values.items() if name not in keys}
        with self._db.write() as tx:
            tx.execute(
                self._db.upsert(engine_rates).values(values).on_conflict_do_update(index_elements=keys, set_=facts)
            )

    def of(self, home: str, backend: str) -> dict[str, EngineRates]:
        """Return the latest rates of each model of a backend, with any options, version and GPU."""
        c = engine_rates.c
        query = (
            select(*(c[name] for name in _FIELDS)).where(c.home == home, c.backend == backend).order_by(c.measured_at)
        )
        with self._db.read() as tx:
            return {row.model: EngineRates(**row._mapping) for row in tx.execute(query)}
