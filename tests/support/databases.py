"""Databases that hold the tables and nothing else: copied, as the migrations take longer than most tests.

On Postgres a copy takes longer than most tests too: what a test wrote is removed, and the next one gets the database.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql
from sqlalchemy import Compiled, Dialect, Engine, Table, make_url
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.util import LRUCache

from orchestrator.store import Store
from orchestrator.store.tables import metadata
from tests.support.postgres import PostgresServer


def share_statements() -> None:
    """Let every engine use the statements that any of its kind of database compiled.

    A test's own engine would begin with none. A statement takes a millisecond or two to compile, and a hosted job
    runs some hundred different ones.
    """
    for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
        options = {"compiled_cache": LRUCache(1000)}
        # A compiled statement is found by its dialect, of which each engine has one: here they are one.
        patches: dict[str, Any] = {
            "__eq__": lambda one, other: type(one) is type(other),
            "__hash__": lambda one: hash(type(one)),
            "engine_created": staticmethod(partial(_with_options, options)),
        }
        for name, patch in patches.items():
            setattr(dialect, name, patch)
    for kind in (CreateTable, CreateIndex):
        kind._compiler = _compiled_once(kind._compiler)  # type: ignore[method-assign]


def _compiled_once(compiler: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """The same for the statements that make our own tables: a database takes fifty of them."""
    kept: dict[tuple[type, str, type], Compiled] = {}

    def compiled(one: CreateTable | CreateIndex, dialect: Dialect, **options: Any) -> Compiled:
        made = one.element
        table = made if isinstance(made, Table) else made.table
        if metadata.tables.get(table.name) is not table:
            return compiler(one, dialect, **options)
        key = type(one), str(made.name), type(dialect)
        if key not in kept:
            kept[key] = compiler(one, dialect, **options)
        return kept[key]

    return compiled


def _with_options(options: dict[str, Any], engine: Engine) -> None:
    engine.update_execution_options(**options)


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


# All that a test may change but the rows of our tables.
_SHAPE: LiteralString = """
SELECT md5(concat(
    (SELECT string_agg(concat(c.oid, relname, relacl, attname, atttypid, attnotnull, attacl), ','
        ORDER BY c.oid, attnum)
     FROM pg_class c LEFT JOIN pg_attribute ON attrelid = c.oid WHERE relnamespace = 'public'::regnamespace),
    (SELECT string_agg(concat(oid, conname), ',' ORDER BY oid) FROM pg_constraint),
    (SELECT string_agg(concat(oid, nspname, nspacl), ',' ORDER BY oid) FROM pg_namespace WHERE nspname !~ '^pg_'),
    (SELECT concat(max(oid), count(*)) FROM pg_proc),
    (SELECT concat(max(oid), count(*)) FROM pg_trigger),
    (SELECT string_agg(setconfig::text, ',') FROM pg_db_role_setting),
    (SELECT string_agg(version_num, ',') FROM alembic_version)))
"""
# Tables with pages: those that rows were written to, though they be gone again.
_WRITTEN: LiteralString = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0
"""


class MigratedDatabases:
    """Databases on a Postgres that have their tables: `with databases.one() as url:`."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._shape = ""
        self._emptied: list[tuple[str, AbstractContextManager[str]]] = []

    def __enter__(self) -> Self:
        with self._server.database(self._template) as url:
            self._shape = self._emptied_shape(url)
        return self

    def __exit__(self, *ended: object) -> None:
        for _, copy in self._emptied:
            copy.__exit__(None, None, None)

    @contextmanager
    def one(self) -> Iterator[str]:
        """The URL of one that nobody else has."""
        if self._emptied:
            url, copy = self._emptied.pop()
        else:
            copy = self._server.database(self._template)
            url = copy.__enter__()
        try:
            yield url
        finally:
            if self._emptied_shape(url) == self._shape:
                self._emptied.append((url, copy))
            else:
                copy.__exit__(None, None, None)

    def _emptied_shape(self, url: str) -> str:
        """Empty a database; its shape."""
        name = str(make_url(url).database)
        # A test may have killed a client whose connection is still there.
        self._server.end_clients(name)
        with psycopg.connect(host=str(self._server.folder), user="postgres", dbname=name, autocommit=True) as own:
            if written := [sql.Identifier(row[0]) for row in own.execute(_WRITTEN)]:
                own.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(sql.SQL(", ").join(written)))
            # What it learned about the rows that were there.
            own.execute("DELETE FROM pg_statistic WHERE starelid >= 16384")
            [[shape]] = own.execute(_SHAPE)
            return str(shape)


@contextmanager
def database(kind: str, folder: Path, server: PostgresServer) -> Iterator[str]:
    """The URL of a database of a kind, `sqlite` (in the folder) or `postgres`, for the length of a block."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/orch.db"
    else:
        with server.database() as url:
            yield url
