"""Raised and lowered digits of PDF pages, recognised by size and baseline.

Without this, 1,200³ would be read as 1,2003.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby, repeat
from typing import Any, NamedTuple

from pypdfium2 import raw

from orchestrator.documents.superscripts import lowered, raised

_NUMBER, _BLANK = re.compile("[0-9](?:[0-9.,]*[0-9])?"), re.compile(r"\s")
_SIGNS, _POINTS = "+-−–", ",.;:"
_LONGEST = 12
"""Maximum characters of a superscript or subscript; longer text in a small size is small print."""
_AT_ONCE = 512
"""Number of a page's characters or boxes per lookup."""
_MOST = 50
"""Maximum characters of a number."""
_SMALLEST, _SMALL = 0.45, 0.85
"""Minimum and maximum size of a superscript or subscript, as shares of the neighbouring character's size.

Smaller text beside a character is no superscript: the character is an initial of a paragraph.
"""
_UP, _DOWN, _FAR = 0.15, 0.06, 0.8
"""Minimum shift up, minimum shift down and maximum shift from the baseline, as shares of the neighbouring size.

Word processors lower digits only a little.
"""
_INSIDE = 0.2
"""Distance from the left edge of a digit to its middle, as a share of its size."""
_NO_SIZE = 0.001
_LINE, _BEHIND_BREAK = "\r\n", re.compile(r"\S\r\n")
_NEXT = 1.5
"""Maximum distance between adjacent characters, as a share of the larger one's size."""
_STEP, _CLOSE = 0.4, 40
"""Minimum distance between the baselines of script and text, and maximum distance across a line break, in points."""


class ScriptedWord(NamedTuple):
    """A word with raised or lowered digits. `start` is its index in the page's text."""

    start: int
    plain: str
    written: str
    places: list[tuple[float, float]]
    """A point inside the last character of each script, in points from the lower left corner of the page."""


class _Script(NamedTuple):
    before: int
    """End of the text before the script, excluding a line break that only PDFium sees."""
    start: int
    end: int
    change: Callable[[str], str]


class _Glyph(NamedTuple):
    size: float
    x: float
    y: float
    across: float
    up: float
    """With `across`, the upward direction of the character, as a unit vector."""

    def step(self, other: _Glyph) -> tuple[float, float]:
        """Return the distance to the other character along and above the line, as shares of this character's size."""
        right, high = other.x - self.x, other.y - self.y
        return (right * self.up - high * self.across) / self.size, (right * self.across + high * self.up) / self.size

    def script(self, other: _Glyph) -> Callable[[str], str] | None:
        """Return the function that marks `other` as raised or lowered beside this character, or None."""
        size, (_, high) = other.size / self.size, self.step(other)
        if not _SMALLEST < size < _SMALL or abs(high) > _FAR:
            return None
        return raised if high > _UP else lowered if high < -_DOWN else None


def scripted_words(layer: Any, text: str) -> Iterator[ScriptedWord]:
    """Yield a page's words with raised or lowered digits, in order. `text` is PDFium's text of the page."""
    place, origin = char_places(layer, text), quick("FPDFText_GetCharOrigin")
    x, y, matrix = ctypes.c_double(), ctypes.c_double(), raw.FS_MATRIX()
    to_x, to_y = ctypes.byref(x), ctypes.byref(y)

    @cache
    def glyph(index: int) -> _Glyph:
        at = place(index)
        origin(layer, at, to_x, to_y)
        raw.FPDFText_GetMatrix(layer, at, matrix)
        scale = math.hypot(matrix.c, matrix.d) or 1.0
        size = abs(raw.FPDFText_GetFontSize(layer, at)) * scale or _NO_SIZE
        return _Glyph(size, x.value, y.value, matrix.c / scale, matrix.d / scale)

    at = 0
    for scripts in _by_word(text, _scripts(layer, text, place, glyph)):
        begin = at = max(at, *(text.rfind(blank, at, scripts[0].before) + 1 for blank in " \n"))
        written, places = "", []
        for before, start, end, change in scripts:
            written += text[at:before] + change(text[start:end])
            at, digit = end, glyph(end - 1)
            places.append((digit.x + _INSIDE * digit.size, digit.y))
        follows = at + len(_LINE)
        if text.startswith(_LINE, at) and follows < len(text) and _goes_on(glyph(follows), digit, change):
            end = at = follows
        else:
            blank = _BLANK.search(text, at)
            end = blank.start() if blank else len(text)
        yield ScriptedWord(begin, text[begin:end], written + text[at:end], places)


def _goes_on(following: _Glyph, digit: _Glyph, change: Callable[[str], str]) -> bool:
    """Return True if the line continues after the script. PDFium sees two lines if letter boxes do not overlap."""
    return following.script(digit) is change and following.step(digit)[0] < 0


def with_words(text: str, words: list[ScriptedWord]) -> str:
    """Return a page's text with the scripts of these words marked."""
    pieces, at = [], 0
    for word in words:
        pieces += [text[at : word.start], word.written]
        at = word.start + len(word.plain)
    return "".join([*pieces, text[at:]])


