"""Search for quotes in a text: exact, or within a small distance if the text was read by OCR. Pure.

The time grows with the text and with the quotes, not with their product. One pass over the text looks for the first
characters of all quotes. For texts that repeat themselves too often, a budget of steps limits the time.
"""

from __future__ import annotations

import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import pairwise

from msgspec import Struct, field

from orchestrator.core.lazy_patterns import regex

_INVISIBLE = r"\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff"
"""Invisible characters, such as direction marks, joiners and variation selectors."""
_BLANK = rf"\s|{_INVISIBLE}"
_DASHES = r"\-\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_SEPARATORS = ".,;:'’/"
# Runs of solid characters are short, so that a place inside a run is found in a few steps. Group 2 is spaces and
# dashes beside a number.
_RUNS = regex(
    rf"([^{_BLANK}{_DASHES}]{{1,256}})"
    rf"|((?<=[\d{_SEPARATORS}])[{_BLANK}{_DASHES}]+|[{_BLANK}{_DASHES}]+(?=[{_SEPARATORS}]?\d))"
    rf"|[{_BLANK}{_DASHES}]+"
)
_DASH = regex(rf"[{_DASHES}]")
_SPACE = regex(r"[\s|]")
_LINE_END = regex(rf"[{_DASHES}][ \t]*\r?\n\s*")
"""Matches the gap in a range of numbers that a line break splits after the dash."""
_SINGLE_MARKS, _DOUBLE_MARKS = "‘’‚‛′‵`´‹›ʼ＇׳", "“”„‟«»″‶〝〞〟＂״「」『』｢｣"
_COMPATIBLE = ((0xB5, 0xB5), (0x132, 0x133), (0xFB00, 0xFDFF), (0xFE70, 0xFEFE), (0xFF01, 0xFFDC))
"""Ranges of characters that are compared by their compatibility form.

They are the micro sign, ligatures, Arabic presentation forms, wide ASCII and narrow kana.
"""


class _Fold(dict[int, str]):
    """Comparison forms of characters by code point, computed on first use."""

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
    """A text in comparison form. `folded_at` and `source_at` are the starts of each run in `text` and in `source`."""

    source: str
    text: str
    folded_at: array[int]
    source_at: array[int]

    def source_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the source range of the characters from `start` up to but excluding `end`. `end` must exceed
        `start`.
        """
        return self._place(start), self._place(end - 1) + 1

    def _place(self, at: int) -> int:
        run = bisect_right(self.folded_at, at) - 1
        place, inside = self.source_at[run], at - self.folded_at[run]
        while inside > 0:
            inside -= len(_fold[ord(self.source[place])])
            place += inside >= 0
        return place


def folded(source: str) -> FoldedText:
    """Return a text in its comparison form, in linear time."""
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
    """Return the comparison form of the spaces and dashes between two runs. The runs may be numbers."""
    before, after = _is_number(source[max(0, start - 2) : start][::-1]), _is_number(source[end : end + 2])
    if not before and not after:
        return ""
    gap = source[start:end]
    dash = "-" if _DASH.search(gap) else ""
    space = " " if before and after and _SPACE.search(gap) and not _LINE_END.fullmatch(gap) else ""
    return space + dash


def _is_number(beside: str) -> bool:
    return beside[:1].isdecimal() or (beside[:1] in _SEPARATORS and beside[1:].isdecimal())


_NEVER = 1 << 30


class OutOfSteps(Exception):
    """Raised if a search has used up its steps. The places found until then are still returned."""


class Steps:
    """Budget of steps that a search has left."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, steps: int) -> None:
        """Use up steps. Raises OutOfSteps if too few are left."""
        self._left -= steps
        if self._left < 0:
            raise OutOfSteps


def distance_places(
    text: str, form: str, at: int, offset: int, size: int, most: int, steps: Steps
) -> Iterator[tuple[int, int, int]]:
    """Yield `(start, end, distance)` of a form in the text if the distance is at most `most`.

    The text has the form's piece of `size` characters from `offset` at position `at`.
    """
    head, tail = form[:offset], form[offset + size :]
    left = text[max(0, at - len(head) - most) : at]
    before = _reach(head[::-1], left[::-1], most, steps)
    if before is None:
        return
    right = text[at + size : at + size + len(tail) + most]
    after = _reach(tail, right, most - before[0], steps)
    if after is not None:
        yield at - before[1], at + size + after[1], before[0] + after[0]


