"""Charts: everything is inside the picture, lengths are in proportion, names are text."""

from __future__ import annotations

from decimal import Decimal
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.reports.bars import Bar, Series, bars, groups_below, groups_beside

SVG = "{http://www.w3.org/2000/svg}"
SIZES = st.lists(st.decimals(0, 10**9, places=6), min_size=1, max_size=40)


def words(size: Decimal) -> str:
    return f"${size:,.2f}"


def rects(svg: str) -> list[dict[str, float]]:
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = [
        {name: float(one.attrib[name]) for name in ("x", "y", "width", "height")} for one in root.iter(f"{SVG}rect")
    ]
    for one in found:
        assert min(one.values()) >= 0
        assert one["x"] + one["width"] <= width + 0.2
        assert one["y"] + one["height"] <= height + 0.2
    return found


def texts(svg: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@given(SIZES)
def test_bars_stay_in_the_picture_and_are_as_long_as_their_sizes(sizes: list[Decimal]) -> None:
    drawn = rects(bars([Bar(f"n{number}", size, "#000") for number, size in enumerate(sizes)], words))
    longest = max(one["width"] for one in drawn)
    for size, one in zip(sizes, drawn, strict=True):
        assert one["width"] == pytest.approx(float(size) / float(max(sizes) or 1) * longest, abs=0.2)


@given(SIZES)
def test_axes_reach_beyond_every_bar(sizes: list[Decimal]) -> None:
    series = [Series("paid", "#000", sizes), Series("list price", "#fff", sizes)]
    names = [f"n{number}" for number in range(len(sizes))]
    for chart in (groups_below, groups_beside):
        svg = chart(names, series, words)
        assert len(rects(svg)) == 2 * len(sizes) + 2  # and the legend
        ticks = [Decimal(text[1:].replace(",", "")) for text in texts(svg) if text.startswith("$")]
        assert 2 <= len(ticks) <= 6
        assert max(ticks) + Decimal("0.01") >= max(sizes)


def test_nothing_and_less_than_nothing() -> None:
    assert bars([], words) == ""
    drawn = rects(bars([Bar("a", Decimal(0), "#000"), Bar("b", Decimal(-2), "#000")], words))
    assert [one["width"] for one in drawn] == [0, 0]
    assert "$-2.00" in texts(bars([Bar("b", Decimal(-2), "#000")], words))


def test_names_are_text_whatever_they_hold() -> None:
    name = '<b>&"\x1b[31m\u202e$x$'
    for svg in (
        bars([Bar(name, Decimal(1), "#000")], words),
        groups_below([name], [Series("s", "#000", [Decimal(1)])], words),
        groups_beside([name], [Series("s", "#000", [Decimal(1)])], words),
    ):
        assert any(text.startswith('<b>&"\\u001b') for text in texts(svg))
        assert "\x1b" not in svg
