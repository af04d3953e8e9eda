"""A text in pieces, some of them marked: the quotes of an answer on the page of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A piece of a text. `begins` lists the numbers of the marks that begin with it."""

    text: str
    is_marked: bool = False
    begins: tuple[int, ...] = ()


def marked_texts(text: str, marks: Sequence[tuple[int, int]]) -> list[MarkedText]:
    """Split a text into pieces. Marks may overlap, and are cut at the end of the text."""
    ends = [(min(start, len(text)), min(end, len(text))) for start, end in marks]
    change, begins = dict.fromkeys((0, len(text)), 0), dict[int, list[int]]()
    for number, (start, end) in enumerate(ends):
        if start < end:
            change[start], change[end] = change.get(start, 0) + 1, change.get(end, 0) - 1
            begins.setdefault(start, []).append(number)
    pieces, depth = [], 0
    for first, last in pairwise(sorted(change)):
        depth += change[first]
        pieces.append(MarkedText(text[first:last], depth > 0, tuple(begins.get(first, ()))))
    return pieces