def _reach(form: str, text: str, most: int, steps: Steps) -> tuple[int, int] | None:
    """Return the smallest distance of the form to a prefix of the text, and the prefix's length.

    Returns None if the distance exceeds `most`.
    """
    row = [0] + [_NEVER] * len(text)
    for column in range(1, min(len(text), most) + 1):
        row[column] = row[column - 1] + _cost(text, column - 1)
    for index, wanted in enumerate(form, 1):
        first, last = max(1, index - most), min(len(text), index + most)
        steps.take(last - first + 2)
        drop = _cost(form, index - 1)
        next_row = [_NEVER] * len(row)
        if index <= most:
            next_row[0] = row[0] + drop
        for column in range(first, last + 1):
            is_same = text[column - 1] == wanted
            change = 0 if is_same else max(drop, _cost(text, column - 1))
            next_row[column] = min(
                row[column - 1] + change, row[column] + drop, next_row[column - 1] + _cost(text, column - 1)
            )
        row = next_row
        if min(row[first - 1 : last + 1], default=_NEVER) > most:
            return None
    best = min(row)
    if best > most:
        return None
    # Prefer the end nearest to the form's own length.
    length = min((at for at, cost in enumerate(row) if cost == best), key=lambda at: (abs(at - len(form)), at))
    return best, length


def _cost(text: str, at: int) -> int:
    """Return the cost of changing or dropping a character. Digits, and punctuation beside digits, cannot be
    changed.
    """
    character = text[at]
    if _DIGIT.match(character):
        return _NEVER
    is_beside = text[max(0, at - 1) : at].isdecimal() or text[at + 1 : at + 2].isdecimal()
    return _NEVER if is_beside and not character.isalnum() else 1


HEAD = 12
"""Number of first characters of a quote by which its possible places are found."""
MOST_PLACES = 1000
"""Maximum number of places reported for one quote. Further places are not reported."""
STEPS = 2_000_000
"""Maximum extra comparisons for one text, besides the comparisons that every text needs.

They take about a second. Then the search stops, and `SearchResult.is_whole` is False.
"""
_STEPS_A_PLACE = 20
_FEW = 32
"""Maximum number of quotes that are searched for one by one. More quotes are searched for in one pass."""
CHARACTERS_AN_ERROR = 20
MOST_ERRORS = 8
"""Maximum number of wrong characters in a quote read by OCR.

One wrong character is allowed per 20 characters of the quote (rounded up), but never a wrong digit.
"""
_AROUND = 12
_POINTS = r".,:'’/·⁄٫٬．，：_"
_RAISED, _FRACTIONS = r"\u00b2\u00b3\u00b9\u2070-\u208e", r"\u00bc-\u00be\u2150-\u215e"
_MINUS, _THIN = r"\-\u2010-\u2015\u2212", r" \u00a0\u2005-\u200a\u202f"
_DIGIT = regex(rf"[\d{_RAISED}{_FRACTIONS}]")
_GLUED_BEFORE = regex(rf"\d(?:[{_POINTS}\-\u2010-\u2015]|[eE][{_MINUS}+]?)?\Z|(?:^|\W)[{_MINUS}]\Z|\^\(?\Z")
_GLUED_AFTER = regex(rf"\A(?:[{_POINTS}\-\u2010-\u2015]?\d|[{_RAISED}{_FRACTIONS}^]|[eE][{_MINUS}+]?\d)")
_THOUSANDS_BEFORE = regex(rf"(?:^|[^\d])\d{{1,3}}[{_THIN}]\Z")
_THOUSANDS_AFTER = regex(rf"\A[{_THIN}]\d{{3}}(?!\d)")
_FIRST_GROUP, _LAST_GROUP = regex(r"\A\d{3}(?!\d)"), regex(r"(?<!\d)\d{1,3}\Z")
_UNSEEN = regex(rf"[{_INVISIBLE}]+")


class FoundRange(Struct, frozen=True):
    """The characters of a text from `start` up to but excluding `end`. `distance` counts the characters that OCR got
    wrong.
    """

    start: int
    end: int
    distance: int = 0


class SearchResult(Struct):
    """The places of each quote, in order. `is_whole` is False if the steps ran out before the end of the text."""

    places: dict[str, list[FoundRange]] = field(default_factory=dict)
    is_whole: bool = True


