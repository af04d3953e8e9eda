"""What is left of a database when it is closed: nothing."""

from __future__ import annotations

import gc
import warnings

from sqlalchemy import literal, select, true, union_all

from orchestrator.store.database import Database


def test_a_stream_that_was_not_read_to_its_end_is_closed_with_its_database(database_url: str) -> None:
    database = Database(database_url)
    numbers = union_all(*(select(literal(number).label("number")) for number in range(9))).subquery()
    more_than_a_page = select(numbers.join(numbers.alias("b"), true()).join(numbers.alias("c"), true()))
    rows = database.stream(more_than_a_page)
    begun = database.stream(more_than_a_page)
    next(begun)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        database.close()
        assert list(begun) == list(rows) == []
        del rows, begun, database
        gc.collect()
    assert [str(one.message) for one in told if one.category is ResourceWarning] == []
