"""Headers of mails as text: encoded words, unencoded bytes, and dates in any form."""

from __future__ import annotations

from contextlib import suppress
from email import policy
from email.header import decode_header
from email.message import Message
from email.utils import parsedate_to_datetime

from orchestrator.documents.encoding import clean, decode, decode_declared, whole
from orchestrator.documents.types import ExtractionError


def header(mail: Message, name: str) -> str:
    """Return the first header of that name as one line; empty if missing."""
    raw = next((value for key, value in mail.raw_items() if key.lower() == name.lower()), "")
    return " ".join(clean(whole(_decoded(name, _characters(str(raw))))).split())


def words(text: str) -> str:
    """Return a text, such as an attachment's name, with its encoded words decoded."""
    return _by_hand(text) if "=?" in text else text


def iso_date(text: str) -> str:
    """Return a header's date in ISO 8601; empty if unreadable."""
    with suppress(Exception):  # malformed dates raise various errors
        return parsedate_to_datetime(text).isoformat()
    return ""


def _characters(raw: str) -> str:
    """Restore non-ASCII bytes, which the parser represents as surrogate halves."""
    try:
        data = raw.encode("ascii", "surrogateescape")
    except UnicodeEncodeError:
        return raw
    if data.isascii():
        return raw
    try:
        return decode(data)
    except ExtractionError:
        return data.decode("cp1252", "replace")


def _decoded(name: str, raw: str) -> str:
    found = ""
    with suppress(Exception):  # the parser raises various errors on malformed headers
        found = str(policy.default.header_fetch_parse(name, raw))
    if raw and (not found or "\ufffd" in found or "=?" in found):
        return _by_hand(raw)
    return found


def _by_hand(raw: str) -> str:
    """Decode adjacent encoded words together, because some programs split a character between two words."""
    try:
        found = decode_header(raw)
    except Exception:  # noqa: BLE001 (invalid base64 and other malformed words raise various errors)
        return raw
    return "".join(one if isinstance(one, str) else _word(one, charset) for one, charset in found)


def _word(data: bytes, charset: str | None) -> str:
    try:
        return decode_declared(data, charset) if charset else data.decode("raw-unicode-escape")
    except (ExtractionError, ValueError):
        return data.decode("latin-1")