def find_quotes(text: str, quotes: Collection[str], *, by_ocr: bool = False) -> SearchResult:
    """Return every place of each quote in a text, up to `MOST_PLACES` places.

    Each quote must have at least one character that the comparison keeps.
    """
    source, wanted = folded(text), {quote: folded(quote).text for quote in quotes}
    found, steps = SearchResult({quote: [] for quote in quotes}), Steps(STEPS)
    by_form: dict[str, list[str]] = {}
    for quote, form in wanted.items():
        by_form.setdefault(form, []).append(quote)
    full: set[str] = set()
    try:
        for form, at in _occurrences(source.text, by_form, steps, full):
            place = _place(source, at, at + len(form))
            if place is None:
                continue
            for quote in by_form[form]:
                found.places[quote].append(place)
            if len(found.places[by_form[form][0]]) == MOST_PLACES:
                full.add(form)
        if by_ocr:
            _find_inexact(source, {form: names for form, names in by_form.items() if not found.places[names[0]]},
                          found, steps)  # fmt: skip
    except OutOfSteps:
        found.is_whole = False
    return found


def _occurrences(
    text: str, forms: Collection[str], steps: Steps, full: AbstractSet[str] = frozenset()
) -> Iterator[tuple[str, int]]:
    """Yield each form with each of its places, except forms in `full`. The caller may add to `full` during the
    search.
    """
    if len(forms) <= _FEW:
        for form in forms:
            at = text.find(form)
            while at >= 0 and form not in full:
                steps.take(_STEPS_A_PLACE)
                yield form, at
                at = text.find(form, at + 1)
        return
    size = min(HEAD, min(map(len, forms)))
    heads: dict[str, list[str]] = {}
    for form in forms:
        heads.setdefault(form[:size], []).append(form)
    for at in range(len(text) - size + 1):
        candidates = heads.get(text[at : at + size])
        if candidates is None:
            continue
        for form in candidates:
            steps.take(1 + len(form) // 100)
            if form not in full and text.startswith(form, at):
                steps.take(_STEPS_A_PLACE)
                yield form, at


def _place(source: FoldedText, start: int, end: int, distance: int = 0) -> FoundRange | None:
    """Return the place in the source.

    Returns None if the place would cut a number or a syllable, or separate an accent from its letter.
    """
    if end < len(source.text) and _goes_on(source.text[end]):
        return None
    first, last = source.source_range(start, end)
    text = source.source
    quoted = text[first:last]
    before = _UNSEEN.sub("", text[max(0, first - _AROUND) : first])
    after = _UNSEEN.sub("", text[last : last + _AROUND])
    if _DIGIT.match(quoted[0]) and (
        _GLUED_BEFORE.search(before)
        or (_FIRST_GROUP.search(quoted) is not None and _THOUSANDS_BEFORE.search(before) is not None)
    ):
        return None
    if _DIGIT.match(quoted[-1]) and (
        _GLUED_AFTER.search(after)
        or (_LAST_GROUP.search(quoted[-4:]) is not None and _THOUSANDS_AFTER.search(after) is not None)
    ):
        return None
    return FoundRange(first, last, distance)


def _goes_on(character: str) -> bool:
    """True if a character belongs to the character before it.

    Examples are an accent, a vowel sign, and the rest of a Korean syllable.
    """
    return unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff"


def _find_inexact(source: FoldedText, missing: Mapping[str, list[str]], found: SearchResult, steps: Steps) -> None:
    """Find places that differ little from a quote. One piece of the quote must match exactly."""
    pieces: dict[str, list[tuple[str, int]]] = {}
    for form in missing:
        for offset, piece in _pieces(form):
            pieces.setdefault(piece, []).append((form, offset))
    near: dict[str, list[tuple[int, int, int]]] = {}
    for piece, at in _occurrences(source.text, pieces, steps):
        for form, offset in pieces[piece]:
            most = errors_allowed(form)
            near.setdefault(form, []).extend(distance_places(source.text, form, at, offset, len(piece), most, steps))
    for form, ranges in near.items():
        places = [_place(source, *one) for one in _nearest(ranges)]
        for quote in missing[form]:
            found.places[quote] += filter(None, places)


def _nearest(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    kept: list[tuple[int, int, int]] = []
    for start, end, distance in sorted(ranges):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end, distance))
        elif distance < kept[-1][2]:
            kept[-1] = start, end, distance
    return kept


def errors_allowed(form: str) -> int:
    """Return the number of characters of a quote that OCR may have wrong."""
    return min(MOST_ERRORS, -(-len(form) // CHARACTERS_AN_ERROR))


def _pieces(form: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a quote, with their offsets. There is one piece more than allowed errors, so one has no
    error.
    """
    number = errors_allowed(form) + 1
    borders = [index * len(form) // number for index in range(number + 1)]
    for first, last in pairwise(borders):
        if last > first:
            yield first, form[first:last]
