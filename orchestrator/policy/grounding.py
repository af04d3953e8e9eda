"""Search for an answer's quotes in the text of its document that was sent. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.quote_marks import Quote
from orchestrator.core.sanitize import cut
from orchestrator.policy.quote_search import find_quotes, folded

FEWEST_CHARACTERS, FEWEST_WORDS = 12, 3
"""A quote is too short if it has fewer characters and also fewer words than these minimums.

A shorter quote could occur anywhere, so it proves nothing.
"""
NOT_FOUND, TOO_SHORT = "quote_not_found", "quote_too_short"
_SHOWN = 80
_MOST_TOLD = 5
"""Maximum number of quotes that a message names. The message only counts further quotes."""
_WORD = re.compile(r"\w+")


class QuoteStatus(StrEnum):
    """Result of a quote's check."""

    FOUND = "found"
    NOT_FOUND = "not_found"  # the whole document was sent as text, and does not contain it
    TOO_SHORT = "too_short"
    UNVERIFIABLE = "unverifiable"  # a picture was sent, or the text is gone


class SentText(Struct, frozen=True):
    """Text of a document, or of a part of it, in a request. `page` is the number of the text's first page, if
    known.
    """

    text: str
    page: int | None = None
    part: int | None = None


class SentDocument(Struct, frozen=True):
    """The texts of a document that were sent, one per part.

    `has_pictures` is True if pages were sent as pictures, `by_ocr` if OCR read some of the pages.
    """

    texts: tuple[SentText, ...]
    has_pictures: bool = False
    by_ocr: bool = False


class QuotePlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Characters from `start` up to but excluding `end`, counted from 0 in the text that was sent.

    `page` is the page of the characters, None if unknown. `part` is the part of a long document, None if it was not
    split. `distance` is the number of characters that OCR got wrong.
    """

    start: int
    end: int
    page: int | None = None
    part: int | None = None
    distance: int = 0


class GroundedQuote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A quote of an answer and its places in the document."""

    path: str
    status: QuoteStatus
    places: tuple[QuotePlace, ...] = ()


class Grounding(Struct, frozen=True):
    """The quotes of an answer. `problem` is a code and a message if a quote fails its check, otherwise None."""

    quotes: tuple[GroundedQuote, ...]
    problem: tuple[str, str] | None = None

    @property
    def is_unverifiable(self) -> bool:
        """True if at least one quote can be neither proven nor refuted."""
        return any(quote.status is QuoteStatus.UNVERIFIABLE for quote in self.quotes)

    def to_json(self) -> str:
        """Return the quotes as JSON, as a row stores them."""
        return msgspec.json.encode(self.quotes).decode()


_decode_quotes = json_decoder(tuple[GroundedQuote, ...]).decode


def read_quotes(stored: str) -> tuple[GroundedQuote, ...]:
    """Parse the quotes that a row stores."""
    return _decode_quotes(stored)


def check_quotes(quotes: Sequence[Quote], sent: SentDocument | None) -> Grounding:
    """Look for quotes in the text that was sent. `sent` is None if the text no longer exists."""
    wanted = {quote.text for quote in quotes if not is_too_short(quote.text)}
    places: dict[str, list[QuotePlace]] = {text: [] for text in wanted}
    is_whole = sent is not None and not sent.has_pictures
    for one in () if sent is None else sent.texts:
        found = find_quotes(one.text, wanted, by_ocr=sent is not None and sent.by_ocr)
        is_whole = is_whole and found.is_whole
        pages = _Pages(one)
        for text, at in found.places.items():
            places[text] += [
                QuotePlace(*pages.range(place.start, place.end), one.part, place.distance) for place in at
            ]
    grounded = tuple(_grounded(quote, places.get(quote.text), is_whole) for quote in quotes)
    return Grounding(grounded, _problem(quotes, grounded))


def is_too_short(quote: str) -> bool:
    """True if a quote is too short to prove anything."""
    text = " ".join(quote.split())
    is_short = len(text) < FEWEST_CHARACTERS and len(_WORD.findall(text)) < FEWEST_WORDS
    return is_short or not any(map(str.isalnum, folded(text).text))


class _Pages:
    def __init__(self, sent: SentText) -> None:
        self._first = sent.page
        self._breaks = [] if sent.page is None else [at.start() for at in re.finditer("\f", sent.text)]

    def range(self, start: int, end: int) -> tuple[int, int, int | None]:
        return start, end, None if self._first is None else self._first + bisect_right(self._breaks, start)


def _grounded(quote: Quote, places: list[QuotePlace] | None, is_whole: bool) -> GroundedQuote:
    if places is None:
        return GroundedQuote(quote.path, QuoteStatus.TOO_SHORT)
    if places:
        return GroundedQuote(quote.path, QuoteStatus.FOUND, tuple(places))
    return GroundedQuote(quote.path, QuoteStatus.NOT_FOUND if is_whole else QuoteStatus.UNVERIFIABLE)


def _problem(quotes: Sequence[Quote], grounded: Sequence[GroundedQuote]) -> tuple[str, str] | None:
    told = list(zip(quotes, grounded, strict=True))
    missing = [quote for quote, found in told if found.status is QuoteStatus.NOT_FOUND]
    short = [quote for quote, found in told if found.status is QuoteStatus.TOO_SHORT]
    if missing:
        return NOT_FOUND, _message(missing, "not in the document, to the word and digit")
    if short:
        needed = f"{FEWEST_CHARACTERS} characters or {FEWEST_WORDS} words"
        return TOO_SHORT, _message(short, f"too short to prove anything: a quote has at least {needed}")
    return None


def _message(quotes: Sequence[Quote], fault: str) -> str:
    shown = [f"{quote.path or 'the answer'}: {cut(quote.text, _SHOWN)!r}" for quote in quotes[:_MOST_TOLD]]
    rest = len(quotes) - len(shown)
    more = f", and {rest:,} more" if rest else ""
    return f"{'; '.join(shown)}{more} {'is' if len(quotes) == 1 else 'are'} {fault}"
