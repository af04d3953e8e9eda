"""Text of PDF pages that PDFium misses: vertical lines, and characters without a width. Read by pdfminer.six.

PDFium knows the number of texts that a page draws. If many of them have no characters, pdfminer.six reads the page.
"""

from __future__ import annotations

import ctypes
import io
import logging
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from pypdfium2 import raw

GLANCED, SAMPLED = 4, 64
"""Number of a page's objects to examine: at first, and once one of them has no characters.

Most pages lose no text.
"""
LONG = 50
"""Characters per object above which only one object is examined first, because each object is a whole line."""
LOST = 0.1
"""Minimum share of lost texts on a page that loses text. The total includes texts drawn twice to look bold."""
_SPACE = 0.2
_NEXT_LINE = 0.6
_SAME = 0.15
"""Shares of a character's size: the gap of a space, the step to a new line, the shift of a character drawn twice."""
_CHARACTER = 0.75
"""Step between two texts that is wider than a space, as a share of the font size."""
_POINT = 0.1
"""Width or height in points up to which a text counts as having none."""


def loses_text(page: Any, layer: Any, characters: int) -> bool:
    """Return True if many of a page's texts have no characters. `characters` is the number that PDFium found on the
    page.
    """
    count = raw.FPDFPage_CountObjects(page)
    judged = _is_lost if characters else _is_any
    if not _lost_texts(page, layer, _spread(count, 1 if characters > LONG * count else GLANCED), judged)[0]:
        return False
    lost, texts = _lost_texts(page, layer, _spread(count, SAMPLED), judged)
    return lost >= max(2, LOST * texts)


