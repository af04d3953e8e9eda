"""Tables of PDF pages, written as rows with separators. Tables are found by text positions, without a model.

A block of lines is a table if vertical gaps separate its columns and its cells are short or numbers. Prose in two
columns is not a table. A block is replaced only if the page's text has the same characters in consecutive lines, so
that no character is lost or duplicated.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, NamedTuple

from pypdfium2 import raw

from orchestrator.documents.pdf_superscripts import ScriptedWord, char_places, numbers_at

SEPARATOR = " | "
MIN_LINES = 3
MANY_OBJECTS, FEW_CHARACTERS = 1.3, 25
"""A page with fewer objects and more characters per line than these has no tables.

Prose is drawn in long lines, one object each.
"""
FEWEST_COLUMNS, NEARLY_ALL = 3, 0.9
"""Minimum number of columns and minimum filled share of a table that is drawn column by column.

Addresses side by side have too many gaps.
"""
MOST_BOXES = 5_000
MOST_HEADINGS = 4
"""Maximum lines above a table that may run across its columns; they stay unchanged."""
_GAP = 0.9
_FAR = 3.5
"""Gaps in multiples of the line height: minimum between two cells, and maximum between two lines of a table."""
_EDGE = 0.5
"""Maximum distance in points between a box and the start of a word that belongs to it."""
_SHORT = 18
_NUMBERS = 0.3
"""Minimum share of numbers in a table whose average cell has more than `_SHORT` characters."""
_ALIGNED, _SLACK = 0.5, 6.0
"""Minimum share of a column's cells that are aligned, and the tolerance in points."""
_LONG, _FULL, _MOSTLY = 12, 0.8, 0.6
"""Thresholds for prose beside a table: line width per line height, share of the column's width, and share of prose
lines.
"""
_FILLED = 0.4
"""Minimum share of a table's positions that have a cell. Formulas fill fewer positions."""
_NUMBER = re.compile(r"[^\w\s]*\d[\d.,'’ \u00a0/%:-]*[^\w\s]*(?:\s?\w{1,4})?")
_LABEL = re.compile(r"[•●○◦▪■□–—*-]|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.:)]{0,2}")
_WORD = re.compile("[^\\s\ufffe]+\ufffe?|\ufffe")
_LEADERS = re.compile(r"(?:[.…_·]\s?){4}")


class Box(NamedTuple):
    """The bounding box of a piece of text, in points from the lower left corner of the page."""

    left: float
    bottom: float
    right: float
    top: float

    @property
    def height(self) -> float:
        """Height of the line, about the font size in points."""
        return max(self.top - self.bottom, 1.0)


Line = list[Box]
_Column = tuple[float, float]
"""Left and right edge of a column's text."""


class _Words:
    def __init__(self, layer: Any, plain: str, scripted: Sequence[ScriptedWord]) -> None:
        place = char_places(layer, plain)
        words = list(_words(plain, scripted))
        boxes = numbers_at("FPDFText_GetCharBox", layer, [place(start) for start, _ in words], 4)
        self._words = sorted(
            ((bottom + top) / 2, left, start, word)
            for (start, word), (left, _, bottom, top) in zip(words, boxes, strict=True)
        )

    def within(self, box: Box) -> str:
        """Return the words that start in a box, in the order of the page's text."""
        first, end = bisect_left(self._words, (box.bottom,)), bisect_right(self._words, (box.top, math.inf))
        low, high = box.left - _EDGE, box.right + _EDGE
        found = sorted([(start, text) for _, left, start, text in self._words[first:end] if low <= left <= high])
        return " ".join([text for _, text in found])


def _words(plain: str, scripted: Sequence[ScriptedWord]) -> Iterator[tuple[int, str]]:
    """Yield the start and the text of each word of a page. PDFium writes U+FFFE where a line break splits a word."""
    at = 0
    for scripts in [*scripted, None]:
        end = len(plain) if scripts is None else scripts.start
        for word in _WORD.finditer(plain, at, end):
            yield word.start(), word.group().replace("\ufffe", "-")
        if scripts is not None:
            yield scripts.start, " ".join(scripts.written.split())
            at = scripts.start + len(scripts.plain)


