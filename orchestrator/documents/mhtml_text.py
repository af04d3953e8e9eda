"""Text of a web page that a browser saved with its pictures (MHTML)."""

from __future__ import annotations

import email
import email.policy
from email.message import Message

from orchestrator.documents import html_text
from orchestrator.documents.encoding import decode_declared
from orchestrator.documents.office import damage_as, damaged


def extract(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, object]]:
    """Return the text and `{"title": ...}`. Raises ExtractionError, MemoryError."""
    with damage_as("web archive"):
        page = _saved_page(email.message_from_bytes(data, policy=email.policy.compat32))
        held = None if page is None else page.get_payload(decode=True)
        charset = None if page is None else page.get_content_charset()
    if not isinstance(held, bytes):
        raise damaged("web archive")
    if encoding is None and charset is not None:
        return html_text.extract(decode_declared(held, charset).encode(), "utf-8", most)
    return html_text.extract(held, encoding, most)


def _saved_page(archive: Message) -> Message | None:
    pages = ("text/html", "application/xhtml+xml")
    return next((part for part in archive.walk() if part.get_content_type() in pages), None)
