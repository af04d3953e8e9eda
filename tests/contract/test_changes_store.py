"""What the store remembers of documents, and of the rows that were made of them before."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.core.model import RequestState, Why
from orchestrator.store import Store
from orchestrator.store.records import EarlierRow, FileMark, SeenDocument
from tests.contract.test_store_jobs import seen
from tests.support.stored import NOW, added, failed, job, later, row, settle, sharded


def test_a_file_is_known_again_by_its_stamp(store: Store) -> None:
    one = SeenDocument("docs/a", "d1", 10, None, "s1", "c1")
    store.jobs.saw_documents("s", [one, SeenDocument("docs/b", "", None, "encrypted")], NOW)
    store.jobs.saw_documents("t", [replace(one, stamp="s9")], NOW)
    assert store.jobs.marks("s", ["docs/a", "docs/b", "docs/c"]) == {
        "docs/a": FileMark("s1", "c1", "d1", 10, NOW),
        "docs/b": FileMark(None, None, "", None, NOW),
    }
    store.jobs.saw_documents("s", [replace(one, stamp=None, content="c2")], later(1))
    assert store.jobs.marks("s", ["docs/a"]) == {"docs/a": FileMark(None, "c2", "d1", 10, later(1))}


def test_a_document_that_is_still_there_keeps_what_is_known(store: Store) -> None:
    documents = [SeenDocument(key, "d", 1, None, "s1", "c1") for key in ("a", "b")]
    store.jobs.saw_documents("s", documents, NOW)
    store.jobs.saw_documents("t", documents, NOW)
    store.jobs.still_there("s", ["a"], later(1))
    assert store.jobs.marks("s", ["a"]) == {"a": FileMark("s1", "c1", "d", 1, later(1))}
    assert {key: times[4] for key, times in seen(store).items()} == {
        ("s", "a"): later(1), ("s", "b"): NOW, ("t", "a"): NOW, ("t", "b"): NOW,
    }  # fmt: skip


def test_the_documents_of_a_table_come_in_its_order(store: Store) -> None:
    of_table = [
        SeenDocument(f"t.csv#{name}", "d", 1, None, "s2", content, "t.csv", place)
        for place, (name, content) in enumerate([("z", "c0"), ("a", None), ("m", "c2"), ("b", "c3")])
    ]
    old = SeenDocument("t.csv#gone", "d", 1, None, "s1", "c9", "t.csv", 1)
    other = SeenDocument("u.csv#a", "d", 1, None, "s2", "c9", "u.csv", 0)
    store.jobs.saw_documents("s", [*reversed(of_table), old, other], NOW)
    every = [("t.csv#z", "c0"), ("t.csv#a", None), ("t.csv#m", "c2"), ("t.csv#b", "c3")]
    assert store.jobs.of_table("s", "t.csv", "s2", 0, 9) == every
    assert store.jobs.of_table("s", "t.csv", "s2", 1, 2) == every[1:3]
    assert store.jobs.of_table("s", "t.csv", "s2", 4, 9) == store.jobs.of_table("x", "t.csv", "s2", 0, 9) == []


def test_what_rows_were_made_of_is_told(store: Store) -> None:
    first = job("a-1")
    store.jobs.add(first, {})
    rows = [row(0, content="c0", wording="w"), row(1, prompt_version="v1"), row(2)]
    store.rows.add(first.id, rows, {}, NOW, whys={0: Why.NEW, 2: Why.ASKED})
    assert [found.why for found in store.rows.finished(first.id)] == [Why.NEW, None, Why.ASKED]
    settle(store, sharded(store, first), failed(1))
    pending = RequestState.PENDING
    assert store.known.before(first.id, ["r0", "r1", "r9"]) == {
        "r0": EarlierRow("f0", "c0", "w", "v", "m", pending, None),
        "r1": EarlierRow("f1", None, "", "v1", "m", RequestState.FAILED, None),
    }
    assert store.known.before(added(store, job_id="a-2").id, []) == {}


def test_documents_that_went_are_named_once_and_in_order(store: Store) -> None:
    first, second = job("a-1"), job("a-2")
    for each, documents in ((first, "dbbac"), (second, "ce")):
        store.jobs.add(each, {})
        store.rows.add(each.id, [row(seq, document=name) for seq, name in enumerate(documents)], {}, NOW)
    assert list(store.known.gone(second.id, first.id)) == ["a", "b", "d"]
    assert list(store.known.gone(first.id, first.id)) == []