class _Texts(dict[Box, str]):
    def __init__(self, layer: Any, plain: str, scripted: Sequence[ScriptedWord]) -> None:
        self._page = layer, plain, scripted

    @cached_property
    def _words(self) -> _Words:
        return _Words(*self._page)

    def __missing__(self, box: Box) -> str:
        self[box] = text = self._words.within(box)
        return text


class _Lines(list[str]):
    @cached_property
    def _solid(self) -> list[str]:
        return list(map(_solid, self))

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self._solid), initial=0))

    def of_run(self, cells: Sequence[Sequence[str]]) -> Sequence[int]:
        """Return the indexes of consecutive lines that have exactly the characters of these cells; empty if there are
        none.
        """
        joined = _solid("".join(chain.from_iterable(cells)))
        begins = tuple({_solid(line[0])[:4] for line in cells})
        for start, line in enumerate(self._solid):
            if not line.startswith(begins):
                continue
            total = self._ends[start] + len(joined)
            end = bisect_left(self._ends, total)
            is_as_long = end <= len(self) and self._ends[end] == total
            if is_as_long and Counter("".join(self._solid[start:end])) == Counter(joined):
                return range(start, end)
        return ()

    def of_cells(self, cells: Sequence[Sequence[str]]) -> Sequence[int]:
        """Return the indexes of lines that equal these cells one to one, in any order; empty if a cell has no line.

        Pages drawn column by column have such lines.
        """
        left, taken = Counter(filter(None, map(_solid, chain.from_iterable(cells)))), list[int]()
        for index, line in enumerate(self._solid):
            if left.get(line, 0) > 0:
                left[line] -= 1
                taken.append(index)
        return () if left.total() else taken

    def replaced(self, taken: Sequence[int], rows: list[str]) -> _Lines:
        gone = set(taken)
        kept = [line for index, line in enumerate(self) if index not in gone]
        return _Lines([*kept[: taken[0]], *rows, *kept[taken[0] :]])


def with_tables(page: Any, layer: Any, plain: str, text: str, scripted: Sequence[ScriptedWord] = ()) -> str:
    """Return the text of a page with its tables written as rows.

    `plain` is PDFium's text; `text` is the same with superscripts and subscripts marked.
    """
    lines = _Lines(text.split("\n"))
    objects = raw.FPDFPage_CountObjects(page)
    is_plain = objects < MANY_OBJECTS * len(lines)
    is_short = len(lines) < MIN_LINES and objects < 2 * MIN_LINES  # PDFium joins the lines of some pages
    if is_short or (is_plain and len(text) > FEW_CHARACTERS * len(lines)):
        return text
    texts = _Texts(layer, plain, scripted)
    for block in _blocks(_lines(_boxes(layer, scripted))):
        lines = next(
            filter(None, (_with_block(texts, part, lines) for part in (*_beside_prose(block), block))), lines
        )
    return "\n".join(lines)


def _with_block(texts: _Texts, block: list[Line], lines: _Lines) -> _Lines | None:
    """Return a page's lines with a block, except its headings, written as rows; None if the block has no table."""
    for headings in range(min(MOST_HEADINGS, len(block) - MIN_LINES) + 1):
        better = _with_table(texts, block[headings:], lines)
        if better is not lines:
            return better
    return None


def _beside_prose(block: list[Line]) -> Iterator[list[Line]]:
    """Yield the block without its first or last column if that column is prose beside a table."""
    columns = _columns(_spans(block))
    for begin, end in (columns[0], columns[-1]) if len(columns) > 2 else ():
        inside = [box for line in block for box in line if begin <= box.left < end]
        full = [box for box in inside if box.right - box.left > max(_LONG * box.height, _FULL * (end - begin))]
        if len(full) >= max(MIN_LINES, _MOSTLY * len(inside)):
            others = ([box for box in line if not begin <= box.left < end] for line in block)
            yield list(filter(None, others))


