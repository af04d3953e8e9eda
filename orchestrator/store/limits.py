"""Limits learned from a backend's refusals: its capacity for a model, and the pause before the next batch."""

from __future__ import annotations

from sqlalchemy import bindparam, select

from orchestrator.policy.quota import LearnedLimit
from orchestrator.store.database import Database
from orchestrator.store.learned_tables import limits

_OF_MODEL = select(limits).where(limits.c.backend == bindparam("backend"), limits.c.model == bindparam("model"))


class LearnedLimits:
    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, backend: str, model: str) -> LearnedLimit:
        """Return the learned limits of a backend for a model; an empty record if it has none."""
        with self._db.read() as tx:
            row = tx.execute(_OF_MODEL, {"backend": backend, "model": model}).first()
        return LearnedLimit(backend, model) if row is None else LearnedLimit(**row._mapping)

    def all(self) -> list[LearnedLimit]:
        with self._db.read() as tx:
            return [LearnedLimit(**row._mapping) for row in tx.execute(select(limits).order_by(*limits.primary_key))]

    def put(self, learned: LearnedLimit) -> None:
        values = {name: getattr(learned, name) for name in learned.__struct_fields__}
        keys = ("backend", "model")
        facts = {name: value for name, value in values.items() if name not in keys}
        with self._db.write() as tx:
            tx.execute(self._db.upsert(limits).values(values).on_conflict_do_update(index_elements=keys, set_=facts))
