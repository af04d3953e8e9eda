"""Many rows at once, by statements whose worst plan is harmless.

Postgres chooses a plan by what it believes of the rows, and of a job that was just built it knows nothing, or what
the jobs before it were like. So keys are looked up and changed one by one through their index, in one round trip,
whatever it believes: a list of keys in a condition may be answered by a scan of the job for each of them.
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
_FLAGS = {None: None, False: 0, True: 1}
_NULL = "NULL"
NONE_SKIPPED: ColumnElement[int] = literal_column("0")
"""An OFFSET that keeps Postgres from taking a subquery apart."""


def load(tx: Connection, table: Table, names: Sequence[str], rows: Iterable[Values]) -> None:
    """Insert rows, each with a value for every name. Raises sqlalchemy's errors."""
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
    """Set columns of rows found by their keys; how many. A row gives the values of `names`, then those of `keys`."""
    given = list(rows)
    if not given:
        return 0
    columns, literals = _stored(table, (*names, *keys), given, tx.dialect)
    mark, quote = ("?" if tx.dialect.name == "sqlite" else "%s"), tx.dialect.identifier_preparer.quote
    values = ", ".join(f"{quote(name)} = {literals.get(name, mark)}" for name in names)
    where = " AND ".join(f"{quote(name)} = {literals.get(name, mark)}" for name in keys)
    statement = f"UPDATE {table.name} SET {values} WHERE {where}"
    return tx.exec_driver_sql(statement, _without(columns, literals, len(given))).rowcount


def each(query: Select[Any], key: ColumnElement[Any], values: Collection[Any], dialect: Dialect) -> Select[Any]:
    """A query's rows for every value of a key, in no order."""
    if dialect.name == "sqlite":
        return query.where(key.in_(values))
    given = bindparam(None, list(values), type_=ARRAY(key.type))
    wanted = func.unnest(given).table_valued(column("value", key.type), name="wanted").render_derived()
    # OFFSET keeps the planner from taking it apart.
    found = query.where(key == wanted.c.value).offset(NONE_SKIPPED).lateral("found")
    return select(found).select_from(wanted.join(found, true()))


def beside(
    other: FromClause, condition: Callable[[Any], ColumnElement[bool]], dialect: Dialect
) -> tuple[FromClause, ColumnElement[bool]]:
    """What to join with, and on what, to find for each row those of `other` by an index that `condition` names."""
    if dialect.name == "sqlite":
        return other, condition(other.c)
    return select(other).where(condition(other.c)).offset(NONE_SKIPPED).lateral(other.name), true()  # type: ignore[attr-defined]


def refresh(tx: Connection, *tables: Table) -> None:
    """Let Postgres look at tables that have just been filled. Where somebody else is at it, that will do."""
    if tx.dialect.name != "sqlite":
        tx.execute(text(f"ANALYZE (SKIP_LOCKED) {', '.join(table.name for table in tables)}"))


def _stored(
    table: Table, names: Sequence[str], rows: Sequence[Values], dialect: Dialect
) -> tuple[dict[str, Values], dict[str, str]]:
    """Columns of values as the driver takes them, and the literals of those that are NULL or 0 in every row.

    A bound NULL costs SQLite's driver as much as ten literals, and many columns of a row are empty most of the time.
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
    """The rows of the columns that are bound."""
    bound = [values for name, values in columns.items() if name not in literals]
    return list(zip(*bound, strict=True)) if bound else [()] * rows


@lru_cache(maxsize=16)
def _processors(table: Table, names: tuple[str, ...], dialect: Dialect) -> list[Callable[[Any], Any] | None]:
    """For each column what makes its values those that the driver takes; None where they are already."""
    return [_processor(table.c[name].type, dialect) for name in names]


def _processor(kind: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    if isinstance(kind, Boolean):  # SQLAlchemy's own processor is three calls in Python for each flag
        return _FLAGS.__getitem__ if dialect.name == "sqlite" else None
    return kind.bind_processor(dialect)


def _columns(names: Sequence[str], dialect: Dialect) -> str:
    return ", ".join(map(dialect.identifier_preparer.quote, names))
