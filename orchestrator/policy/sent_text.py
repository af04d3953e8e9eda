"""Position of the document's text in a request, and the parts of the document that the request contains. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.json_decoders import json_decoder
from orchestrator.policy.grounding import SentDocument, SentText
from orchestrator.policy.request_bodies import messages_of


class TextAt(NamedTuple):
    """Position of the document's text in a question: from `start` up to but excluding `end`.

    `page` is the text's first page, or None if the document has no pages. `by_ocr` is True if some pages were read by
    OCR.
    """

    start: int
    end: int
    page: int | None = None
    by_ocr: bool = False

    @staticmethod
    def read(stored: str) -> TextAt:
        """Parse the form that a row stores. Raises JSON_ERRORS if it is invalid."""
        return _decode_at(stored)

    def __str__(self) -> str:
        """Return the form that a row stores."""
        return msgspec.json.encode(self).decode()


_decode_at = json_decoder(TextAt).decode


class _Line(msgspec.Struct):
    body: dict[str, Any]


_decode_line = json_decoder(_Line).decode


def text_range(question: str, text: str, without_text: str) -> tuple[int, int]:
    """Return the range of a document's text in a question. `without_text` is the same question without the text.

    If the prompt changes the text, the range is the part in which the two questions differ.
    """
    start = question.find(text)
    if start >= 0:
        return start, start + len(text)
    first = _common_length(question, without_text)
    return first, len(question) - _common_length(question[first:][::-1], without_text[first:][::-1])


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def question_text(messages: list[dict[str, Any]]) -> str:
    """Return the text of the first user message, after its pictures. Empty if there is no such text."""
    for message in messages:
        content = message.get("content")
        if message.get("role") == "user":
            return content if isinstance(content, str) else _last_text(content)
    return ""


def _last_text(parts: Any) -> str:
    texts = [part.get("text") for part in parts or () if isinstance(part, dict)]
    return next((text for text in reversed(texts) if isinstance(text, str)), "")


def sent_document(line: bytes, text_at: str, part: int | None = None) -> SentDocument | None:
    """Return the document's text in a request line, or None if unreadable. `text_at` has the form that a row
    stores.
    """
    try:
        messages, at = messages_of(_decode_line(line).body), TextAt.read(text_at)
    except JSON_ERRORS:
        return None
    text = question_text(messages)[at.start : at.end]
    contents = (message.get("content") for message in messages)
    parts = (one for content in contents if isinstance(content, list) for one in content)
    has_pictures = any(isinstance(one, dict) and "image_url" in one for one in parts)
    return SentDocument((SentText(text, at.page, part),), has_pictures, at.by_ocr)


def joined(documents: list[SentDocument]) -> SentDocument:
    """Join the sent parts of a document into one."""
    texts = tuple(text for document in documents for text in document.texts)
    has_pictures = any(document.has_pictures for document in documents)
    return SentDocument(texts, has_pictures, any(document.by_ocr for document in documents))
