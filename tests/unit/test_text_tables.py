"""Tables and paragraphs fit the width of their terminal, and nothing of them is lost on the way."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.reports.text_tables import (
    Column,
    Line,
    StyledText,
    cell_width,
    pairs,
    paragraph,
    sentence,
    table,
    wrap,
)

WIDE = "契約書の名前"
PLAIN = st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zs", "Zl", "Zp"])
TEXTS = st.text(PLAIN | st.just(" "), max_size=90)
COLUMNS = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 4)), min_size=1, max_size=7)
WIDTHS = st.integers(min_value=20, max_value=200)


def shown(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


def letters(text: str) -> list[str]:
    return sorted(char for char in text if not char.isspace())


@given(st.data(), COLUMNS, WIDTHS)
def test_a_table_fits_and_loses_nothing(data: st.DataObject, kinds: list[tuple[bool, bool, int]], width: int) -> None:
    columns = [Column(f"c{number}", *kind) for number, kind in enumerate(kinds)]
    rows = data.draw(st.lists(st.tuples(*(TEXTS for _ in columns)), max_size=4))
    found = shown(table(columns, rows, width))
    if width >= 4 * len(columns):
        assert max(map(cell_width, found), default=0) <= width
    left = " ".join(found)
    named = re.search("not shown: (.*) \\(use a wider", left)
    kept = [place for place, column in enumerate(columns) if not named or column.name not in named[1].split(", ")]
    told = "".join(row[place] for row in rows for place in kept if row[place] != "—")
    missing = letters(told)
    for char in letters(left):
        if char in missing:
            missing.remove(char)
    assert not missing, "a cell that is shown is shown whole"


@given(TEXTS, st.integers(min_value=2, max_value=60))
def test_wrapped_text_fits_and_stays_the_same_text(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert max(map(cell_width, lines)) <= width
    assert letters("".join(lines)) == letters(text)
    assert wrap(text, 10_000) == [text.rstrip(" ")]


@given(TEXTS, WIDTHS)
def test_paragraphs_fit(text: str, width: int) -> None:
    lines = paragraph(f"orch: {text}\n  hint: {text}", width).split("\n")
    wide = [line for line in lines if cell_width(line) > width]
    assert all(max(map(cell_width, line.split())) > width - 8 for line in wide), "only where a word fits no line"
    assert {word for line in lines for word in line.split(" ")} >= {word for word in text.split(" ") if word}
    assert letters("".join(lines)) == letters(f"orch: {text} hint: {text}")


@given(TEXTS, TEXTS, WIDTHS)
def test_pairs_fit(one: str, other: str, width: int) -> None:
    lines = shown(pairs([("name", one), ("other", (one, StyledText(other, "red")))], width))
    assert max(map(cell_width, lines)) <= width
    assert letters("".join(lines)) == letters(f"name{one}other{one}{other}")


@pytest.mark.parametrize(("text", "width"), [("abc", 3), (WIDE, 12), ("e\u0301", 1), ("👍", 2), ("a\u200db", 2)])
def test_widths_are_those_of_a_terminal(text: str, width: int) -> None:
    assert cell_width(text) == width


def test_a_column_that_has_no_room_is_named() -> None:
    columns = (Column("job"), Column("state"), Column("cost", right=True, rank=1), Column("created", rank=2))
    rows = [("a-long-name-of-a-job-1234", "completed", "$12.00", "11-22 13:16")]
    assert shown(table(columns, rows, 60)) == [
        "job                        state        cost  created",
        "a-long-name-of-a-job-1234  completed  $12.00  11-22 13:16",
    ]
    assert shown(table(columns, rows, 50)) == [
        "job                        state        cost",
        "a-long-name-of-a-job-1234  completed  $12.00",
        "not shown: created (use a wider terminal, or",
        "--json)",
    ]
    assert shown(table(columns, [("a", "completed", "—", "—")], 20))[:2] == ["job  state", "a    completed"]


def test_a_name_stays_whole_beside_a_long_subject() -> None:
    subject = "Post/2026/Re: WG: Kündigung des Mietvertrages über die Flächen in der Überseestraße zum 31.12.2026.eml"
    columns = (Column("document", prose=True), Column("task"), Column("code"), Column("reason", prose=True))
    task = "kuendigungsfristen-klassifizieren-neu-01"
    lines = table(columns, [(subject, task, "schema_mismatch", "it lacks a date")], 80)
    shown = ["".join(span.text for span in line) for line in lines]
    assert any(line.endswith(f"{task}  schema_mismatch") for line in shown)
    assert subject.split() == [word for line in shown[1:-1] for word in line[:22].split()]


def test_sentences_that_have_no_room_stand_below_their_row() -> None:
    columns = (Column("route"), Column("rows", right=True), Column("reason", prose=True))
    rows = [("openai", "1,000", "half the price, and in time"), ("local", "2", "—")]
    assert shown(table(columns, rows, 30)) == [
        "route    rows",
        "openai  1,000",
        "    half the price, and in",
        "    time",
        "local       2",
    ]


def test_a_pipe_gets_whole_lines() -> None:
    rows = [("x" * 300, "y y " * 100)]
    [_, line] = shown(table((Column("document"), Column("reason", prose=True)), rows, None))
    assert line == "x" * 300 + "  " + ("y y " * 100).rstrip()
    assert shown(sentence("z " * 200, None)) == ["z " * 200]
