"""Creation of the newest schema in an empty database, equal to the result of all migrations."""

from __future__ import annotations

from sqlalchemy import Column, Connection, Index, MetaData, PrimaryKeyConstraint, String, Table, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from orchestrator.store import learned_tables, night_tables  # noqa: F401  (their tables are of the metadata)
from orchestrator.store.revision import HEAD
from orchestrator.store.tables import metadata

_version = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's version table, as Alembic itself creates it."""
_ORDER = tuple(
    f"ix_requests_{name}"
    for name in ("answers", "job_id_state", "cache", "twins", "reduce", "canary", "waiting", "shard_id", "failures")
)
"""Order in which migrations create indexes. Between equally good indexes, Postgres picks the newer index."""
_NO_STATISTICS = (("requests", "job_id"), ("ledger", "job_id"), ("events", "job_id"), ("documents", "series"))
"""Columns without statistics on Postgres. Statistics would show the newest job as empty and lead to bad plans."""


def create(connection: Connection) -> bool:
    """Create the newest schema in the current transaction. Return False, changing nothing, if tables exist."""
    if inspect(connection).get_table_names():
        return False
    is_postgres = connection.dialect.name == "postgresql"
    if is_postgres:
        _partial_on_postgres()
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table))
        for index in sorted(table.indexes, key=_place):
            connection.execute(CreateIndex(index))
    _version.create(connection)
    connection.execute(_version.insert().values(version_num=HEAD))
    if is_postgres:
        for name, column in _NO_STATISTICS:
            connection.execute(text(f"ALTER TABLE {name} ALTER COLUMN {column} SET STATISTICS 0"))
    return True


def _place(index: Index) -> tuple[int, str]:
    name = str(index.name)
    return (_ORDER.index(name) if name in _ORDER else -1), name


def _partial_on_postgres() -> None:
    """Make indexes partial, as on SQLite. In table definitions, this would import the Postgres dialect everywhere."""
    for table in metadata.tables.values():
        for index in table.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
