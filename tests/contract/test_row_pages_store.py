"""Pages of a job's rows: by place, and by what is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.model import FinishedRow, Job
from orchestrator.store import Store
from orchestrator.store.rows_by_document import ORDERS, RowFilter
from tests.support.stored import NOW, failed, job, row, settle, sharded, succeeded


@pytest.fixture
def letters(store: Store) -> Job:
    """Ten rows of two tasks: the fourth and fifth failed, those before them are answered."""
    new = job("letters-1")
    store.jobs.add(new, {})
    names = ["A%b_c", "aXbYc", *(f"letter-{number}" for number in range(2, 10))]
    rows = [row(seq, document=name, task="even" if seq % 2 == 0 else "odd") for seq, name in enumerate(names)]
    store.rows.add(new.id, rows, {}, NOW)
    of = sharded(store, new)
    done = [*(succeeded(seq) for seq in range(3)), failed(3, "refusal"), failed(4, "truncated")]
    settle(store, of, *done)
    return new


def places(
    store: Store, of: Job, most: int = 3, after: int = -1, before: int | None = None, **wanted: Any
) -> list[int]:
    found = store.rows_by_document.page(of.id, RowFilter(**wanted), most, after=after, before=before)
    return [one.row.seq for one in found]


def test_pages_go_on_behind_a_place_and_back_ahead_of_one(store: Store, letters: Job) -> None:
    assert places(store, letters) == [0, 1, 2]
    assert places(store, letters, after=2) == [3, 4, 5]
    assert places(store, letters, after=8) == [9]
    assert places(store, letters, after=9) == []
    assert places(store, letters, before=6) == [3, 4, 5]
    assert places(store, letters, before=1) == [0]


def test_rows_are_found_by_state_code_task_and_text(store: Store, letters: Job) -> None:
    assert places(store, letters, state="failed") == [3, 4]
    assert places(store, letters, code="truncated") == [4]
    assert places(store, letters, code="truncated", state="succeeded") == []
    assert places(store, letters, task="even", after=2) == [4, 6, 8]
    assert places(store, letters, state="succeeded", before=2) == [0, 1]
    assert places(store, letters, text="LETTER-7") == [7]
    assert places(store, letters, text="r9") == [9], "custom_ids are looked through too"
    assert places(store, letters, text="a%B_C") == [0], "case is ignored either way"
    assert places(store, letters, text="%b_") == [0], "what a database takes for a pattern is text"
    assert places(store, letters, text="letter", task="odd") == [3, 5, 7]


@pytest.mark.long
def test_rows_are_sorted_by_each_column_and_pages_join_at_every_place(store: Store, letters: Job) -> None:
    found = {one.row.seq: one.row for one in store.rows_by_document.page(letters.id, RowFilter(), 10)}
    keys: dict[str, Callable[[FinishedRow], Any]] = {
        "document": lambda row: row.document,
        "task": lambda row: row.task,
        "state": lambda row: row.state,
        "input_tokens": lambda row: row.usage.input_tokens,
        "output_tokens": lambda row: row.usage.output_tokens,
        "cost": lambda row: row.cost,
        "attempt": lambda row: row.attempt,
        "settled_at": lambda row: 0 if row.settled_at is None else row.settled_at.timestamp(),
    }
    assert set(keys) == set(ORDERS)
    for name, key in keys.items():
        every = places(store, letters, 10, order=name)
        if name != "document":  # databases sort letters in their own ways
            assert every == sorted(found, key=lambda seq: (key(found[seq]), seq)), name
        for descending, wanted in ((False, every), (True, every[::-1])):
            sort: dict[str, Any] = {"order": name, "descending": descending}
            for at, seq in enumerate(wanted):
                assert places(store, letters, 3, after=seq, **sort) == wanted[at + 1 : at + 4], (name, descending)
                assert places(store, letters, 3, before=seq, **sort) == wanted[max(0, at - 3) : at], (name, seq)
    assert places(store, letters, order="state", task="odd", descending=True) == [1, 9, 7]
    assert places(store, letters, order="cost", after=99) == [], "a row that is not there"


def test_a_row_is_found_by_its_place(store: Store, letters: Job) -> None:
    found = store.rows_by_document.at(letters.id, 3)
    assert found is not None
    assert (found.row.document, found.row.error_code) == ("letter-3", "refusal")
    assert store.rows_by_document.at(letters.id, 10) is None
    assert store.rows_by_document.tasks(letters.id) == ["even", "odd"]


def test_the_rows_of_a_document_are_found_by_what_they_are_called(store: Store) -> None:
    """`parts` has 150 rows in a row, of which two are called as its tasks' are; those of `split` stand apart."""
    new = job("letters-1")
    store.jobs.add(new, {})
    documents = ["split", "one", *["parts"] * 150, "two", "split", "three"]
    store.rows.add(new.id, [row(seq, document=name) for seq, name in enumerate(documents)], {}, NOW)

    def found(document: str, *ids: str) -> list[int]:
        return [one.row.seq for one in store.rows_by_document.near(new.id, document, ids)]

    assert found("one", "r1", "r999") == [1]
    assert found("parts", "r2", "r77") == list(range(2, 152))
    assert found("three", "r154") == [154]
    assert found("split", "r0", "r153") == [0, 153], "they do not stand together: the whole job is looked through"
    assert found("one", "r2") == [], "that is another document's"
    assert found("one", "nobody") == found("nobody", "r1") == []
