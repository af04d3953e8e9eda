"""Databases that hold the tables and nothing else: copied, as the migrations take longer than most tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from sqlalchemy import make_url

from orchestrator.store import Store
from tests.support.postgres import PostgresServer


def new_sqlite(path: Path) -> str:
    """Write one to `path`; its SQLAlchemy URL."""
    path.write_bytes(_migrated())
    return f"sqlite:///{path}"


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orch.db"
        Store.open(f"sqlite:///{path}").close()
        return path.read_bytes()


@contextmanager
def postgres_template(server: PostgresServer) -> Iterator[str]:
    """The name of one that `server.database(name)` copies."""
    with server.database() as url:
        Store.open(url).close()
        yield str(make_url(url).database)


@contextmanager
def database(kind: str, folder: Path, server: PostgresServer) -> Iterator[str]:
    """The URL of a database of a kind, `sqlite` (in the folder) or `postgres`, for the length of a block."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/orch.db"
    else:
        with server.database() as url:
            yield url
