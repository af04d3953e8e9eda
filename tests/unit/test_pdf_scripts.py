"""Raised and lowered digits of PDFs stay apart from the numbers before them; other small print stays as it is."""

from __future__ import annotations

import pytest

from orchestrator.documents import pdf_text
from tests.support.pdfs import page, placed


def text(*lines: str, share: float = 0.6) -> str:
    return pdf_text.extract(placed([(60, 700 - 20 * at, line) for at, line in enumerate(lines)], share=share), None)[
        0
    ]


@pytest.mark.parametrize(
    ("drawn", "read"),
    [
        ("The fee is 1,200^{3} euros.", "The fee is 1,200³ euros."),
        ("1200^{3}", "1200³"),
        ("In 2007^{12} it was 5%^{3}, then nothing.^{14}", "In 2007¹² it was 5%³, then nothing.¹⁴"),
        ("5 · 10^{-3} mol/m^{2} of H_{2}SO_{4}", "5 · 10⁻³ mol/m² of H₂SO₄"),
        ("Smith^{1,2} and Jones^{3,}", "Smith^1,2 and Jones³,"),
        ("x^{2n} + T_{23}", "x²ⁿ + T₂₃"),
        ("the 4^{th} of May 2026, and 3^{1}/_{2} days", "the 4th of May 2026, and 3¹/₂ days"),
    ],
)
def test_digits_that_are_raised_or_lowered(drawn: str, read: str) -> None:
    assert text("A line before.", drawn, "A line after.") == f"A line before.\n{read}\nA line after."


@pytest.mark.parametrize("share", [0.5, 0.583, 0.7, 0.75, 0.83])
def test_the_sizes_of_word_processors_typesetters_and_browsers(share: float) -> None:
    assert text("The fee is 1,200^{3} euros, for CO_{2}.", share=share) == "The fee is 1,200³ euros, for CO₂."


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_large_initials_and_numbers_of_the_same_size_are_not_scripts(share: float) -> None:
    assert text("A^{2003} was", share=share).split() == ["A", "2003", "was"]


def test_small_print_on_the_same_baseline_is_not_a_script() -> None:
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    data = page(b"BT 60 700 Td /F 10 Tf (Price 1,) Tj /F 6 Tf (200) Tj /F 10 Tf ( euros) Tj ET", font)
    assert pdf_text.extract(data, None)[0] == "Price 1,200 euros"


def test_turned_pages_and_scaled_fonts() -> None:
    font = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    for turned in (b"10 0 0 10 60 700 Tm", b"0 10 -10 0 300 200 Tm"):
        data = page(b"BT %s /F 1 Tf (1,200) Tj /F .6 Tf .35 Ts (3) Tj ET" % turned, font)
        assert pdf_text.extract(data, None)[0] == "1,200³"


def test_cells_of_tables_keep_their_marks() -> None:
    rows = [
        ["Year", "Fee", "CO_{2}"],
        ["2023", "1,200^{3}", "12"],
        ["2024", "1,100", "14^{1}"],
        ["2025", "1,300", "15"],
    ]
    places = [(60 + 120 * x, 700 - 16 * y, cell) for y, row in enumerate(rows) for x, cell in enumerate(row)]
    assert pdf_text.extract(placed(places), None)[0].split("\n") == [
        "Year | Fee | CO₂", "2023 | 1,200³ | 12", "2024 | 1,100 | 14¹", "2025 | 1,300 | 15",
    ]  # fmt: skip
