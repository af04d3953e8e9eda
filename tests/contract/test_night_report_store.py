"""Two runs side by side, on each database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.model import JobId
from orchestrator.policy.diff import ComparedRow, DocumentRun
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import Step
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.nights import Bad, Nights
from tests.support.stored import NOW, failed, later, row, sharded


@pytest.fixture
def nights(store: Store, tmp_path: Path) -> Nights:
    return Nights(store, Home(tmp_path))


def run(name: str, **facts: Any) -> DocumentRun:
    known: dict[str, Any] = dict.fromkeys(
        ("known", "changed", "asked", "other_model", "failed", "unreadable", "open"), 0
    )
    return DocumentRun(**{"name": name, "rows": 1, **known, "code": None, "message": None, **facts})


def test_documents_beside_the_run_before(nights: Nights) -> None:
    first = {"same": {"party": "a"}, "other": {"party": "b"}, "gone": {"party": "c"}, "gone too": {"party": "c"}}
    second = {
        "new": {"party": "n"}, "same": {"party": "a"}, "other": {"party": "B"}, "bad": Bad("http_400", "no"),
        "locked": Bad("encrypted", "closed", unreadable=True),
    }  # fmt: skip
    before, after = nights.run(first, at=NOW), nights.run(second, at=later(24))
    known = nights.store.comparisons
    assert list(known.documents(before.id, after.id)) == [
        run("new"),
        run("same", known=1),
        run("other", known=1, changed=1),
        run("bad", failed=1, code="http_400", message="no"),
        run("locked", failed=1, unreadable=1, code="encrypted", message="closed"),
    ]
    assert list(known.documents(None, before.id)) == [run(name) for name in first]
    assert list(known.removed_documents(before.id, after.id)) == ["gone", "gone too"]
    assert list(known.removed_documents(after.id, after.id)) == []
    assert list(known.only_in(before.id, after.id)) == [
        ComparedRow("c-gone", "gone", "t"),
        ComparedRow("c-gone too", "gone too", "t"),
    ]


def test_why_a_row_is_asked_again(store: Store) -> None:
    nights = Nights(store, Home(Path("/none")))
    before = nights.run({}, at=NOW)
    after = nights.run({}, at=later(1))
    changes: dict[str, dict[str, str]] = {
        "asked": {"prompt_version": "w"}, "model": {"model": "n"}, "words": {},
        "only named anew": {"fingerprint": "f0", "prompt_version": "w"},
    }  # fmt: skip
    store.rows.add(
        before.id, [row(i, custom_id=n, document=n, fingerprint="f0") for i, n in enumerate(changes)], {}, NOW
    )
    made = [
        row(i, **{"custom_id": n, "document": n, "fingerprint": "f1", **facts})
        for i, (n, facts) in enumerate(changes.items())
    ]
    store.rows.add(after.id, made, {}, NOW)
    assert list(store.comparisons.documents(before.id, after.id)) == [
        run("asked", known=1, changed=1, asked=1, open=1),
        run("model", known=1, changed=1, other_model=1, open=1),
        run("words", known=1, changed=1, open=1),
        run("only named anew", known=1, open=1),
    ]


def test_a_row_that_goes_on_with_a_stronger_model_was_asked_of_the_same_alias(store: Store) -> None:
    nights = Nights(store, Home(Path("/none")))
    before, after = nights.run({}, at=NOW), nights.run({}, at=later(1))
    for run_of, fingerprint in ((before, "f0"), (after, "f1")):
        store.rows.add(run_of.id, [row(0, custom_id="c", document="d", fingerprint=fingerprint)], {}, NOW)
    bad = Settled(failed(0, "truncated")[0], None)
    assert store.escalations.escalate(sharded(store, after), [bad], Step("m@2", ("big",), None), NOW) == 1
    assert list(store.comparisons.documents(before.id, after.id)) == [run("d", known=1, changed=1, open=1)]


def test_a_document_of_several_tasks_is_one(store: Store) -> None:
    nights = Nights(store, Home(Path("/none")))
    before, after = nights.run({}, at=NOW), nights.run({}, at=later(1))
    store.rows.add(before.id, [row(0, custom_id="d-t", document="d")], {}, NOW)
    both = [row(0, custom_id="d-t", document="d"), row(1, custom_id="d-u", document="d", task="u")]
    store.rows.add(after.id, both, {}, NOW)
    assert list(store.comparisons.documents(before.id, after.id)) == [run("d", rows=2, known=1, open=2)]
    assert list(store.comparisons.removed_documents(after.id, before.id)) == [], "a task went, its document did not"
    assert list(store.comparisons.only_in(after.id, before.id)) == [ComparedRow("d-u", "d", "u")]


def test_a_document_of_two_failures_has_code_and_message_of_one_row(store: Store) -> None:
    found = Nights(store, Home(Path("/none"))).run({}, at=NOW)
    both = [row(i, custom_id=f"d-{i}", document="d", task=f"t{i}", problem=problem)
            for i, problem in enumerate([("too_long", "a part"), ("quote_missing", "no quote")])]  # fmt: skip
    store.rows.add(found.id, both, {}, NOW)
    [told] = store.comparisons.documents(None, found.id)
    assert (told.code, told.message, told.failed) == ("quote_missing", "no quote", 2)


def test_only_rows_whose_answer_lies_elsewhere_are_compared(nights: Nights) -> None:
    first: dict[str, Any] = {"same": {"party": "a"}, "again": {"party": "b"}, "fails": {"party": "c"}}
    second = {"same": {"party": "a"}, "again": {"party": "b"}, "fails": Bad("http_400", "no"), "new": "x"}
    before = nights.run(first, at=NOW)
    after = nights.run(second, at=later(24), asked={"again": "in other words"})
    pairs = list(nights.store.comparisons.moved(before.id, after.id))
    assert [(old.document, old.state, new.state) for old, new in pairs] == [
        ("again", "succeeded", "succeeded"), ("fails", "succeeded", "failed"),
    ]  # fmt: skip
    rows = {one.custom_id: one for one in nights.store.rows.finished(before.id)}
    for old, _ in pairs:
        kept = rows[old.custom_id]
        assert (old.result, old.usage, old.cost) == (kept.result, kept.usage, kept.cost)
        assert (old.seq, old.settled_at, old.answered_by) == (kept.seq, kept.settled_at, kept.answered_by)
    assert pairs[1][1].error_code == "http_400"
    assert list(nights.store.comparisons.moved(after.id, JobId("none"))) == []
