"""Whose a result line is, whatever a provider has made of its id."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.results import Recognised, normal


def recognised(rows: list[str], told: list[str | tuple[str, str]]) -> Recognised:
    """The lines by their ids, or by id and content."""
    found = Recognised(set(rows))
    for one in told:
        name, content = one if isinstance(one, tuple) else (one, one)
        found.see(name, content.encode())
    return found


CASES: dict[str, tuple[list[str], list[str | tuple[str, str]], dict[str, str | None]]] = {
    "as sent": (["a", "b"], ["a", "b"], {"a": "a", "b": "b"}),
    "in capitals": (["row-1", "row-2"], ["ROW-1", "Row-2"], {"ROW-1": "row-1", "Row-2": "row-2"}),
    "blanks around it": (["a"], ["  a\t"], {"  a\t": "a"}),
    "a number's zeros": (["007", "8"], ["7", "8"], {"7": "007", "8": "8"}),
    "composed letters": (["caf\u00e9"], ["cafe\u0301"], {"cafe\u0301": "caf\u00e9"}),
    "blanks that were sent": ([" a "], ["a"], {"a": " a "}),
    "nobody's": (["a"], ["x"], {"x": None}),
    "two spellings of one": (["row-1"], ["ROW-1", "Row-1"], {"ROW-1": None, "Row-1": None}),
    "one spelling twice": (["row-1"], ["ROW-1", "ROW-1"], {"ROW-1": "row-1"}),
    "as sent, and spelled otherwise": (["row-1"], ["row-1", "ROW-1"], {"row-1": "row-1", "ROW-1": "row-1"}),
    "rows that differ in case alone": (["a", "A"], ["a", "A"], {"a": "a", "A": "A"}),
    "one of them is missing": (["a", "A", "b"], ["a", "b"], {"a": "a", "b": "b"}),
    "one of them twice, alike": (["a", "A"], [("a", "x"), ("a", "x"), "A"], {"a": "a", "A": "A"}),
}


@pytest.mark.parametrize(("rows", "told", "expected"), CASES.values(), ids=CASES)
def test_whose_line_it_is(
    rows: list[str], told: list[str | tuple[str, str]], expected: dict[str, str | None]
) -> None:
    found = recognised(rows, told)
    assert {name: found.row(name) for name in expected} == expected
    assert found.ambiguous == {}


GUESSES: dict[str, tuple[list[str], list[str | tuple[str, str]]]] = {
    "both in small letters": (["a", "A"], [("a", "x"), ("a", "y")]),
    "both in capitals": (["ab", "Ab"], [("AB", "x"), ("AB", "y")]),
    "one is missing, and others came back changed": (["a", "A", "Bee"], ["a", "bee"]),
    "blanks taken away": (["a", " a"], [("a", "x"), ("a", "y")]),
    "a third spelling": (["ab", "Ab"], ["ab", "AB"]),
}


@pytest.mark.parametrize(("rows", "told"), GUESSES.values(), ids=GUESSES)
def test_what_cannot_be_told_apart_is_not_guessed_at(rows: list[str], told: list[str | tuple[str, str]]) -> None:
    found = recognised(rows, told)
    alike = {row for row in rows if sum(normal(row) == normal(other) for other in rows) > 1}
    assert set(found.ambiguous) == alike
    for one in told:
        name = one if isinstance(one, str) else one[0]
        assert found.row(name) not in alike


IDS = st.lists(st.text(st.sampled_from("aAbB 01"), min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@given(IDS, st.data())
def test_ids_that_come_back_as_they_were_are_always_their_own(rows: list[str], data: st.DataObject) -> None:
    told = data.draw(st.lists(st.sampled_from(rows), unique=True))
    found = recognised(rows, list(told))
    assert [found.row(name) for name in told] == told
    assert found.ambiguous == {}


CHANGES: list[Callable[[str], str]] = [str.upper, str.lower, lambda name: f" {name} ", str.strip]


@given(IDS, st.sampled_from(CHANGES))
def test_no_row_is_given_another_ones_line(rows: list[str], change: Callable[[str], str]) -> None:
    found = recognised(rows, [(change(row), row) for row in rows])
    for row in rows:
        assert found.row(change(row)) in (row, None)
