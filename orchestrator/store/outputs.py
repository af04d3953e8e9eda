"""Records of files that orch wrote outside its home. orch overwrites no other file unasked."""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import select

from orchestrator.store.database import Database
from orchestrator.store.night_tables import outputs
from orchestrator.store.records import WrittenOutput


class Outputs:
    """Records by home and destination. `home` is a home's id, because a path is valid only on that home's machine."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def note(self, home: str, written: WrittenOutput) -> None:
        """Store a write in place of the earlier record of the same destination."""
        facts = {name: getattr(written, name) for name in WrittenOutput.__struct_fields__}
        add = self._db.upsert(outputs).values(home=home, key=_key(written.place), **facts)
        with self._db.write() as tx:
            tx.execute(add.on_conflict_do_update(index_elements=["home", "key"], set_=facts))

    def find(self, home: str, place: str) -> WrittenOutput | None:
        columns = (outputs.c[name] for name in WrittenOutput.__struct_fields__)
        with self._db.read() as tx:
            row = tx.execute(select(*columns).where(outputs.c.home == home, outputs.c.key == _key(place))).first()
        return None if row is None else WrittenOutput(**row._mapping)


def _key(place: str) -> str:
    return sha256(place.encode("utf-8", "surrogateescape")).hexdigest()
