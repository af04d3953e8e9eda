"""Bulk statements that stay fast whatever plan Postgres chooses.

Postgres plans by statistics, which may not cover a new job. For a list of keys, it may then scan the whole job for
each key. So these statements look up each key through its index, in one round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Select,
    Table,
    bindparam,
    column,
    exc,
    func,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.types import TypeEngine

Values = tuple[Any, ...]
Also = tuple[ColumnElement[Any], Collection[Any]]
_FLAGS = {None: None, False: 0, True: 1}
_NULL = "NULL"
NONE_SKIPPED: ColumnElement[int] = literal_column("0")
"""OFFSET 0, which keeps Postgres from flattening a subquery."""


def load(tx: Connection, table: Table, names: Sequence[str], rows: Iterable[Values]) -> None:
    """Insert rows, each with a value for every name. Raises SQLAlchemy's errors."""
    given = list(rows)
    if not given:
        return
    columns, literals = _stored(table, names, given, tx.dialect)
    if tx.dialect.name == "sqlite":
        marks = ", ".join(literals.get(name, "?") for name in names)
        statement = f"INSERT INTO {table.name} ({_columns(names, tx.dialect)}) VALUES ({marks})"
        tx.exec_driver_sql(statement, _without(columns, literals, len(given)))
        return
    told = [name for name in names if literals.get(name) != _NULL]
    statement = f"COPY {table.name} ({_columns(told, tx.dialect)}) FROM STDIN"
    driver: Any = tx.dialect.loaded_dbapi
    try:
        with tx.connection.cursor() as cursor, cursor.copy(statement) as copy:  # type: ignore[attr-defined]
            for row in zip(*(columns[name] for name in told), strict=True):
                copy.write_row(row)
    except driver.Error as error:
        raise exc.DBAPIError.instance(statement, None, error, driver.Error, dialect=tx.dialect) from error


def change(tx: Connection, table: Table, names: Sequence[str], keys: Sequence[str], rows: Iterable[Values]) -> int:
    """Set columns of rows found by key. Return the number of rows. Each row has values of `names`, then `keys`."""
    given = list(rows)
    if not given:
        return 0
    columns, literals = _stored(table, (*names, *keys), given, tx.dialect)
    mark, quote = ("?" if tx.dialect.name == "sqlite" else "%s"), tx.dialect.identifier_preparer.quote
    values = ", ".join(f"{quote(name)} = {literals.get(name, mark)}" for name in names)
    where = " AND ".join(f"{quote(name)} = {literals.get(name, mark)}" for name in keys)
    statement = f"UPDATE {table.name} SET {values} WHERE {where}"
    return tx.exec_driver_sql(statement, _without(columns, literals, len(given))).rowcount


def each(
    query: Select[Any],
    key: ColumnElement[Any],
    values: Collection[Any],
    dialect: Dialect,
    *,
    also: Also | None = None,
) -> Select[Any]:
    """Return a query for the rows that have any of these values of a key, in no particular order.

    `also` is a second column with a value for each key, which must match too. On SQLite, any key's value matches.
    """
    if dialect.name == "sqlite":
        with_key = query.where(key.in_(values))
        return with_key if also is None else with_key.where(also[0].in_(also[1]))
    keys = {"value": (key, values)} if also is None else {"value": (key, values), "also": also}
    given = (bindparam(None, list(of), type_=ARRAY(one.type)) for one, of in keys.values())
    names = (column(name, one.type) for name, (one, _) in keys.items())
    wanted = func.unnest(*given).table_valued(*names, name="wanted").render_derived()
    same = (one == wanted.c[name] for name, (one, _) in keys.items())
    found = query.where(*same).offset(NONE_SKIPPED).lateral("found")
    return select(found).select_from(wanted.join(found, true()))


def beside(
    other: FromClause, condition: Callable[[Any], ColumnElement[bool]], dialect: Dialect
) -> tuple[FromClause, ColumnElement[bool]]:
    """Return a table and an ON condition that join `other` and find its rows through an index."""
    if dialect.name == "sqlite":
        return other, condition(other.c)
    return select(other).where(condition(other.c)).offset(NONE_SKIPPED).lateral(other.name), true()  # type: ignore[attr-defined]


def refresh(tx: Connection, *tables: Table) -> None:
    """Update Postgres's statistics for tables that were just filled. A table that is being analysed is skipped."""
    if tx.dialect.name != "sqlite":
        tx.execute(text(f"ANALYZE (SKIP_LOCKED) {', '.join(table.name for table in tables)}"))


def _stored(
    table: Table, names: Sequence[str], rows: Sequence[Values], dialect: Dialect
) -> tuple[dict[str, Values], dict[str, str]]:
    """Return columns in the driver's types, and literals for columns that are NULL or 0 in every row.

    With SQLite's driver, a bound NULL costs as much as ten literals, and many columns are usually empty.
    """
    columns: dict[str, Values] = {}
    literals: dict[str, str] = {}
    processors = _processors(table, tuple(names), dialect)
    for name, process, values in zip(names, processors, zip(*rows, strict=True), strict=True):
        first = values[0]
        if first is None or first == 0 or process is not None:
            if values.count(first) == len(values):
                first = first if process is None else process(first)
                if (literal := _literal(first)) is not None:
                    literals[name] = literal
                columns[name] = (first,) * len(values)
                continue
            if process is not None:
                columns[name] = tuple(map(process, values))
                continue
        columns[name] = values
    return columns, literals


def _literal(value: Any) -> str | None:
    if value is None:
        return _NULL
    return "0" if type(value) is int and value == 0 else None


def _without(columns: dict[str, Values], literals: dict[str, str], rows: int) -> list[Values]:
    bound = [values for name, values in columns.items() if name not in literals]
    return list(zip(*bound, strict=True)) if bound else [()] * rows


@lru_cache(maxsize=16)
def _processors(table: Table, names: tuple[str, ...], dialect: Dialect) -> list[Callable[[Any], Any] | None]:
    return [_processor(table.c[name].type, dialect) for name in names]


def _processor(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(kind, Boolean):  # SQLAlchemy's own processor takes three Python calls for each flag
        return _FLAGS.__getitem__ if dialect.name == "sqlite" else None
    return kind.bind_processor(dialect)


def _columns(names: Sequence[str], dialect: Dialect) -> str:
    return ", ".join(map(dialect.identifier_preparer.quote, names))
