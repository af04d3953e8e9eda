"""Lessons from a backend's refusals: how much it accepts for a model, and until when to pause."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from sqlalchemy import select

from orchestrator.store.database import Database
from orchestrator.store.learned_tables import limits


class LearnedLimit(Struct, frozen=True):
    """Learned limits of a model at a backend.

    `enqueued_tokens` and `max_rows` are its maximum, `hold_until` ends a pause, `strikes` counts the refusals since
    it last accepted something, `reason` is for people.
    """

    backend: str
    model: str
    enqueued_tokens: int | None = None
    max_rows: int | None = None
    learned_at: datetime | None = None
    hold_until: datetime | None = None
    strikes: int = 0
    reason: str = ""


class LearnedLimits:
    """Verbs on learned limits."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, backend: str, model: str) -> LearnedLimit:
        """Return the known limits; empty if nothing was learned."""
        query = select(limits).where(limits.c.backend == backend, limits.c.model == model)
        with self._db.read() as tx:
            row = tx.execute(query).first()
        return LearnedLimit(backend, model) if row is None else LearnedLimit(**row._mapping)

    def all(self) -> list[LearnedLimit]:
        """Return all learned limits."""
        with self._db.read() as tx:
            return [LearnedLimit(**row._mapping) for row in tx.execute(select(limits).order_by(*limits.primary_key))]

    def put(self, learned: LearnedLimit) -> None:
        """Record what was learned."""
        values = {name: getattr(learned, name) for name in learned.__struct_fields__}
        keys = ("backend", "model")
        facts = {name: value for name, value in values.items() if name not in keys}
        with self._db.write() as tx:
            tx.execute(self._db.upsert(limits).values(values).on_conflict_do_update(index_elements=keys, set_=facts))
