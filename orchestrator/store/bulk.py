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

Values = tuple[Any, ...]
_NONE_SKIPPED: ColumnElement[int] = literal_column("0")


def load(tx: Connection, table: Table, names: Sequence[str], rows: Iterable[Values]) -> None:
    """Insert rows, each with a value for every name. Raises sqlalchemy's errors."""
    stored = _storing(table, tuple(names), tx.dialect)
    columns = _columns(names, tx.dialect)
    if tx.dialect.name == "sqlite":
        marks = ", ".join("?" * len(names))
        if given := list(map(stored, rows)):
            tx.exec_driver_sql(f"INSERT INTO {table.name} ({columns}) VALUES ({marks})", given)
        return
    statement = f"COPY {table.name} ({columns}) FROM STDIN"
    driver: Any = tx.dialect.loaded_dbapi
    try:
        with tx.connection.cursor() as cursor, cursor.copy(statement) as copy:  # type: ignore[attr-defined]
            for row in rows:
                copy.write_row(stored(row))
    except driver.Error as error:
        raise exc.DBAPIError.instance(statement, None, error, driver.Error, dialect=tx.dialect) from error


def change(tx: Connection, table: Table, names: Sequence[str], keys: Sequence[str], rows: Iterable[Values]) -> int:
    """Set columns of rows found by their keys; how many. A row gives the values of `names`, then those of `keys`."""
    stored = _storing(table, (*names, *keys), tx.dialect)
    given = list(map(stored, rows))
    if not given:
        return 0
    mark, quote = ("?" if tx.dialect.name == "sqlite" else "%s"), tx.dialect.identifier_preparer.quote
    values = ", ".join(f"{quote(name)} = {mark}" for name in names)
    where = " AND ".join(f"{quote(name)} = {mark}" for name in keys)
    return tx.exec_driver_sql(f"UPDATE {table.name} SET {values} WHERE {where}", given).rowcount


def each(query: Select[Any], key: ColumnElement[Any], values: Collection[Any], dialect: Dialect) -> Select[Any]:
    """A query's rows for every value of a key, in no order."""
    if dialect.name == "sqlite":
        return query.where(key.in_(values))
    given = bindparam(None, list(values), type_=ARRAY(key.type))
    wanted = func.unnest(given).table_valued(column("value", key.type), name="wanted").render_derived()
    # OFFSET keeps the planner from taking it apart.
    found = query.where(key == wanted.c.value).offset(_NONE_SKIPPED).lateral("found")
    return select(found).select_from(wanted.join(found, true()))


def beside(
    other: FromClause, condition: Callable[[Any], ColumnElement[bool]], dialect: Dialect
) -> tuple[FromClause, ColumnElement[bool]]:
    """What to join with, and on what, to find for each row those of `other` by an index that `condition` names."""
    if dialect.name == "sqlite":
        return other, condition(other.c)
    return select(other).where(condition(other.c)).offset(_NONE_SKIPPED).lateral(other.name), true()  # type: ignore[attr-defined]


def refresh(tx: Connection, *tables: Table) -> None:
    """Let Postgres look at tables that have just been filled. Where somebody else is at it, that will do."""
    if tx.dialect.name != "sqlite":
        tx.execute(text(f"ANALYZE (SKIP_LOCKED) {', '.join(table.name for table in tables)}"))


@lru_cache(maxsize=16)
def _storing(table: Table, names: tuple[str, ...], dialect: Dialect) -> Callable[[Values], Values]:
    """Makes values of columns what the driver takes."""
    found = [(place, table.c[name].type.bind_processor(dialect)) for place, name in enumerate(names)]
    changed = [(place, process) for place, process in found if process is not None]

    def stored(row: Values) -> Values:
        values = list(row)
        for place, process in changed:
            values[place] = process(values[place])
        return tuple(values)

    return stored


def _columns(names: Sequence[str], dialect: Dialect) -> str:
    return ", ".join(map(dialect.identifier_preparer.quote, names))
