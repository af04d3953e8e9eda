"""Pages of a job's rows: by place, and by what is asked for."""

from __future__ import annotations

import pytest

from orchestrator.core.model import Job
from orchestrator.store import Store
from orchestrator.store.lookups import RowFilter
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
    store: Store, of: Job, most: int = 3, after: int = -1, before: int | None = None, **wanted: str
) -> list[int]:
    found = store.lookups.page(of.id, RowFilter(**wanted), most, after=after, before=before)
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
    assert places(store, letters, text="%b_") == [0], "what a database takes for a pattern is text"
    assert places(store, letters, text="letter", task="odd") == [3, 5, 7]


def test_a_row_is_found_by_its_place(store: Store, letters: Job) -> None:
    found = store.lookups.at(letters.id, 3)
    assert found is not None
    assert (found.row.document, found.row.error_code) == ("letter-3", "refusal")
    assert store.lookups.at(letters.id, 10) is None
    assert store.lookups.tasks(letters.id) == ["even", "odd"]


def test_the_rows_of_a_document_are_found_by_what_they_are_called(store: Store) -> None:
    """`parts` has 150 rows in a row, of which two are called as its tasks' are; those of `split` stand apart."""
    new = job("letters-1")
    store.jobs.add(new, {})
    documents = ["split", "one", *["parts"] * 150, "two", "split", "three"]
    store.rows.add(new.id, [row(seq, document=name) for seq, name in enumerate(documents)], {}, NOW)

    def found(document: str, *ids: str) -> list[int]:
        return [one.row.seq for one in store.lookups.near(new.id, document, ids)]

    assert found("one", "r1", "r999") == [1]
    assert found("parts", "r2", "r77") == list(range(2, 152))
    assert found("three", "r154") == [154]
    assert found("split", "r0", "r153") == [0, 153], "they do not stand together: the whole job is looked through"
    assert found("one", "r2") == [], "that is another document's"
    assert found("one", "nobody") == found("nobody", "r1") == []
