"""Splits a long text into parts of limited tokens, at natural borders. Each part repeats the end of the previous
part. Pure.

Borders are chosen by the words at the border, not by their distance from the start. After an edit, borders therefore
soon fall where they did before. Among equally natural borders, the paragraph with the smallest hash wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from msgspec import Struct

from orchestrator.core import tokens

LEAST = 16
"""Lowest limit in tokens; a single character may have four."""
# From the most to the least natural border: pages and paragraphs, lines, sentences, words. A space belongs to the
# next word, as in tokens.
_BORDERS = tuple(
    re.compile(border)
    for border in (r"\n[^\S\n]*\n\s*|\f\s*", r"\n", r"(?<=[.!?…])[\"'”’)\]]*(?=\s)|(?<=[。！？])", r"(?<=\S)(?=\s)")
)
_TOKENS_PER_CHAR = 4
_CHARS_PER_TOKEN = 16
# A part fills at least a third of its limit, if borders allow. The lower this share, the sooner borders realign after
# an edit, at the cost of a few more parts. With a third, 2 of 20 parts change on average and 4 at most; with a half,
# up to 9 change.
_LEAST_FULL = 3


class Part(Struct, frozen=True):
    """`text[start:end]`. Its beginning, `text[start:own]`, repeats the end of the previous part."""

    start: int
    own: int
    end: int


class _Unit(Struct, frozen=True):
    """A piece of the text that may end a part. `level` is its border's naturalness; 0 is the most natural."""

    start: int
    end: int
    tokens: int
    level: int


def size(text: str) -> int:
    return tokens.count((text,)) - tokens.count(("",))


def split(text: str, limit: int, overlap: int) -> list[Part]:
    """Split a text into parts of at most `limit` tokens, in order.

    Each part repeats up to `overlap` tokens from the end of the previous part. A text of at most `limit` tokens is
    one part. `overlap` is at most half of `limit`, and `limit` is at least LEAST.
    """
    if len(text) * _TOKENS_PER_CHAR <= limit or len(text.encode()) <= limit or size(text) <= limit:
        return [Part(0, 0, len(text))]
    units = list(_units(text, 0, len(text), limit - overlap, 0))
    parts: list[Part] = []
    first = 0
    while first < len(units):
        last = _last(text, units, first, limit - overlap)
        own, end = units[first].start, units[last].end
        parts.append(Part(_start_with_overlap(text, own, end, limit, overlap) if parts else own, own, end))
        first = last + 1
    return parts


def _units(text: str, start: int, end: int, most: int, level: int) -> Iterator[_Unit]:
    """Yield consecutive pieces of at most `most` tokens that end at the most natural borders."""
    if level == len(_BORDERS):
        step = max(1, most // _TOKENS_PER_CHAR)
        for at in range(start, end, step):
            upto = min(at + step, end)
            yield _Unit(at, upto, size(text[at:upto]), level)
        return
    borders = [found.end() for found in _BORDERS[level].finditer(text, start, end) if start < found.end() < end]
    for begin, stop in zip([start, *borders], [*borders, end], strict=True):
        # The cheap test comes first, so that a giant word is not counted again at each level.
        if stop - begin > most * _CHARS_PER_TOKEN or (tokens_of := size(text[begin:stop])) > most:
            *inner, last = _units(text, begin, stop, most, level + 1)
            yield from inner
            yield _Unit(last.start, last.end, last.tokens, level)
        else:
            yield _Unit(begin, stop, tokens_of, level)


def _last(text: str, units: Sequence[_Unit], first: int, most: int) -> int:
    """Return the index of the unit that ends the part starting with unit `first`."""
    ends: list[tuple[int, int]] = []
    total = 0
    for number in range(first, len(units)):
        total += units[number].tokens
        if total > most:
            break
        ends.append((number, total))
    while len(ends) > 1:
        is_rest = ends[-1][0] == len(units) - 1
        full = [number for number, tokens_so_far in ends if _LEAST_FULL * tokens_so_far >= most] or [ends[-1][0]]
        last = full[-1] if is_rest else min(reversed(full), key=lambda number: _rank(text, units[number]))
        # Pieces counted one by one may add up to one token less than together.
        if size(text[units[first].start : units[last].end]) <= most:
            return last
        ends = [end for end in ends if end[0] < last]
    return first


def _rank(text: str, unit: _Unit) -> tuple[int, bytes]:
    return unit.level, blake2b(text[unit.start : unit.end].encode(), digest_size=8).digest()


def _start_with_overlap(text: str, own: int, end: int, limit: int, overlap: int) -> int:
    if not overlap:
        return own
    found, total = [own], 0
    for unit in reversed(list(_units(text, max(0, own - overlap * _CHARS_PER_TOKEN), own, max(1, overlap // 4), 0))):
        total += unit.tokens
        if total > overlap:
            break
        found.append(unit.start)
    # Pieces counted one by one may add up to one token less than together.
    fits = (at for at in reversed(found) if size(text[at:own]) <= overlap and size(text[at:end]) <= limit)
    return next(fits, own)
