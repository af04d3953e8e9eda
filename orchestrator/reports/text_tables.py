"""Tables and paragraphs for a terminal of a given width. Pure.

Text is never cut off. Text that does not fit is wrapped or put below its row. A column that does not fit is left out
and named.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.sanitize import escape_controls, one_line

GAP = 2
PROSE = 30
"""Minimum width of a prose column. The text of a narrower column goes below its row."""
WORD = 12
"""Minimum width of a column without prose if its texts are wrapped."""
INDENT = 4
NOTHING = ("", "—")


class StyledText(Struct, frozen=True):
    text: str
    style: str = ""


Line = tuple[StyledText, ...]
Cell = str | StyledText


class Column(Struct, frozen=True):
    """A column of a table. `prose` columns wrap before all others.

    If the table is too wide, the column with the highest `rank` is left out first. Rank 0 always stays.
    """

    name: str
    right: bool = False
    prose: bool = False
    rank: int = 0


class _Fit(Struct, frozen=True):
    """Columns shown, their widths, the column whose cells go below their row (-1: none), and names of columns left
    out.
    """

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    below: int
    left_out: tuple[str, ...]


def cell_width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def wrap(text: str, width: int, *, words: bool = True) -> list[str]:
    """Break a text into lines at spaces. With `words`, also break a word that is longer than a line."""
    if "\n" not in text and cell_width(text) <= width:
        return [text.rstrip(" ")]
    return [line for paragraph in text.split("\n") for line in _wrapped(paragraph, max(1, width), words)]


def _wrapped(paragraph: str, width: int, words: bool) -> Iterator[str]:
    line, used = "", 0
    for blanks, word in re.findall(r"( *)([^ ]+)", paragraph):
        size = cell_width(word)
        # A word that stays whole but is longer than any line continues the current line.
        if line.strip(" ") and used + len(blanks) + size > width and (words or size <= width):
            yield line
            line, used, blanks = "", 0, ""
        line, used = line + blanks, used + len(blanks)
        if used + size <= width or not words:
            line, used = line + word, used + size
            continue
        for char in word:
            step = _char_width(char)
            if used + step > width and line.strip(" "):
                yield line
                line, used = "", 0
            line, used = line + char, used + step
    yield line


def paragraph(text: str, width: int | None, *, indent: str = "  ") -> str:
    """Wrap a text at spaces, with continuation lines indented. Without a width, the text stays as it is.

    A word stays whole, even if it is longer than a line: a broken path or command cannot be copied.
    """
    safe = escape_controls(text)
    if width is None:
        return safe
    lines = []
    for line in safe.expandtabs(4).split("\n"):
        first, *rest = wrap(line, width, words=False)
        lead = indent + line[: len(line) - len(line.lstrip(" "))]
        lines.append(first)
        if rest:
            tail = line[len(first) :].lstrip(" ")
            lines += [lead + more for more in wrap(tail, width - len(lead), words=False)]
    return "\n".join(lines)


def pairs(rows: Sequence[tuple[str, Sequence[Cell] | Cell]], width: int | None) -> list[Line]:
    """Lay out names on the left and their values on the right. A value is one cell, or several side by side."""
    lead = max((cell_width(name) for name, _ in rows), default=0) + GAP
    lines: list[Line] = []
    for name, told in rows:
        spans = [_span(cell) for cell in ([told] if isinstance(told, str | StyledText) else told)]
        room = None if width is None else max(WORD, width - lead)
        if room is None or _total([cell_width(span.text) for span in spans]) <= room:
            apart = [replace(span, text=span.text + " " * GAP) for span in spans[:-1]]
            lines.append((StyledText(f"{name:<{lead}}"), *apart, *spans[-1:]))
            continue
        parts = [StyledText(part, span.style) for span in spans for part in wrap(span.text, room)]
        lines += [(StyledText(f"{name if not number else '':<{lead}}"), part) for number, part in enumerate(parts)]
    return lines


def _span(cell: Cell) -> StyledText:
    return StyledText(one_line(cell)) if isinstance(cell, str) else replace(cell, text=one_line(cell.text))


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[Line]:
    """Lay out a table at most `width` terminal columns wide (None: unlimited). Columns left out are named below the
    table.
    """
    spans = [[_span(cell) for cell in row] for row in rows]
    fit = _fit(columns, spans, width)
    head = [StyledText(column.name, "bold") for column in columns]
    lines: list[Line] = []
    for number, row in enumerate([head, *spans]):
        lines += _row(columns, row, fit)
        if number and fit.below >= 0 and row[fit.below].text not in NOTHING:
            room = max(WORD, (width or 0) - INDENT)
            below = row[fit.below]
            lines += [(StyledText(" " * INDENT), replace(below, text=part)) for part in wrap(below.text, room)]
    if fit.left_out:
        lines += sentence(f"not shown: {', '.join(fit.left_out)} (use a wider terminal, or --json)", width, "dim")
    return lines


def sentence(text: str, width: int | None, style: str = "") -> list[Line]:
    told = escape_controls(text)
    return [(StyledText(part, style),) for part in (wrap(told.expandtabs(4), width) if width else told.split("\n"))]


def beside(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    """Lay out two texts side by side, each `width` columns wide."""
    lines: list[Line] = []
    for one, other in zip_longest(left, right, fillvalue=()):
        gap = " " * (width - sum(cell_width(span.text) for span in one))
        lines.append(_trimmed([*one, StyledText(f"{gap} │ "), *other]))
    return lines


def _row(columns: Sequence[Column], row: Sequence[StyledText], fit: _Fit) -> list[Line]:
    cells = [wrap(row[place].text, size) for place, size in zip(fit.shown, fit.widths, strict=True)]
    lines: list[Line] = []
    for number in range(max(map(len, cells), default=0)):
        line: list[StyledText] = []
        for place, size, parts in zip(fit.shown, fit.widths, cells, strict=True):
            text = parts[number] if number < len(parts) else ""
            pad = " " * (size - cell_width(text))
            text = pad + text if columns[place].right else text + pad
            line.append(StyledText(text if place == fit.shown[-1] else text + " " * GAP, row[place].style))
        lines.append(_trimmed(line))
    return lines


def _trimmed(line: list[StyledText]) -> Line:
    while line and not line[-1].text.strip():
        line.pop()
    return (*line[:-1], replace(line[-1], text=line[-1].text.rstrip(" "))) if line else ()


def _fit(columns: Sequence[Column], rows: Sequence[Sequence[StyledText]], width: int | None) -> _Fit:
    natural = [
        max([cell_width(column.name), *(cell_width(row[place].text) for row in rows)])
        for place, column in enumerate(columns)
    ]
    shown, below, left_out = list(range(len(columns))), -1, list[str]()
    while True:
        widths = [natural[place] for place in shown]
        if width is None or _total(widths) <= width:
            break
        if (fitted := _with_prose(columns, natural, shown, width)) is not None:
            widths = fitted
            break
        least = max(shown, key=lambda one: columns[one].rank)
        if (place := _empty(columns, rows, shown)) is not None:
            shown.remove(place)
        elif columns[shown[-1]].prose and below < 0 and len(shown) > 1:
            below = shown.pop()
        elif len(shown) > 1 and columns[least].rank:
            shown.remove(least)
            left_out.append(columns[least].name)
        else:
            # Broken names are hard to read, so prose columns make room for them, down to the width of a word.
            widths = _with_prose(columns, natural, shown, width, WORD) or _squeezed(widths, width)
            break
    in_order = [column.name for column in columns if column.name in left_out]
    return _Fit(tuple(shown), tuple(widths), below, tuple(in_order))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _empty(columns: Sequence[Column], rows: Sequence[Sequence[StyledText]], shown: Sequence[int]) -> int | None:
    places = (place for place in shown if columns[place].rank and all(row[place].text in NOTHING for row in rows))
    return next(places, None) if len(shown) > 1 else None


def _with_prose(
    columns: Sequence[Column], natural: Sequence[int], shown: Sequence[int], width: int, alone: int = PROSE
) -> list[int] | None:
    """Return widths that shrink only prose columns; None if prose would become too narrow to read.

    `alone` is the minimum width of a single prose column.
    """
    prose = [place for place in shown if columns[place].prose]
    least = alone if len(prose) == 1 else WORD
    left = width - _total([0 if place in prose else natural[place] for place in shown])
    if not prose or sum(min(natural[place], least) for place in prose) > left:
        return None
    given = dict(
        zip(prose, _squeezed([natural[place] for place in prose], left + GAP * (len(prose) - 1)), strict=True)
    )
    return [given.get(place, natural[place]) for place in shown]


def _squeezed(widths: Sequence[int], width: int) -> list[int]:
    """Shrink the widest columns until all fit. Each column keeps a width of at least 1."""
    room = max(len(widths), width - GAP * (len(widths) - 1))
    order = sorted(range(len(widths)), key=widths.__getitem__)
    found, left = list(widths), room
    for rank, place in enumerate(order):
        share = left // (len(order) - rank)
        found[place] = min(widths[place], share)
        left -= found[place]
    return found
