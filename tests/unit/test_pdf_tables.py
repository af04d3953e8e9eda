"""Tables on PDF pages: their rows keep their columns, and prose in columns is not a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.documents import pdf_text
from tests.support.examples import ample
from tests.support.pdfs import placed

ROWS = [
    ["Item", "Quantity", "Unit price", "Amount"],
    ["Leaflet, four colours", "1,500", "0.42", "630.00"],
    ["Catalogue of 48 pages", "400", "3.40", "1,360.00"],
    ["Wet proof, two rounds", "1", "100.00", "100.00"],
]
LEFT = [60, 240, 320, 420]
PROSE = (
    "The tenant pays the rent on the first day of each month to the account that the landlord names and the deposit "
    "is held on an account of its own until the keys have been returned and all rooms have been looked at by both "
).split()


def text(data: bytes) -> str:
    return pdf_text.extract(data, None)[0]


def table(rows: list[list[str]], top: float = 700, *, by_column: bool = False) -> list[tuple[float, float, str]]:
    drawn = [
        (LEFT[column], top - 16 * number, cell)
        for number, row in enumerate(rows)
        for column, cell in enumerate(row)
        if cell
    ]
    return sorted(drawn, key=lambda one: one[0]) if by_column else drawn


def columns(lefts: list[float], words: int) -> list[tuple[float, float, str]]:
    """Prose in columns, drawn as a typesetter does: one column after the other."""
    lines = [" ".join(PROSE[(at * words) % 30 : (at * words) % 30 + words]) for at in range(12 * len(lefts))]
    return [(left, 700 - 13 * at, lines[12 * n + at]) for n, left in enumerate(lefts) for at in range(12)]


@pytest.mark.parametrize("by_column", [False, True])
def test_rows_have_separators(by_column: bool) -> None:
    found = text(
        placed([(60, 740, "An invoice of this month"), *table(ROWS, by_column=by_column), (60, 500, "Thank you.")])
    )
    assert found.split("\n") == ["An invoice of this month", *(" | ".join(row) for row in ROWS), "Thank you."]


def test_a_table_below_a_heading_across_its_columns() -> None:
    heading = [(60.0, 716.0, "Prices of the first quarter, without tax and without freight, in euros of last March")]
    found = text(placed([*heading, *table(ROWS)]))
    assert found.split("\n") == [heading[0][2], *(" | ".join(row) for row in ROWS)]


FIGURES = [
    ["Year", "Net", "Gross"],
    ["First", "21,269", "21,510"],
    ["Second", "36,695.05", "75.18"],
    ["Third", "70", "9"],
]


@pytest.mark.parametrize("piece", [r"\d+|.", "."])
@pytest.mark.parametrize(("lefts", "is_whole"), [((60, 110, 160), True), ((60, 240, 320), False)])
def test_figures_drawn_piece_by_piece_are_whole_cells_or_lines(
    piece: str, lefts: Sequence[float], is_whole: bool
) -> None:
    """Boxes of points and commas are lower than those of digits; behind wide gaps PDFium breaks lines at them."""
    drawn = []
    for number, row in enumerate(FIGURES):
        for left, cell in zip(lefts, row, strict=True):
            for one in re.finditer(piece, cell) if cell[0].isdigit() else re.finditer(".+", cell):
                before = cell[: one.start()]
                wide = sum(0.556 if character.isdigit() else 0.278 for character in before) * 10
                drawn.append((left + wide, 700 - 16 * number, one.group()))
    found = text(placed(drawn))
    if is_whole:
        assert found.split("\n") == [" | ".join(row) for row in FIGURES]
    else:
        assert " | " not in found
        assert "".join(found.split()) == "".join(cell for row in FIGURES for cell in row)


POSITIONS = [["Pos", "Description", "Amount"]] + [
    [f"{number}", f"Consulting services for the phase of the project with number {number}", f"{number},000.00"]
    for number in range(1, 5)
]


@pytest.mark.parametrize("has_prose", [True, False])
def test_a_table_whose_first_cells_are_short(has_prose: bool) -> None:
    """PDFium joins the lines of the page that has no prose."""
    prose = ["Invoice number 12 of the first of May", "Please pay within thirty days."] if has_prose else []
    drawn = [
        (left, 760 - 16 * number, cell)
        for number, row in enumerate(POSITIONS)
        for left, cell in zip((60, 90, 480), row, strict=True)
    ]
    lines = [(60, 800 - 200 * number, line) for number, line in enumerate(prose)]
    found = text(placed([*lines[:1], *drawn, *lines[1:]])).split("\n")
    assert found == [*prose[:1], *(" | ".join(row) for row in POSITIONS), *prose[1:]]


@pytest.mark.parametrize("labels", ["*****", ["1.", "2.", "3.", "4.", "5."], ["i.", "ii.", "iii.", "iv.", "v."]])
@pytest.mark.parametrize("words", [2, 8])
def test_a_list_is_not_a_table(labels: Sequence[str], words: int) -> None:
    items = [(label, " ".join(PROSE[3 * at : 3 * at + words])) for at, label in enumerate(labels)]
    drawn = [
        (left, 760 - 14 * at, part)
        for at, item in enumerate(items)
        for left, part in zip((60, 90), item, strict=True)
    ]
    prose = (60.0, 800.0, "Of the duties that a tenant has, these are the first ones:")
    assert text(placed([prose, *drawn])).split("\n")[1:] == [" ".join(item) for item in items]


def test_a_table_that_is_drawn_among_other_lines() -> None:
    """Each cell is a line of its own, and a remark beside the table is drawn in the middle of it."""
    first, second = table(ROWS, by_column=True)[:8], table(ROWS, by_column=True)[8:]
    found = text(placed([*first, (60, 500, "All prices are net."), *second]))
    assert found.split("\n") == [*(" | ".join(row) for row in ROWS), "All prices are net."]


def test_a_cell_that_is_missing_leaves_its_column_empty() -> None:
    rows = [ROWS[0], ["Leaflet", "1,500", "", "630.00"], ["Postage", "", "", "12.00"], ["Proof", "1", "100.00", ""]]
    assert text(placed(table(rows))).split("\n") == [
        "Item | Quantity | Unit price | Amount", "Leaflet | 1,500 |  | 630.00", "Postage |  |  | 12.00",
        "Proof | 1 | 100.00 |",
    ]  # fmt: skip


def test_words_of_a_cell_that_are_drawn_one_by_one_stay_together() -> None:
    drawn = [(60, 700 - 16 * n, "Wet") for n in range(4)] + [(80, 700 - 16 * n, "proof") for n in range(4)]
    drawn += [(240, 700 - 16 * n, f"{n},100") for n in range(4)]
    found = text(placed(sorted(drawn, key=lambda one: (-one[1], one[0])))).split("\n")
    assert found == [f"Wet proof | {n},100" for n in range(4)]


@pytest.mark.parametrize(("lefts", "words"), [([60, 320], 8), ([60, 230, 400], 5)])
def test_prose_in_columns_keeps_its_reading_order(lefts: list[float], words: int) -> None:
    drawn = columns(lefts, words)
    assert text(placed(drawn)).split() == [word for _, _, line in drawn for word in line.split()]
    assert "|" not in text(placed(drawn))


@pytest.mark.parametrize(("table_at", "prose_at"), [(60, 320), (340, 60)])
def test_prose_beside_a_table_keeps_its_reading_order(table_at: float, prose_at: float) -> None:
    """It is drawn before the table or behind it, so that the lines of both follow each other in the text."""
    cells = [["Item", "Net", "VAT"], ["Pump", "9,100", "19 %"], ["Valve", "12", "7 %"], ["Total", "9,112", ""]]
    rows = [(table_at + 60 * at, 700 - 13 * n, cell) for n, row in enumerate(cells) for at, cell in enumerate(row)]
    prose = columns([prose_at], 8)
    found = text(placed(sorted([*rows, *prose], key=lambda one: one[0] > 300))).split("\n")
    written = [" | ".join(row).strip() for row in cells]
    lines = [line for _, _, line in prose]
    assert found == (written + lines if table_at < prose_at else lines + written)


def test_two_lines_are_not_a_table() -> None:
    assert "|" not in text(placed(table(ROWS[:2])))


def test_two_tables_on_a_page_have_their_own_columns() -> None:
    other = [["Name", "Year"], ["Ann", "1999"], ["Bob", "2001"]]
    found = text(placed([*table(ROWS), (60, 600, "A line of text between the two of them"), *table(other, 560)]))
    assert [" | ".join(row) for row in other] == found.split("\n")[-3:]


CELLS = st.text("abcdefghij 0123456789.,%", min_size=1, max_size=14).map(str.strip)


@pytest.mark.slow
@settings(deadline=None, max_examples=ample(60))
@given(st.lists(st.lists(CELLS, min_size=2, max_size=4), min_size=1, max_size=8), st.booleans())
def test_no_character_is_lost_or_comes_twice(rows: list[list[str]], by_column: bool) -> None:
    drawn = [*table(rows, by_column=by_column), (60, 60, "the end of the page")]
    wanted = Counter("".join(cell for _, _, cell in drawn).replace(" ", ""))
    found = Counter("".join(text(placed(drawn)).replace(" | ", "").replace(" |", "").replace("| ", "").split()))
    assert found == wanted