def _spread(count: int, most: int) -> range:
    step = max(1, count // most)
    return range(step // 2, count, step)


def _lost_texts(page: Any, layer: Any, indexes: range, judged: Callable[..., bool]) -> tuple[int, int]:
    """Return the number of texts without characters that `judged` accepts as lost, and the number of all texts."""
    lost = texts = 0
    for index in indexes:
        found = raw.FPDFPage_GetObject(page, index)
        if raw.FPDFPageObj_GetType(found) == raw.FPDF_PAGEOBJ_TEXT:
            texts += 1
            lost += _is_empty(found, layer) and judged(page, layer, index, found)
    return lost, texts


def _is_empty(found: Any, layer: Any) -> bool:
    return bool(raw.FPDFTextObj_GetText(found, layer, None, 0) <= ctypes.sizeof(ctypes.c_ushort))


def _is_any(*about: object) -> bool:
    """Accept every text: on a page without any characters, all texts are lost."""
    return True


def _is_lost(page: Any, layer: Any, index: int, found: Any) -> bool:
    """Return True if a text without characters shows characters, and is neither blank nor a repetition.

    PDFium skips texts without a width, so a text with a width was drawn twice. A text with a height but no width is a
    line. Any other text is a point, mostly a space. After a space, the next text starts within a character's width,
    or on another line.
    """
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    if not raw.FPDFPageObj_GetBounds(found, left, bottom, right, top):
        return True
    if right.value - left.value > _POINT:
        return False
    if top.value - bottom.value > _POINT:
        return True
    following = raw.FPDFPage_GetObject(page, index + 1) or raw.FPDFPage_GetObject(page, index - 1)
    if not following or raw.FPDFPageObj_GetType(following) != raw.FPDF_PAGEOBJ_TEXT:
        return False
    if not _is_empty(following, layer):
        return False
    here, there, size = raw.FS_MATRIX(), raw.FS_MATRIX(), ctypes.c_float()
    raw.FPDFPageObj_GetMatrix(found, here)
    raw.FPDFPageObj_GetMatrix(following, there)
    raw.FPDFTextObj_GetFontSize(found, size)
    scale = math.hypot(here.a, here.b) or 1.0
    across, up = there.e - here.e, there.f - here.f
    along, beside = (across * here.a + up * here.b) / scale, (up * here.a - across * here.b) / scale
    em = max(size.value, 1.0) * scale
    return bool(abs(beside) < _NEXT_LINE * em and abs(along) > _CHARACTER * em)


class _Character(NamedTuple):
    """A character and its box, in points from the lower left corner of the page."""

    left: float
    bottom: float
    right: float
    top: float
    text: str

    @property
    def end(self) -> float:
        """Right edge of the character, estimated from its size if the font states no width."""
        return self.right if self.right - self.left > _SAME * self.size else self.left + self.size

    @property
    def size(self) -> float:
        """Height or width of the character in points, whichever is greater; at least 1."""
        return max(self.top - self.bottom, self.right - self.left, 1.0)


class LostText:
    """A PDF read by pdfminer.six, which opens it when the first page is requested."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pages: list[Any] | None = None

    def page(self, index: int) -> str:
        """Return the text of a page; empty if unreadable."""
        try:
            return _lines(list(self._characters(index)))
        except (MemoryError, ImportError):
            raise
        except Exception:  # noqa: BLE001 (pdfminer raises anything on damaged files; PDFium's text is then used)
            return ""

    def _characters(self, index: int) -> Iterator[_Character]:
        from pdfminer.converter import PDFPageAggregator
        from pdfminer.layout import LTChar, LTContainer
        from pdfminer.pdfdocument import PDFDocument
        from pdfminer.pdfinterp import PDFPageInterpreter, PDFResourceManager
        from pdfminer.pdfpage import PDFPage
        from pdfminer.pdfparser import PDFParser

        if self._pages is None:
            logging.getLogger("pdfminer").setLevel(logging.CRITICAL)  # the library logs every oddity of a file
            self._pages = list(PDFPage.create_pages(PDFDocument(PDFParser(io.BytesIO(self._data)))))
        resources = PDFResourceManager()
        device = PDFPageAggregator(resources, laparams=None)
        PDFPageInterpreter(resources, device).process_page(self._pages[index])
        open_items: list[Any] = [device.get_result()]
        while open_items:
            item = open_items.pop()
            if isinstance(item, LTContainer):
                open_items += [*item][::-1]
            elif isinstance(item, LTChar) and not (text := item.get_text()).startswith("(cid:"):
                yield _Character(*item.bbox, text)


def _lines(characters: list[_Character]) -> str:
    """Return lines in drawing order; vertical lines in reading order, from the right."""
    drawn = list(_once(characters))
    is_vertical = 2 * sum(_is_below(one, last) for last, one in pairwise(drawn)) > len(drawn)
    follows = _is_below if is_vertical else _is_beside
    lines: list[list[_Character]] = []
    for last, one in zip([None, *drawn], drawn, strict=False):
        if last is None or not follows(one, last):
            lines.append([])
        lines[-1].append(one)
    if is_vertical:
        return "\n".join("".join(one.text for one in line) for tier in _tiers(lines) for line in tier)
    return "\n".join(map(_written, lines))


def _written(line: list[_Character]) -> str:
    texts = [line[0].text]
    for last, one in pairwise(line):
        if one.left - last.end > _SPACE * one.size and not last.text.isspace():
            texts.append(" ")
        texts.append(one.text)
    return "".join(texts)


def _tiers(lines: list[list[_Character]]) -> Iterator[list[list[_Character]]]:
    """Yield vertical lines from the right, tier by tier down the page. A horizontal gap separates two tiers."""
    tier: list[list[_Character]] = []
    lowest = float("inf")
    for line in sorted(lines, key=lambda line: -line[0].top):
        if tier and line[0].top <= lowest:
            yield sorted(tier, key=lambda line: (-round(line[0].left), -line[0].top))
            tier, lowest = [], float("inf")
        tier.append(line)
        lowest = min(lowest, line[-1].bottom)
    yield sorted(tier, key=lambda line: (-round(line[0].left), -line[0].top))


def _once(characters: list[_Character]) -> Iterator[_Character]:
    """Yield each character once. Some texts are drawn twice, slightly shifted, to look bold."""
    seen: set[tuple[str, int, int]] = set()
    for one in characters:
        step = _SAME * one.size
        column, row = round(one.left / step), round(one.bottom / step)
        if any((one.text, column + right, row + up) in seen for right in (-1, 0, 1) for up in (-1, 0, 1)):
            continue
        seen.add((one.text, column, row))
        yield one


def _is_below(one: _Character, last: _Character) -> bool:
    is_in_column = abs(one.left - last.left) < _NEXT_LINE * one.size
    return is_in_column and _SAME * one.size < last.top - one.top < 2 * one.size


def _is_beside(one: _Character, last: _Character) -> bool:
    is_in_line = abs(one.bottom - last.bottom) < _NEXT_LINE * one.size
    return is_in_line and one.left >= last.left - one.size
