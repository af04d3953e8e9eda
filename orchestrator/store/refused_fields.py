"""Request fields that models have refused: learned from refusals, and valid for some time."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct
from sqlalchemy import delete, select

from orchestrator.store.database import Database
from orchestrator.store.learned_tables import refused_fields

BELIEVED_FOR = timedelta(days=30)
"""How long a refusal is valid. Providers change what their models accept."""


class LearnedField(Struct, frozen=True):
    """A field that a model has refused.

    `model` is the backend's name for the model. `endpoint` is the path of the task. `field` is the field's name as
    sent. `code` and `message` are the provider's.
    """

    backend: str
    model: str
    endpoint: str
    field: str
    code: str
    message: str
    learned_at: datetime

    @property
    def until(self) -> datetime:
        """Time when the refusal expires."""
        return self.learned_at + BELIEVED_FOR


class RefusedFields:
    def __init__(self, database: Database) -> None:
        self._db = database

    def put(self, learned: LearnedField) -> bool:
        """Store a refused field. Return True if it was unknown.

        A known field keeps its `learned_at`, so that it expires and is learned again.
        """
        if learned.field in self.of(learned.backend, learned.model, learned.endpoint, learned.learned_at):
            return False
        values = {name: getattr(learned, name) for name in LearnedField.__struct_fields__}
        keys = [column.name for column in refused_fields.primary_key]
        facts = {name: value for name, value in values.items() if name not in keys}
        with self._db.write() as tx:
            upsert = self._db.upsert(refused_fields).values(values)
            tx.execute(upsert.on_conflict_do_update(index_elements=keys, set_=facts))
        return True

    def of(self, backend: str, model: str, endpoint: str, at: datetime) -> frozenset[str]:
        """Return the fields that a model refused, if learned by `at` and not expired then."""
        c = refused_fields.c
        query = select(c.field).where(
            c.backend == backend,
            c.model == model,
            c.endpoint == endpoint,
            c.learned_at > at - BELIEVED_FOR,
            c.learned_at <= at,
        )
        with self._db.read() as tx:
            return frozenset(tx.scalars(query))

    def all(self, now: datetime) -> list[LearnedField]:
        query = select(refused_fields).where(refused_fields.c.learned_at > now - BELIEVED_FOR)
        with self._db.read() as tx:
            rows = tx.execute(query.order_by(*refused_fields.primary_key))
            return [LearnedField(**row._mapping) for row in rows]

    def forget(self, backend: str, model: str | None = None, field: str | None = None) -> int:
        """Delete a backend's refusals, or only those of a model or field. Return the number of deleted refusals."""
        c = refused_fields.c
        statement = delete(refused_fields).where(c.backend == backend)
        if model is not None:
            statement = statement.where(c.model == model)
        if field is not None:
            statement = statement.where(c.field == field)
        with self._db.write() as tx:
            return tx.execute(statement).rowcount
