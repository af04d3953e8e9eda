"""What is different between the answers of two runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.diff import (
    MISSING,
    MOST_FIELDS,
    OTHERS,
    ComparedRow,
    FieldChange,
    Said,
    changes_between,
    difference,
    shown,
)

CHANGES: dict[str, tuple[Any, Any, list[tuple[str, Any, Any]]]] = {
    "the same": ({"a": 1}, {"a": 1}, []),
    "the same in another order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
    "a field": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [("b", 2, 3)]),
    "a nested field": ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 3}}, [("a.y", 2, 3)]),
    "nothing within came": ({}, {"a": {}}, [("a", MISSING, {})]),
    "came": ({}, {"a": 1}, [("a", MISSING, 1)]),
    "went": ({"a": 1, "b": 1}, {"b": 1}, [("a", 1, MISSING)]),
    "null is not nothing": ({"a": None, "b": 1}, {"b": 1}, [("a", None, MISSING)]),
    "a list is one field": ({"a": [1, 2]}, {"a": [1, 3]}, [("a", [1, 2], [1, 3])]),
    "true is not 1": ({"a": True}, {"a": 1}, [("a", True, 1)]),
    "text": ("yes", "no", [("answer", "yes", "no")]),
    "text became an object": ("yes", {"a": 1}, [("answer", "yes", MISSING), ("a", MISSING, 1)]),
}


@pytest.mark.parametrize(("before", "after", "changes"), CHANGES.values(), ids=CHANGES.keys())
def test_fields(before: Any, after: Any, changes: list[tuple[str, Any, Any]]) -> None:
    found = changes_between(Said("succeeded", before), Said("succeeded", after))
    assert found == tuple(FieldChange(*change) for change in changes)


def test_an_answer_that_came_or_went_is_told_by_its_status() -> None:
    went = changes_between(Said("succeeded", {"a": 1}), Said("failed", "http_400"))
    assert went == (FieldChange("status", "succeeded", "failed: http_400"),)
    assert changes_between(Said("expired", None), Said("succeeded", 1)) == (
        FieldChange("status", "expired", "succeeded"),
    )
    assert changes_between(Said("failed", "a"), Said("failed", "a")) == ()
    other = changes_between(Said("failed", "a"), Said("failed", "b"))
    assert other == (FieldChange("status", "failed: a", "failed: b"),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(JSON, JSON)
def test_whatever_answers_are(one: Any, other: Any) -> None:
    assert changes_between(Said("succeeded", one), Said("succeeded", one)) == ()
    there = changes_between(Said("succeeded", one), Said("succeeded", other))
    back = changes_between(Said("succeeded", other), Said("succeeded", one))
    assert {(c.field, repr(c.before), repr(c.after)) for c in there} == {
        (c.field, repr(c.after), repr(c.before)) for c in back
    }
    assert [shown(c.before).count("\n") for c in there] == [0] * len(there)


def row(number: int, task: str = "t") -> ComparedRow:
    return ComparedRow(f"c{number}", f"d{number}", task)


def said(value: Any) -> Said:
    return Said("succeeded", value)


def test_all_rows_are_counted_and_the_first_are_kept() -> None:
    moved = [(row(i), said({"a": 0, "b": 0}), said({"a": 1, "b": i % 2})) for i in range(5)]
    same = [(row(7), said(1), said(1)), (row(8), None, said(1)), (row(9, ""), said("x"), said("y"))]
    found = difference("one", "two", [row(i) for i in range(4)], [], [*moved, *same], most=2)
    assert (found.added.number, len(found.added.first), found.removed.number) == (4, 2, 0)
    assert (found.changed, len(found.first), found.unread) == (6, 2, 1)
    assert list(found.by_field.items()) == [("t.a", 5), ("t.b", 2), ("answer", 1)]
    told = found.to_json()
    assert told["changed"]["first"][1]["fields"] == [
        {"field": "a", "before": 0, "after": 1}, {"field": "b", "before": 0, "after": 1},
    ]  # fmt: skip


def test_fields_without_end_are_counted_together() -> None:
    many = [(row(i), said({"a": 0, f"x{i}": 0}), said({"a": 0})) for i in range(MOST_FIELDS + 7)]
    found = difference("one", "two", [], [], many, most=0)
    assert (len(found.by_field), found.by_field[OTHERS]) == (MOST_FIELDS + 1, 7)


def test_values_are_shown_on_one_short_line() -> None:
    assert [shown(value) for value in (MISSING, None, True, "a\n b", 1.5, [1])] == [
        "—",
        "—",
        "true",
        "a b",
        "1.5",
        "[1]",
    ]
    assert shown("x" * 999) == "x" * 199 + "…"
