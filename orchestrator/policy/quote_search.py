"""Finds quotes in a text: exactly, or within a small distance if the text was read by OCR. Pure.

The time grows with the text and with the quotes, not with their product: one pass over the text looks for the first
characters of all quotes. A budget limits texts that repeat themselves too often for that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import pairwise

from msgspec import Struct, field

from orchestrator.policy.quote_distance import OutOfSteps, Steps, distance_places
from orchestrator.policy.quote_folding import FoldedText, folded

HEAD = 12
"""Characters by which possible places of a quote are found."""
MOST_PLACES = 1000
"""Most places reported for one quote."""
STEPS = 2_000_000
"""Extra comparisons for one answer, besides the comparisons that every text needs: about a second."""
_STEPS_A_PLACE = 20
_FEW = 32
"""Up to this many quotes are searched one by one."""
CHARACTERS_AN_ERROR = 20
MOST_ERRORS = 8
"""OCR may have one character wrong in each 20 begun characters of a quote, at most 8 in all; never a digit."""
_AROUND = 12
_GLUED_BEFORE = re.compile(r"\d[.,:'’/·\-\u2010-\u2015]?\Z|(?:^|[\s(\[])[\-\u2010-\u2015\u2212]\Z")
_GLUED_AFTER = re.compile(r"\A[.,:'’/·\-\u2010-\u2015]?\d")
_THOUSANDS_BEFORE = re.compile(r"(?:^|[^\d])\d{1,3}[ \u00a0\u2009\u202f]\Z")
_THOUSANDS_AFTER = re.compile(r"\A[ \u00a0\u2009\u202f]\d{3}(?!\d)")
_FIRST_GROUP, _LAST_GROUP = re.compile(r"\A\d{3}(?!\d)"), re.compile(r"(?<!\d)\d{1,3}\Z")


class FoundRange(Struct, frozen=True):
    """The characters of a text from `start` up to `end`; `distance` is how many of them OCR has wrong."""

    start: int
    end: int
    distance: int = 0


class SearchResult(Struct):
    """The places of each quote, in order; `is_whole` is False if the budget ended before the text did."""

    places: dict[str, list[FoundRange]] = field(default_factory=dict)
    is_whole: bool = True


def find_quotes(text: str, quotes: Collection[str], *, by_ocr: bool = False) -> SearchResult:
    """Return every place of each quote in a text. Each quote must have characters that count."""
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
    """Yield each place of a form that is not in `full`, to which the caller may add meanwhile."""
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
    """Return the place in the source; None if it would cut a number, or separate an accent."""
    if end < len(source.text) and unicodedata.combining(source.text[end]):
        return None
    first, last = source.source_range(start, end)
    text = source.source
    quoted = text[first:last]
    before, after = text[max(0, first - _AROUND) : first], text[last : last + _AROUND]
    if quoted[0].isdecimal() and (
        _GLUED_BEFORE.search(before)
        or (_FIRST_GROUP.search(quoted) is not None and _THOUSANDS_BEFORE.search(before) is not None)
    ):
        return None
    if quoted[-1].isdecimal() and (
        _GLUED_AFTER.search(after)
        or (_LAST_GROUP.search(quoted[-4:]) is not None and _THOUSANDS_AFTER.search(after) is not None)
    ):
        return None
    return FoundRange(first, last, distance)


def _find_inexact(source: FoldedText, missing: Mapping[str, list[str]], found: SearchResult, steps: Steps) -> None:
    """Find places that differ little from a quote: one of its pieces stands there exactly."""
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
    """Return, of overlapping ranges, those with the least distance."""
    kept: list[tuple[int, int, int]] = []
    for start, end, distance in sorted(ranges):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end, distance))
        elif distance < kept[-1][2]:
            kept[-1] = start, end, distance
    return kept


def errors_allowed(form: str) -> int:
    """Return how many characters of a quote OCR may have wrong."""
    return min(MOST_ERRORS, -(-len(form) // CHARACTERS_AN_ERROR))


def _pieces(form: str) -> Iterator[tuple[int, str]]:
    """Yield a quote in one piece more than its allowed errors: at least one piece has none."""
    number = errors_allowed(form) + 1
    borders = [index * len(form) // number for index in range(number + 1)]
    for first, last in pairwise(borders):
        if last > first:
            yield first, form[first:last]
