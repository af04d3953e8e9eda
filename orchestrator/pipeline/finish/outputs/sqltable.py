"""Delivery of a job's rows to a table of a foreign database. Apart from the store, only this module uses SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    ARRAY,
    REAL,
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
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import TypeEngine, UserDefinedType

from orchestrator.core import permissions
from orchestrator.core.errors import OutputError, OutputFault, StorageError
from orchestrator.pipeline.finish.outputs import places
from orchestrator.pipeline.finish.outputs.column_types import Kind, Plain, VectorOf
from orchestrator.pipeline.finish.outputs.faults import fault_of
from orchestrator.pipeline.finish.outputs.layout import Layout, unique
from orchestrator.store.database import Database

CHUNK = 500
MAX_NAME = 63
"""Maximum bytes of a column's name: Postgres silently truncates longer names."""
KEY = ("job", "custom_id")
_VectorType = Callable[[int | None], TypeEngine[Any]]
"""Function that returns the column type for vectors of a size; None means any size."""
ARRAY_SQL = "REAL[]"


class _Vector(UserDefinedType[list[float]]):
    cache_ok = True

    def __init__(self, size: int | str | None = None) -> None:
        self.size = None if size is None else int(size)

    def get_col_spec(self, **_: Any) -> str:
        """Return the type as it is written in `CREATE TABLE`."""
        return "VECTOR" if self.size is None else f"VECTOR({self.size})"

    def bind_processor(self, dialect: Any) -> Callable[[list[float] | None], str | None]:
        """Return a function that writes numbers in pgvector's syntax."""
        return lambda value: None if value is None else f"[{','.join(map(repr, value))}]"


# Lets SQLAlchemy recognise such a column in an existing table.
ischema_names.setdefault("vector", _Vector)


def replace(url: str, table: str, layout: Layout, job: str, lines: Iterable[bytes]) -> None:
    """Replace a job's rows in a table in one transaction, creating missing tables and columns. Raises OutputError."""
    with _output_errors(table):
        if (file := _file_of(url)) is not None:
            permissions.make_folders(file.parent)
            permissions.make_file(file)
        with _opened(url) as tx:
            _fill(tx, table, layout, job, lines)


def probe(url: str, table: str, layout: Layout) -> None:
    """Test if a job's rows can be written to a table, without changing it. Raises OutputError.

    Performs a complete delivery without rows, and rolls it back.
    """
    if (file := _file_of(url)) is not None and (not file.exists() or file.is_dir()):
        places.probe(file)
        return
    with _output_errors(table), suppress(_TakeBack), _opened(url) as tx:
        target, names = _ready(tx, table, layout)
        tx.execute(delete(target).where(false()))
        tx.execute(insert(target).from_select(names, select(*(target.c[name] for name in names)).where(false())))
        raise _TakeBack


class _TakeBack(Exception):
    """Raised to roll back the transaction."""


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
def _output_errors(table: str) -> Iterator[None]:
    try:
        yield
    except (StorageError, OSError) as error:
        code = fault_of(error)
        # The store's hints are about orch's own database, so the output gets its own hint.
        hint = "check that the output's database exists and is writable"
        if code is OutputFault.DIFFERS:
            hint = "use another table name for other columns"
        why = error.message if isinstance(error, StorageError) else error.strerror or str(error)
        raise OutputError(code, f"table {table}: {why}", hint=hint) from error


def _fill(tx: Connection, name: str, layout: Layout, job: str, lines: Iterable[bytes]) -> None:
    target, names = _ready(tx, name, layout)
    tx.execute(delete(target).where(target.c[names[0]] == job))
    as_text = tx.dialect.name == "sqlite"
    rows = (dict(zip(names, (_clean(one, as_text) for one in layout.cells(line)), strict=True)) for line in lines)
    for chunk in _chunks(rows):
        tx.execute(insert(target), chunk)


def _ready(tx: Connection, name: str, layout: Layout) -> tuple[Table, list[str]]:
    """Create the table, or add its missing columns. Return it with its column names in the layout's order."""
    if tx.dialect.name == "postgresql":
        # Two jobs that both find no table take turns.
        tx.execute(text("SELECT pg_advisory_xact_lock(715518)"))
    names = unique((re.sub(r"\W", "_", column.name) for column in layout.columns), MAX_NAME)
    vectors = _vector_type(tx)
    wanted = [
        Column(name, _type(column.kind, vectors), primary_key=name in KEY)
        for name, column in zip(names, layout.columns, strict=True)
    ]
    target = _table_with(tx, name, wanted)
    spelled = {column.name.casefold(): column.name for column in target.columns}
    return target, [spelled[name.casefold()] for name in names]


def _table_with(tx: Connection, name: str, wanted: list[Column[Any]]) -> Table:
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
        elif found != kind and not _holds_vectors(found, kind):
            raise OutputError(OutputFault.DIFFERS, f"its column {column.name} is {found}, and must be {kind}")
    return Table(name, MetaData(), autoload_with=tx)


def _type(kind: Kind, vectors: _VectorType) -> TypeEngine[Any]:
    match kind:
        case VectorOf(size):
            return vectors(size)
        case Plain.INTEGER:
            return BigInteger()
        case Plain.NUMBER:
            return Double()
        case Plain.BOOLEAN:
            return Boolean()
        case Plain.MONEY:
            # SQLite has no decimals. A double holds picodollars exactly for sums below a thousand dollars.
            return Numeric(38, 12).with_variant(Double(), "sqlite")
        case Plain.INSTANT:
            return DateTime(timezone=True)
        case _:
            return Text()


def _vector_type(tx: Connection) -> _VectorType:
    if tx.dialect.name != "postgresql":
        return lambda size: Text()
    # An installed type is not enough: this user must also be able to find it.
    if tx.execute(text("SELECT to_regtype('vector')")).scalar() is not None:
        return _Vector
    return lambda size: ARRAY(REAL())


def _holds_vectors(found: str, wanted: str) -> bool:
    """True if a column of SQL type `found` accepts vectors of SQL type `wanted`.

    A table created before pgvector was installed keeps its arrays. A column of any size accepts all vectors, and
    vectors of unknown size fit any column.
    """
    if not wanted.startswith("VECTOR"):
        return False
    return found == ARRAY_SQL or (found.startswith("VECTOR") and "VECTOR" in (found, wanted))


def _clean(value: Any, as_text: bool) -> Any:
    if isinstance(value, list) and as_text:
        return msgspec.json.encode(value).decode()
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value  # Postgres text cannot hold NUL


def _chunks(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while chunk := list(islice(rows, CHUNK)):
        yield chunk
