"""Known answers: the file, what counts as the same, and the score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.settings.known_answers import Gold, Score, alike, read, score, score_words

LINE = '{"document": "a.txt", "task": "t", "expect": {"x": 1}}'


def gold_file(folder: Path, *lines: str) -> Path:
    path = folder / "gold.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_lines_are_read_and_blank_ones_passed_over(tmp_path: Path) -> None:
    text = '{"document": "a.txt", "task": "u", "expect": "Yes"}'
    assert read(gold_file(tmp_path, LINE, "", text), ["t", "u"]) == [
        Gold("a.txt", "t", {"x": 1}),
        Gold("a.txt", "u", "Yes"),
    ]


@pytest.mark.parametrize(
    ("lines", "line", "field", "message"),
    [
        ((LINE, "{"), 2, None, "is not a known answer: "),
        (('{"document": "a", "task": "t"}',), 1, None, "missing required field `expect`"),
        (('{"document": "a", "task": "t", "expect": {"x": 1}, "y": 2}',), 1, None, "unknown field `y`"),
        (('{"document": "a", "task": "v", "expect": {"x": 1}}',), 1, "task", "the job has no task 'v'"),
        (('{"document": "a", "task": "t", "expect": {}}',), 1, "expect", "expects nothing"),
        ((LINE, LINE), 2, "document", "has 'a.txt' for t twice"),
        ((), None, "gold", "contains no known answers"),
    ],
)
def test_a_mistake_is_told_with_its_place(
    tmp_path: Path, lines: tuple[str, ...], line: int | None, field: str | None, message: str
) -> None:
    path = gold_file(tmp_path, *lines)
    with pytest.raises(InputError) as raised:
        read(path, ["t"])
    assert (raised.value.file, raised.value.line, raised.value.field) == (path, line, field)
    assert message in raised.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read(tmp_path / "none.jsonl", ["t"])


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("MIT", " mit ", True), ("New  York", "new\nyork", True), ("Straße", "STRASSE", True), ("a", "b", False),
        (1, 1.0, True), (0.1, 0.1 + 1e-9, True), (1000, 1001, False), (1, "1", False), (1, True, False),
        (True, 1, False), (False, False, True), (None, None, True), (None, "", False), ("", None, False),
        ([1, "a"], [1, "A"], True), ([1, 2], [2, 1], False), ([1], [1, 2], False),
        ({"a": 1}, {"a": 1, "b": 2}, True), ({"a": 1, "b": 2}, {"a": 1}, False), ({"a": None}, {}, False),
        ([], {}, False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same(expected: Any, given: Any, same: bool) -> None:
    assert alike(expected, given) is same


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
def test_a_value_is_like_itself(value: Any) -> None:
    assert alike(value, value)


def test_every_expected_field_counts_once_and_a_row_without_an_answer_has_none_right() -> None:
    first, second, third = Gold("a", "t", {"x": 1, "y": "b"}), Gold("b", "t", {"x": 2}), Gold("c", "u", "yes")
    found = score([(first, {"x": 1, "y": "c", "z": 0}), (second, None), (third, "Yes")])
    assert found == Score(2, 4, 3, ("a (t)", "b (t)"))
    assert score_words(found, 2) == (
        "50.0%: 2 of 4 known fields right, in 3 rows; wrong in a (t), b (t); "
        "2 known answers have nothing to be compared with"
    )


def test_no_more_than_a_few_are_named() -> None:
    found = score((Gold(name, "t", {"x": 1}), {}) for name in "abcde")
    assert score_words(found, 0) == "0.0%: 0 of 5 known fields right, in 5 rows; wrong in a (t), b (t), c (t) …"
    assert score_words(score([]), 5).startswith("0 of 0 known fields right, in 0 rows; 5 known")
