"""A job's rows in a table of a database that is not ours: besides the store the one place that speaks SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Double,
    MetaData,
    Numeric,
    Table,
    Text,
    delete,
    false,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.types import TypeEngine

from orchestrator.core import permissions
from orchestrator.core.errors import OutputError, OutputFault, StorageError
from orchestrator.pipeline.finish.outputs import places
from orchestrator.pipeline.finish.outputs.faults import fault_of
from orchestrator.pipeline.finish.outputs.kinds import Kind, Plain
from orchestrator.pipeline.finish.outputs.layout import Layout, unique
from orchestrator.store.database import Database

CHUNK = 500
MAX_NAME = 63
"""Bytes of a column's name: Postgres cuts longer ones in silence."""
KEY = ("job", "custom_id")


def replace(url: str, table: str, layout: Layout, job: str, lines: Iterable[bytes]) -> None:
    """Put a job's rows in the place of those that it has in a table, in one transaction; the table is made, and gets
    the columns that it lacks. Raises OutputError.
    """
    with _told(table):
        if (file := _file_of(url)) is not None:
            permissions.make_folders(file.parent)
            permissions.make_file(file)
        with _opened(url) as tx:
            _fill(tx, table, layout, job, lines)


def probe(url: str, table: str, layout: Layout) -> None:
    """Find out whether a job's rows can be put into a table, and leave it as it is. Raises OutputError.

    All that a delivery does is done, with no row, and taken back.
    """
    if (file := _file_of(url)) is not None and (not file.exists() or file.is_dir()):
        places.probe(file)
        return
    with _told(table), suppress(_TakeBack), _opened(url) as tx:
        target, names = _ready(tx, table, layout)
        tx.execute(delete(target).where(false()))
        tx.execute(insert(target).from_select(names, select(*(target.c[name] for name in names)).where(false())))
        raise _TakeBack


class _TakeBack(Exception):
    """The transaction is to leave nothing."""


def _file_of(url: str) -> Path | None:
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


@contextmanager
def _opened(url: str) -> Iterator[Connection]:
    database = Database(url, ours=False)
    try:
        with database.write() as tx:
            yield tx
    finally:
        database.close()


@contextmanager
def _told(table: str) -> Iterator[None]:
    try:
        yield
    except (StorageError, OSError) as error:
        code = fault_of(error)
        # The hints of the store are about orch's own database.
        hint = "check that the output's database exists and is writable"
        if code is OutputFault.DIFFERS:
            hint = "use another table name for other columns"
        why = error.message if isinstance(error, StorageError) else error.strerror or str(error)
        raise OutputError(code, f"output: table {table}: {why}", hint=hint) from error


def _fill(tx: Connection, name: str, layout: Layout, job: str, lines: Iterable[bytes]) -> None:
    target, names = _ready(tx, name, layout)
    tx.execute(delete(target).where(target.c[names[0]] == job))
    rows = (dict(zip(names, map(_clean, layout.cells(line)), strict=True)) for line in lines)
    for chunk in _chunks(rows):
        tx.execute(insert(target), chunk)


def _ready(tx: Connection, name: str, layout: Layout) -> tuple[Table, list[str]]:
    """The table, made or with what it lacked, and what the columns of the layout are called in it."""
    if tx.dialect.name == "postgresql":
        # Two jobs that find no table at once take turns.
        tx.execute(text("SELECT pg_advisory_xact_lock(715518)"))
    names = unique((re.sub(r"\W", "_", column.name) for column in layout.columns), MAX_NAME)
    wanted = [
        Column(name, _type(column.kind), primary_key=name in KEY)
        for name, column in zip(names, layout.columns, strict=True)
    ]
    target = _made(tx, name, wanted)
    spelled = {column.name.casefold(): column.name for column in target.columns}
    return target, [spelled[name.casefold()] for name in names]


def _made(tx: Connection, name: str, wanted: list[Column[Any]]) -> Table:
    """The table, with every column that is wanted."""
    if not inspect(tx).has_table(name):
        table = Table(name, MetaData(), *wanted)
        table.create(tx)
        return table
    there = {
        column.name.casefold(): column.type.compile(tx.dialect)
        for column in Table(name, MetaData(), autoload_with=tx).columns
    }
    if not there.keys() >= set(KEY):
        raise OutputError(OutputFault.DIFFERS, "it already exists, and does not hold rows")
    quote = tx.dialect.identifier_preparer.quote_identifier
    for column in wanted:
        kind = column.type.compile(tx.dialect)
        found = there.get(column.name.casefold())
        if found is None:
            tx.exec_driver_sql(f"ALTER TABLE {quote(name)} ADD COLUMN {quote(column.name)} {kind}")
        elif found != kind:
            raise OutputError(OutputFault.DIFFERS, f"its column {column.name} is {found}, and must be {kind}")
    return Table(name, MetaData(), autoload_with=tx)


def _type(kind: Kind) -> TypeEngine[Any]:
    match kind:
        case Plain.INTEGER:
            return BigInteger()
        case Plain.NUMBER:
            return Double()
        case Plain.BOOLEAN:
            return Boolean()
        case Plain.MONEY:
            # SQLite has no decimals: a double holds the picodollars of any sum below a thousand dollars.
            return Numeric(38, 12).with_variant(Double(), "sqlite")
        case Plain.INSTANT:
            return DateTime(timezone=True)
        case _:
            return Text()


def _clean(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value  # Postgres knows no NUL


def _chunks(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
