"""Text in marked and unmarked pieces. The marks are passages of a row's request that its answer quotes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace


class MarkedText(Struct, frozen=True):
    """A piece of a text. `begins` has the numbers of the marks that begin at its start."""

    text: str
    is_marked: bool = False
    begins: tuple[int, ...] = ()


def marked_texts(text: str, marks: Sequence[tuple[int, int]]) -> list[MarkedText]:
    """Split a text at the start and end of each mark. Marks may overlap, and are cut at the end of the text."""
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


def abridged(pieces: Sequence[MarkedText], most: int, around: int) -> list[MarkedText]:
    """Return the first `most` characters of a text, then its marks, each with `around` characters of context.

    The result has at most `2 * most` characters. Each omission is replaced by its length.
    """
    found: list[MarkedText] = []
    at, more, left_out = 0, most, 0
    for number, piece in enumerate(pieces):
        keep = [(0, max(0, most - at))]
        if at + len(piece.text) > most and more > 0:
            if piece.is_marked:
                keep = [(0, len(piece.text))]
            elif number and pieces[number - 1].is_marked:
                keep.append((0, around))
            if not piece.is_marked and number + 1 < len(pieces):
                keep.append((len(piece.text) - around, len(piece.text)))
        for start, end, is_kept in _spans(keep, len(piece.text)):
            if not is_kept or (at + start >= most and (more := more - (end - start)) < 0):
                left_out += end - start
                continue
            if left_out:
                found.append(_left_out(left_out))
            found.append(replace(piece, text=piece.text[start:end]))
            left_out = 0
        at += len(piece.text)
    return [*found, _left_out(left_out)] if left_out else found


def _left_out(number: int) -> MarkedText:
    return MarkedText(f"… {number:,} characters are not shown …")


def _spans(kept: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the spans of a text in order, each with True if one of the `kept` ranges contains it."""
    ends = sorted({0, size, *(min(max(0, end), size) for span in kept for end in span)})
    for start, end in pairwise(ends):
        yield start, end, any(first <= start and end <= last for first, last in kept)
