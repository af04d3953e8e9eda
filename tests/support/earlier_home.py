"""A home as 0.1.0 left it, with its schema 0003 (tests/fixtures/home_0003.json), put down in a folder and a database.

Beside it lies the test that made it, run by that version, with its emulated provider (`home_0003_made_by.txt`). Jobs:
`climbed` is done, with rows that went on with the second model; `rows-1` is done; `canary` was stopped by the rows
that went first; `half` has one answer and two rows that wait for the second model; a budget stopped `rows-2` while
its batch ran, and `rows-3` before anything was sent; the batch of `rows-4` was refused, and that is not collected
yet.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import JSON, Boolean, Column, Date, MetaData, create_engine, text

from orchestrator.store.database import migrations_folder

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSION = "0003"


def put_home(folder: Path, database_url: str) -> None:
    """The home's files into `folder`/home, and its rows into an empty database of version 0003."""
    told = json.loads((FIXTURES / "home_0003.json").read_text(encoding="utf-8").replace("{folder}", str(folder)))
    for name, content in told["files"].items():
        path = folder / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    _put_rows(database_url, told["tables"])


def _put_rows(url: str, tables: dict[str, Any]) -> None:
    config, engine = Config(), create_engine(url)
    config.set_main_option("script_location", str(migrations_folder()))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, VERSION)
    metadata = MetaData()
    metadata.reflect(engine)
    del tables["alembic_version"]
    with engine.begin() as tx:
        for table in metadata.sorted_tables:
            if (given := tables.pop(table.name, None)) is None:
                continue
            columns = [table.c[name] for name in given["columns"]]
            rows = [
                {one.name: _value(one, raw) for one, raw in zip(columns, row, strict=True)} for row in given["rows"]
            ]
            tx.execute(table.insert(), rows)
            if not url.startswith("sqlite") and "id" in table.c and isinstance(rows[0]["id"], int):
                tx.execute(
                    text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) FROM {table.name}")
                )
    engine.dispose()
    assert not tables, "every table of the fixture is one of that version"


def _value(column: Column[Any], raw: Any) -> Any:
    """What SQLite holds, as any database takes it."""
    if raw is None:
        return None
    if isinstance(column.type, Boolean):
        return bool(raw)
    if isinstance(column.type, Date):
        return date.fromisoformat(raw)
    return json.loads(raw) if isinstance(column.type, JSON) else raw
