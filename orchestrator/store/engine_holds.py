"""Records of how long engines have held GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select

from orchestrator.core.engines import EngineHold
from orchestrator.store.database import Database
from orchestrator.store.tables import engine_holds

_FIELDS = EngineHold.__struct_fields__
_MOVING = ("seen_at", "warm_at", "is_over")


class EngineHolds:
    """Verbs on engine holds."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def keep(self, holds: Sequence[EngineHold]) -> None:
        """Record holds, or their progress."""
        rows = [{name: getattr(one, name) for name in _FIELDS} for one in holds]
        if not rows:
            return
        statement = self._db.upsert(engine_holds)
        keys = [column.name for column in engine_holds.primary_key]
        moved = {name: statement.excluded[name] for name in _MOVING}
        with self._db.write() as tx:
            tx.execute(statement.on_conflict_do_update(index_elements=keys, set_=moved), rows)

    def since(self, when: datetime | None = None) -> list[EngineHold]:
        """Return the holds that lasted until `when` or later, or all of them, by start."""
        c = engine_holds.c
        query = select(*(c[name] for name in _FIELDS)).order_by(c.began_at, c.backend, c.engine)
        if when is not None:
            query = query.where(c.seen_at >= when)
        with self._db.read() as tx:
            return [EngineHold(**row._mapping) for row in tx.execute(query)]
