"""A text in pieces, of which some are marked: what an answer quotes, as the page of a row shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A piece of a text. `begins` are the numbers of the marks that begin with it."""

    text: str
    is_marked: bool = False
    begins: tuple[int, ...] = ()


def marked_texts(text: str, marks: Sequence[tuple[int, int]]) -> list[MarkedText]:
    """The text in pieces; marks may overlap, and what is of them behind the text's end is left out."""
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