def _with_table(texts: _Texts, block: list[Line], lines: _Lines) -> _Lines:
    """Return a page's lines with a block written as rows; unchanged if the block is not a table."""
    columns = _columns(_spans(block))
    if len(columns) < 2 or not _is_filled(block, columns) or _are_long(block) or not _are_aligned(block, columns):
        return lines
    cells = [[texts[box] for box in line] for line in block]
    if not all(map(all, cells)):  # a word extends into the next box, and that box is not a cell
        block = [[box for box in line if texts[box]] for line in block]
        block = [line for line in block if line]
        columns = _columns(_spans(block))
        if len(columns) < 2 or len(block) < MIN_LINES:
            return lines
        cells = [[texts[box] for box in line] for line in block]
    taken = lines.of_run(cells)
    if not taken and len(columns) >= FEWEST_COLUMNS and len(block) > MIN_LINES:
        is_full = sum(map(len, cells)) >= NEARLY_ALL * len(columns) * len(block)
        taken = lines.of_cells(cells) if is_full else ()
    if not taken or not _is_table(cells, len(columns)):
        return lines
    return lines.replaced(taken, [_row_text(line, of, columns) for line, of in zip(block, cells, strict=True)])


def _boxes(layer: Any, scripted: Sequence[ScriptedWord]) -> list[Box]:
    """Return the text boxes in drawing order. Adjacent texts on a line share a box."""
    count = raw.FPDFText_CountRects(layer, 0, -1)
    if not 0 < count <= MOST_BOXES:
        return []
    places = sorted(place for word in scripted for place in word.places)
    boxes: list[Box] = []
    rectangles = numbers_at("FPDFText_GetRect", layer, range(count), 4)
    begin, high, end, low = next(rectangles)
    for x, up, far, y in rectangles:
        tall = up - y
        follows = begin <= x and low < (y + up) / 2 < high and x < end + _GAP * max(min(high - low, tall), 1.0)
        if follows or (places and abs(x - end) < max(tall, 1.0) and _has_place(places, x, y, far, up)):
            low, end, high = min(low, y), max(end, far), max(high, up)
            continue
        boxes.append(Box(begin, low, end, high))
        begin, low, end, high = x, y, far, up
    return [*boxes, Box(begin, low, end, high)]


def _has_place(places: list[tuple[float, float]], left: float, bottom: float, right: float, top: float) -> bool:
    """Return True if a raised or lowered digit is in a box or slightly below it."""
    beside = places[bisect_left(places, (left,)) : bisect_left(places, (right,))]
    return any(bottom - 1 <= y <= top for _, y in beside)


def _lines(boxes: list[Box]) -> list[Line]:
    lines: list[Line] = []
    low, high = math.inf, 0.0
    for box in sorted(boxes, key=lambda box: -(box.top + box.bottom)):
        if low < (box.top + box.bottom) / 2 < high:
            lines[-1].append(box)
        else:
            lines.append([box])
            _, low, _, high = box
    return [_cells(sorted(line)) for line in lines]


def _cells(line: Line) -> Line:
    if len(line) == 1:
        return line
    cells: Line = []
    begin, low, end, high = line[0]
    for left, bottom, right, top in line[1:]:
        if left - end < _GAP * max(min(high - low, top - bottom), 1.0):
            low, end, high = min(low, bottom), max(end, right), max(high, top)
        else:
            cells.append(Box(begin, low, end, high))
            begin, low, end, high = left, bottom, right, top
    return [*cells, Box(begin, low, end, high)]


def _blocks(lines: list[Line]) -> Iterator[list[Line]]:
    """Yield runs of lines that share columns."""
    block: list[Line] = []
    columns: list[_Column] = []
    for line in [*lines, []]:
        if not block and len(line) < 2:
            continue  # prose
        cells = [(left, right) for left, _, right, _ in line]
        if block and line and block[-1][0].bottom - line[0].top < _FAR * line[0].height:
            common = _columns([*columns, *cells])
            if len(common) > 1 and (len(line) > 1 or len(common) >= len(columns) - 1):
                block.append(line)
                columns = common
                continue
        if sum(len(one) > 1 for one in block) >= MIN_LINES:
            while len(block[-1]) == 1:
                block.pop()
            if len(_columns(_spans(block))) > 1:  # dropping trailing lines may have changed the columns
                yield block
        block, columns = ([line], cells) if len(line) > 1 else ([], [])


