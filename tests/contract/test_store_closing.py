"""What is left of a database when it is closed: nothing."""

from __future__ import annotations

import gc
import warnings

from sqlalchemy import literal, select, union_all

from orchestrator.store.database import Database


def test_a_stream_that_was_not_read_to_its_end_is_closed_with_its_database(database_url: str) -> None:
    database = Database(database_url)
    numbers = union_all(*(select(literal(number).label("number")) for number in range(9))).subquery()
    rows = database.stream(select(numbers.c.number), 2)
    begun = database.stream(select(numbers.c.number), 2)
    next(begun)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        database.close()
        assert list(begun) == list(rows) == []
        del rows, begun, database
        gc.collect()
    assert [str(one.message) for one in told if one.category is ResourceWarning] == []
