"""Many rows at once: what is loaded and changed is what is read again, on each database."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Boolean, Column, Integer, MetaData, String, Table, insert, select

from orchestrator.core.model import RequestState
from orchestrator.store import bulk
from orchestrator.store.columns import Instant, Money, Names, Words
from orchestrator.store.database import Database
from tests.support.examples import ample

_metadata = MetaData()
_THINGS = Table(
    "things",
    _metadata,
    Column("home", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", Instant),
    Column("flag", Boolean),
    Column("count", Integer, nullable=False),
    Column("cost", Money),
    Column("names", Names),
    Column("words", Words),
    Column("state", String(16)),
)
_FACTS = ("at", "flag", "count", "cost", "names", "words", "state")
# Few values, so that columns are often the same in all rows, or empty in all.
_row = st.tuples(
    st.none() | st.sampled_from([datetime(2026, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]),
    st.none() | st.booleans(),
    st.integers(0, 2),
    st.none() | st.sampled_from([Decimal(0), Decimal("0.25"), Decimal("0.000000000001")]),
    st.sampled_from([(), ("a", "b")]),
    st.none() | st.sampled_from(["", "0", "per cent %s %", "half \ud800"]),
    st.none() | st.sampled_from(list(RequestState)),
)
_rows = st.lists(_row, min_size=1, max_size=5)
_homes = count()


def _as_stored(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(value.encode("utf-8", "replace").decode() if type(value) is str else value for value in row)


@pytest.mark.slow
@settings(max_examples=ample(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(loaded=_rows, changed=_rows)
def test_what_is_loaded_and_changed_is_read_again(
    database_url: str, loaded: list[tuple[object, ...]], changed: list[tuple[object, ...]]
) -> None:
    database, home = Database(database_url), next(_homes)
    query = select(*(_THINGS.c[name] for name in _FACTS)).where(_THINGS.c.home == home).order_by(_THINGS.c.number)
    changed = changed[: len(loaded)]
    try:
        with database.write() as tx:
            _metadata.create_all(tx)
            tx.execute(insert(_THINGS), {"home": home, "number": 99, "count": 7})
            names = ("home", "number", *_FACTS)
            bulk.load(tx, _THINGS, names, ((home, number, *row) for number, row in enumerate(loaded)))
            assert [tuple(row) for row in tx.execute(query)][:-1] == [_as_stored(row) for row in loaded]
            rows = ((*row, home, number) for number, row in enumerate(changed))
            assert bulk.change(tx, _THINGS, _FACTS, ("home", "number"), rows) == len(changed)
            expected = [*map(_as_stored, changed), *map(_as_stored, loaded[len(changed) :])]
            found = [tuple(row) for row in tx.execute(query)]
            assert found[:-1] == expected
            assert found[-1] == (None, None, 7, None, (), None, None), "a row that was not named"
    finally:
        database.close()


def test_no_rows_are_no_statement(database_url: str) -> None:
    database = Database(database_url)
    try:
        with database.write() as tx:
            bulk.load(tx, _THINGS, ("home", "number", "count"), [])
            assert bulk.change(tx, _THINGS, ("count",), ("home", "number"), []) == 0
    finally:
        database.close()