def _spans(lines: list[Line]) -> list[tuple[float, float]]:
    return [(left, right) for line in lines for left, _, right, _ in line]


def _columns(spans: Sequence[tuple[float, float]]) -> list[_Column]:
    """Merge overlapping spans into columns, which vertical gaps separate."""
    if not spans:
        return []
    columns: list[_Column] = []
    (begin, end), *others = sorted(spans)
    for left, right in others:
        if left > end:
            columns.append((begin, end))
            begin, end = left, right
        elif right > end:
            end = right
    return [*columns, (begin, end)]


def _are_long(block: list[Line]) -> bool:
    """Return True if the boxes are too wide for short texts and numbers. Most letters are narrower than high."""
    lengths = [(right - left) / max(top - bottom, 1.0) for line in block for left, bottom, right, top in line]
    is_wide = sum(lengths) > _SHORT * len(lengths)
    return is_wide and sum(length < _SHORT for length in lengths) < _NUMBERS * len(lengths)


def _is_table(cells: Sequence[Sequence[str]], columns: int) -> bool:
    every = [cell for line in cells for cell in line]
    if 2 * sum(_LEADERS.search(cell) is not None for cell in every) > len(cells):
        return False  # a table of contents
    if any(cell.startswith(",") for cell in every):
        return False  # PDFium broke figures at their commas
    is_list = 2 * sum(_LABEL.fullmatch(line[0]) is not None for line in cells) > len(cells)
    if is_list:  # labels prove nothing: lists have labels, too
        every = [cell for line in cells for cell in line if _LABEL.fullmatch(cell) is None or cell is not line[0]]
    numbers = sum(_NUMBER.fullmatch(cell) is not None for cell in every)
    is_short = sum(map(len, every)) <= _SHORT * len(every) and not (is_list and columns == 2)
    return is_short or numbers >= _NUMBERS * len(every)


def _is_filled(block: list[Line], columns: list[_Column]) -> bool:
    lengths = list(map(len, block))
    is_full = sum(lengths) >= _FILLED * len(block) * len(columns)
    return is_full and len(block) - lengths.count(1) >= _ALIGNED * len(block)


def _are_aligned(block: list[Line], columns: list[_Column]) -> bool:
    """Return True if in each column most cells share a left edge, right edge or centre.

    At least two columns must have `MIN_LINES` cells.
    """
    spans: list[list[tuple[float, float]]] = [[] for _ in columns]
    begins = [left for left, _ in columns]
    for left, right in _spans(block):
        spans[bisect_right(begins, left) - 1].append((left, right))
    if sorted(map(len, spans))[-2] < MIN_LINES:
        return False
    return all(len(of_one) < MIN_LINES or _is_aligned(of_one) for of_one in spans)


def _is_aligned(spans: Sequence[tuple[float, float]]) -> bool:
    fewest = _ALIGNED * len(spans)
    return (
        max(Counter([round(left / _SLACK) for left, _ in spans]).values()) >= fewest
        or max(Counter([round(right / _SLACK) for _, right in spans]).values()) >= fewest
        or max(Counter([round((left + right) / _SLACK) for left, right in spans]).values()) >= fewest
    )


def _row_text(line: Line, texts: list[str], columns: list[_Column]) -> str:
    cells = [""] * len(columns)
    begins = [left for left, _ in columns]
    for box, text in zip(line, texts, strict=True):
        at = bisect_right(begins, box.left) - 1
        cells[at] = f"{cells[at]} {text}".strip()
    return SEPARATOR.join(cells).rstrip()


def _solid(text: str) -> str:
    return "".join(text.split())
