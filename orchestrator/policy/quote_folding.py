"""Texts in the form in which quotes are compared, with the positions of characters in the source. Pure.

Several things do not count: white space, the `|` between a table's cells, hyphens and dashes between letters,
invisible characters, and the shape of quotation marks and ligatures. Digits count, and so do white space and dashes
next to them: `1 200`, `1200`, `1-200` and `1,200` differ.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_right

from msgspec import Struct

_BLANK = r"\s|\u00ad\u200b-\u200f\u2060\ufeff"
_DASHES = r"\-\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_SEPARATORS = ".,;:'’/"
# Solid runs are short, so that a place inside one is found in a few steps. Group 2 is blanks and dashes beside a
# number.
_RUNS = re.compile(
    rf"([^{_BLANK}{_DASHES}]{{1,256}})"
    rf"|((?<=[\d{_SEPARATORS}])[{_BLANK}{_DASHES}]+|[{_BLANK}{_DASHES}]+(?=[{_SEPARATORS}]?\d))"
    rf"|[{_BLANK}{_DASHES}]+"
)
_DASH = re.compile(rf"[{_DASHES}]")
_SPACE = re.compile(r"[\s|]")
_SINGLE_MARKS, _DOUBLE_MARKS = "‘’‚‛′‵`´‹›ʼ＇", "“”„‟«»″‶〝〞〟＂"
_COMPATIBLE = ((0xFB00, 0xFDFF), (0xFE70, 0xFEFE), (0xFF01, 0xFF5E))
"""Ligatures, Arabic letters by their position in a word, and wide forms of ASCII."""


class _Fold(dict[int, str]):
    """Comparison forms of characters, computed on first use."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in _SINGLE_MARKS:
            folded = "'"
        elif character in _DOUBLE_MARKS:
            folded = '"'
        elif character == "…":
            folded = "..."
        else:
            is_compatible = any(first <= code <= last for first, last in _COMPATIBLE)
            folded = unicodedata.normalize("NFKD" if is_compatible else "NFD", character)
        self[code] = folded
        return folded


_fold = _Fold()


class FoldedText(Struct, frozen=True):
    """A text in comparison form; `folded_at` and `source_at` give the start of each run in either form."""

    source: str
    text: str
    folded_at: array[int]
    source_at: array[int]

    def source_range(self, start: int, end: int) -> tuple[int, int]:
        """Return where the characters from `start` up to `end`, which is greater, stand in the source."""
        return self._place(start), self._place(end - 1) + 1

    def _place(self, at: int) -> int:
        run = bisect_right(self.folded_at, at) - 1
        place, inside = self.source_at[run], at - self.folded_at[run]
        while inside > 0:
            inside -= len(_fold[ord(self.source[place])])
            place += inside >= 0
        return place


def folded(source: str) -> FoldedText:
    """Return a text in the form in which it is compared, in linear time."""
    folded_at, source_at = array("q"), array("q")
    parts: list[str] = []
    size = 0
    for run in _RUNS.finditer(source):
        part = run[1]
        if part is None:
            part = "" if run[2] is None else _gap(source, run.start(), run.end())
            if not part:
                continue
        elif not part.isascii() or "`" in part:
            part = part.translate(_fold)
        folded_at.append(size)
        source_at.append(run.start())
        parts.append(part)
        size += len(part)
    return FoldedText(source, "".join(parts), folded_at, source_at)


def _gap(source: str, start: int, end: int) -> str:
    """Return what remains of blanks and dashes between two runs; either may be a number."""
    before, after = _is_number(source[max(0, start - 2) : start][::-1]), _is_number(source[end : end + 2])
    if not before and not after:
        return ""
    gap = source[start:end]
    dash = "-" if _DASH.search(gap) else ""
    space = " " if before and after and _SPACE.search(gap) else ""
    return space + dash


def _is_number(beside: str) -> bool:
    """True for a digit, or a digit after a separator."""
    return beside[:1].isdecimal() or (beside[:1] in _SEPARATORS and beside[1:].isdecimal())