def _by_word(text: str, scripts: Iterable[_Script]) -> list[list[_Script]]:
    words: list[list[_Script]] = []
    for script in scripts:
        if not words or _BLANK.search(text, words[-1][-1].end, script.before):
            words.append([])
        words[-1].append(script)
    return words


def char_places(layer: Any, text: str) -> Callable[[int], int]:
    """Return a function that converts an index in the text to PDFium's character index."""
    if raw.FPDFText_CountChars(layer) == len(text):
        return int
    return partial(quick("FPDFText_GetCharIndexFromTextIndex"), layer)


@cache
def quick(name: str) -> Callable[..., int]:
    """Return a PDFium function without ctypes' argument checks, which take longer than most calls.

    Pass pointers made by `byref` only.
    """
    address: Any = ctypes.cast(getattr(raw, name), ctypes.c_void_p).value
    return ctypes.PYFUNCTYPE(ctypes.c_int)(address)


def numbers_at(name: str, layer: Any, indexes: Sequence[int], width: int) -> Iterator[tuple[float, ...]]:
    """Yield the `width` numbers that a PDFium function sets for each index; zeros if it sets none.

    No Python code runs per index, because a page has thousands.
    """
    read, (numbers, columns) = quick(name), _buffer(width)
    for first in range(0, len(indexes), _AT_ONCE):
        some = indexes[first : first + _AT_ONCE]
        ctypes.memset(numbers, 0, ctypes.sizeof(numbers))
        deque(map(read, repeat(layer), some, *columns), maxlen=0)
        flat = iter(numbers[: width * len(some)])
        yield from zip(*[flat] * width, strict=True)


@cache
def _buffer(width: int) -> tuple[Any, list[list[Any]]]:
    numbers = (ctypes.c_double * (_AT_ONCE * width))()
    size = ctypes.sizeof(ctypes.c_double)
    places = range(0, _AT_ONCE * width * size, width * size)
    return numbers, [[ctypes.byref(numbers, place + column * size) for place in places] for column in range(width)]


def _scripts(layer: Any, text: str, place: Callable[[int], int], glyph: Callable[[int], _Glyph]) -> Iterator[_Script]:
    done = 0
    for first, end in _on_two_baselines(layer, text, place):
        first = max(first, done)
        if first >= end:
            continue
        glyphs = [glyph(index) for index in range(first, end)]
        at, base = first, max(glyphs, key=lambda one: one.size)
        for change, of_one in groupby(glyphs, base.script):
            start, at = at, at + len(list(of_one))
            if change is None:
                continue
            while at == end < len(text) and not text[at].isspace() and base.script(glyph(at)) is change:
                at = end = at + 1
            stop = start + len(text[start:at].rstrip(_POINTS))
            before = start - len(_LINE) * (start > first and text[start - 1] == "\n")
            pair = (at - 1, at) if start == first else (before - 1, start)
            is_near = start < stop <= start + _LONGEST and _are_beside(*map(glyph, pair))
            if is_near and all(_matches_text(layer, text, place, one) for one in pair):
                done = at
                yield _Script(before, start, stop, change)


def _on_two_baselines(layer: Any, text: str, place: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each number whose first and last characters are on different baselines.

    A character directly before a number counts as its first character, even across a line break if both are close:
    PDFium breaks some lines before a script.
    """
    origin, x, y = quick("FPDFText_GetCharOrigin"), ctypes.c_double(), ctypes.c_double()
    to_x, to_y = ctypes.byref(x), ctypes.byref(y)
    line = script = math.inf
    numbers = [number.span() for number in _NUMBER.finditer(text)]
    ends = numbers_at("FPDFText_GetCharOrigin", layer, [place(end - 1) for _, end in numbers], 2)
    for (first, end), (right, high) in zip(numbers, ends, strict=True):
        if -_STEP < high - line < _STEP:  # the usual case: on the same line as the previous number
            continue
        if first and not text[first - 1].isspace():
            first -= 2 if text[first - 1] in _SIGNS and first > 1 and not text[first - 2].isspace() else 1
        elif _BEHIND_BREAK.fullmatch(text, max(0, first - 3), first):
            origin(layer, place(first - 3), to_x, to_y)
            first -= 3 * (0 < right - x.value < _CLOSE and abs(high - y.value) < _CLOSE)
        origin(layer, place(first), to_x, to_y)
        if abs(high - y.value) > _STEP:
            if end - first < _MOST and _drawing(layer, place(first)) != _drawing(layer, place(end - 1)):
                line, script = y.value, high
                yield first, end
        elif abs(high - script) > _STEP:
            line = high


def _drawing(layer: Any, place: int) -> int | None:
    """Return an id of the text object that drew a character. One object of rotated text has many baselines."""
    return ctypes.cast(raw.FPDFText_GetTextObject(layer, place), ctypes.c_void_p).value


def _are_beside(last: _Glyph, one: _Glyph) -> bool:
    return 0 < last.step(one)[0] < _NEXT * max(1, one.size / last.size)


def _matches_text(layer: Any, text: str, place: Callable[[int], int], index: int) -> bool:
    return bool(raw.FPDFText_GetUnicode(layer, place(index)) == ord(text[index]))
