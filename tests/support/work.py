"""How much work a database does for what a store is asked: counted by the database itself, whatever the clock says.

On Postgres every statement is explained and run (`EXPLAIN ANALYZE`) before it is run, and taken back: the rows that
all nodes of its plan looked at are summed. On SQLite the instructions of its virtual machine are counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, event

from orchestrator.store import Store

STEP = 100
"""Instructions of SQLite between two counts."""
LONGEST = "200s"
"""Ends a plan that would never end, before the test's own limit; a sound statement takes a hundredth of it."""


@dataclass(slots=True)
class Work:
    """What was done: rows looked at (Postgres) or instructions run (SQLite), and the plans, for people."""

    rows: int = 0
    instructions: int = 0
    plans: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join((f"{self.rows:,} rows looked at, {self.instructions:,} instructions", *self.plans))


@contextmanager
def counted(store: Store) -> Iterator[Work]:
    """Count what a store's database does in this block."""
    work = Work()
    engine = store._database._engine
    look = _on_sqlite if engine.dialect.name == "sqlite" else _on_postgres
    listener = look(work)
    event.listen(engine, "before_cursor_execute", listener)
    try:
        yield work
    finally:
        event.remove(engine, "before_cursor_execute", listener)


Listener = Callable[[Connection, Any, str, Any, Any, bool], None]


def _on_postgres(work: Work) -> Listener:
    def look(connection: Connection, _: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.split(None, 1)[0].upper() not in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            return
        times, sample = (len(parameters), parameters[0]) if many else (1, parameters)
        streamed = bool(context and context.execution_options.get("yield_per"))
        text = f"DECLARE streamed CURSOR FOR {statement}" if streamed else statement
        with connection.connection.cursor() as cursor:
            cursor.execute(f"SAVEPOINT work; SET LOCAL statement_timeout = '{LONGEST}'")
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {text}", sample)
            plan = cursor.fetchone()[0][0]["Plan"]
            cursor.execute("ROLLBACK TO SAVEPOINT work")
        found = _rows(plan)
        work.rows += found * times
        work.plans.append(f"{found:,} rows, {times:,} times: {' '.join(statement.split())[:2000]}\n{_drawn(plan)}")

    return look


def _rows(plan: dict[str, Any]) -> int:
    """The rows that a node and those below it looked at; a filter looks at what it removes."""
    looked = plan["Actual Rows"] + sum(value for name, value in plan.items() if name.startswith("Rows Removed by"))
    return round(looked * plan["Actual Loops"]) + sum(map(_rows, plan.get("Plans", ())))


def _drawn(plan: dict[str, Any], depth: int = 1) -> str:
    told = [plan["Node Type"], plan.get("Relation Name", ""), plan.get("Index Name", "")]
    for name in ("Index Cond", "Filter", "Join Filter", "Hash Cond", "TID Cond"):
        if name in plan:
            told.append(f"{name}: {str(plan[name])[:150]}")
    counts = f"{plan['Plan Rows']:,} expected, {plan['Actual Rows']:,} came, {plan['Actual Loops']:,} loops"
    line = f"{'  ' * depth}{' '.join(part for part in told if part)} ({counts})"
    return "\n".join([line, *(_drawn(below, depth + 1) for below in plan.get("Plans", ()))])


def _on_sqlite(work: Work) -> Listener:
    def look(connection: Connection, _: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        raw = connection.connection.dbapi_connection
        assert isinstance(raw, sqlite3.Connection)
        if statement.split(None, 1)[0].upper() in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            sample = parameters[0] if many else parameters
            raw.set_progress_handler(None, 0)
            told = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", sample)]
            work.plans.append(f"{' '.join(statement.split())[:2000]}\n  " + "\n  ".join(told))
        raw.set_progress_handler(tick, STEP)

    def tick() -> int:
        work.instructions += STEP
        return 0

    return look


def taken(call: Callable[[Store], object], store: Store) -> Work:
    """What a call took; an iterator that it gives is read to its end."""
    with counted(store) as work:
        found = call(store)
        if isinstance(found, Iterator):
            for _ in found:
                pass
    return work
