"""Phrases about the quotes of an answer."""

from __future__ import annotations

from orchestrator.policy.grounding import GroundedQuote, QuotePlace, QuoteStatus


def quote_words(quote: GroundedQuote) -> str:
    """Say where a quote stands (`page 2, characters 18-38`), or what is wrong with it."""
    return "; ".join(map(place_words, quote.places)) if quote.places else _QUOTES[quote.status]


_QUOTES = {
    QuoteStatus.FOUND: "in the document",
    QuoteStatus.NOT_FOUND: "not in the document",
    QuoteStatus.TOO_SHORT: "too short to prove anything",
    QuoteStatus.UNVERIFIABLE: "unverifiable: it may stand in a picture that was sent, or the text is gone",
}


def place_words(place: QuotePlace) -> str:
    """Describe a place: `part 3, page 2, characters 18-38, 1 wrong by OCR`."""
    part = f"part {place.part}, " if place.part else ""
    page = f"page {place.page}, " if place.page else ""
    distance = f", {place.distance} wrong by OCR" if place.distance else ""
    return f"{part}{page}characters {place.start:,}-{place.end:,}{distance}"
