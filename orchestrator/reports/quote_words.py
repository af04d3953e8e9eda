"""Phrases about the quotes of an answer."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.counts import number_of
from orchestrator.policy.grounding import GroundedQuote, QuotePlace, QuoteStatus


def quote_words(quote: GroundedQuote) -> str:
    """Say where a quote is (`page 2, characters 18-38`), or what is wrong with it."""
    if quote.places:
        return "; ".join(map(place_words, quote.places))
    status = "unverifiable: " if quote.status is QuoteStatus.UNVERIFIABLE else ""
    return f"{status}{reason_words(quote.status)}"


def reason_words(status: QuoteStatus) -> str:
    """Return the reason for a status, phrased to follow the quote."""
    return _REASONS[status]


_REASONS = {
    QuoteStatus.FOUND: "in the document",
    QuoteStatus.NOT_FOUND: "not in the document",
    QuoteStatus.TOO_SHORT: "too short to prove anything",
    QuoteStatus.UNVERIFIABLE: "it may be in a picture that was sent, or the text is gone",
}


def total_words(quotes: Mapping[QuoteStatus, int]) -> str:
    """Describe how many quotes are proven, as in `412 quotes: 400 proven, 12 not in the document`."""
    told = ", ".join(f"{quotes[status]:,} {words}" for status, words in _IN_TOTAL.items() if quotes.get(status))
    number = sum(quotes.values())
    return f"{number_of(number, 'quote')}: {told}"


_IN_TOTAL = {
    QuoteStatus.FOUND: "proven",
    QuoteStatus.NOT_FOUND: "not in the document",
    QuoteStatus.TOO_SHORT: "too short to prove anything",
    QuoteStatus.UNVERIFIABLE: "unverifiable",
}


def place_words(place: QuotePlace) -> str:
    """Describe a place, as in `part 3, page 2, characters 18-38, 1 wrong by OCR`."""
    part = f"part {place.part}, " if place.part else ""
    page = f"page {place.page}, " if place.page else ""
    distance = f", {place.distance} wrong by OCR" if place.distance else ""
    return f"{part}{page}characters {place.start:,}-{place.end:,}{distance}"
