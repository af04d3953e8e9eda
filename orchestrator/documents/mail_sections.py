"""Sorts the sections of a mail into its text, its attachments, and text that cannot be read."""

from __future__ import annotations

import email
import re
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from typing import Any

from msgspec import Struct, field

from orchestrator.documents.encoding import bom_of, decode, decode_declared, wide_without_bom
from orchestrator.documents.mail_members import SIGNED, is_signed_file
from orchestrator.documents.smime import content, encrypted
from orchestrator.documents.types import ExtractionError, beyond_limit, unreadable

Part = Message
MAX_SECTIONS = 10_000
_TYPE = re.compile(r"\s*[\"']?([\w.+-]+/[\w.+-]+)")
_TOKEN = re.compile(r"[\w-]+")
_SHOWN = ("text/plain", "text/html", "text/enriched", "text/richtext", "text/markdown", "text/x-markdown")
_BOUNDARY = re.compile(r"^--(?=\S)(.{1,200}?)[ \t]*\r?\nContent-", re.MULTILINE | re.IGNORECASE)


class WideMail(Message):
    """A mail or section from a UTF-16 file. It was converted to UTF-8, whatever its headers declare."""


class Sections(Struct):
    """Sections of a mail. `texts` form the mail's text; `lost` pairs each unreadable text with its error."""

    texts: list[Part] = field(default_factory=list)
    attached: list[Part] = field(default_factory=list)
    lost: list[tuple[Part, ExtractionError]] = field(default_factory=list)


def parsed(data: bytes) -> Part:
    """Parse a mail; UTF-16 is converted to UTF-8 first. Raises ValueError and any error of the parser."""
    wide = bom_of(data) or wide_without_bom(data)
    if wide is None:
        return email.message_from_bytes(data.lstrip(b"\r\n"))
    return email.message_from_bytes(decode(data).lstrip("\n").encode(), Message if wide == "utf-8" else WideMail)


def sections(mail: Part) -> Sections:
    """Sort the sections. Raises ExtractionError (too_large) if the mail has more than MAX_SECTIONS."""
    found = Sections()
    waiting: list[Part] = [mail]
    seen = 0
    while waiting:
        part = waiting.pop()
        seen += 1
        if seen > MAX_SECTIONS:
            raise beyond_limit(f"The mail has more than {MAX_SECTIONS:,} sections; exclude it.")
        kind = type_of(part)
        if kind.startswith("multipart/"):
            waiting.extend(reversed(_of_multipart(part, kind, found)))
        elif kind in SIGNED and not is_signed_file(file_name(part)):
            waiting.extend(_signed(part, found))
        elif _is_text(part, kind):
            found.texts.append(part)
        elif kind == "message/partial":
            why = "The mail was sent in pieces, and this is one of them; join them, or exclude it."
            found.lost.append((part, unreadable(why)))
        else:
            found.attached.append(part)
    if not found.texts:
        _take_named_text(found)
    return found


def _of_multipart(part: Part, kind: str, found: Sections) -> list[Part]:
    inner = inside(part) or _recovered(part)
    if not inner:
        found.texts.append(part)
    elif kind == "multipart/encrypted":
        found.lost.append((part, encrypted()))
    elif kind == "multipart/alternative":
        best = _preferred_form(inner)
        found.attached.extend(_attached_to(one for one in inner if one is not best))
        return [best]
    else:
        return inner
    return []


def _signed(part: Part, found: Sections) -> list[Part]:
    if "certs-only" in str(part.get("Content-Type", "")).lower():
        found.attached.append(part)
        return []
    try:
        return [parsed(content(payload(part)))]
    except ExtractionError as error:
        found.lost.append((part, error))
        return []


def _is_text(part: Part, kind: str) -> bool:
    return kind in _SHOWN and not file_name(part) and not _is_attached(part)


def _take_named_text(found: Sections) -> None:
    """Use a named text as the mail's text if the mail has no other text.

    Some programs give even the main text a file name.
    """
    part = next((one for one in found.attached if type_of(one) in _SHOWN and not _is_attached(one)), None)
    if part is not None and not found.lost:
        found.attached.remove(part)
        found.texts.append(part)


def _preferred_form(forms: list[Part]) -> Part:
    plain = [one for one in forms if type_of(one) == "text/plain" and payload(one).strip()]
    rich = [one for one in forms if type_of(one) in ("text/html", "multipart/related", "multipart/mixed")]
    return (plain or rich[::-1] or [one for one in forms if type_of(one) != "text/calendar"][::-1] or forms)[0]


def _attached_to(forms: Iterator[Part]) -> Iterator[Part]:
    """Yield the attachments and invitations in the unused alternatives of a text."""
    for form in forms:
        for part in form.walk():
            if not part.is_multipart() and (_is_attached(part) or type_of(part) == "text/calendar"):
                yield part


def _recovered(part: Part) -> list[Part]:
    """Return the sections of a mail that declares a wrong boundary.

    The first line that looks like a boundary is used.
    """
    text = part.get_payload()
    if not isinstance(text, str) or (found := _BOUNDARY.search(text)) is None:
        return []
    head = f'Content-Type: multipart/mixed; boundary="{found[1]}"\n\n'.encode()
    return inside(email.message_from_bytes(head + text.encode("utf-8", "surrogateescape"), type(part)))


def type_of(part: Part) -> str:
    """Return the content type, even from a malformed header."""
    found = _TYPE.match(str(part.get("Content-Type", "")))
    return found[1].lower() if found else part.get_default_type()


def inside(part: Part) -> list[Part]:
    found: Any = part.get_payload()
    return list(found) if isinstance(found, list) else []


def file_name(part: Part) -> str:
    """Return the file name as written, or ""."""
    with suppress(Exception):  # the parser's errors on malformed names
        return (part.get_filename() or "").strip()
    return ""


def _is_attached(part: Part) -> bool:
    return part.get_content_disposition() == "attachment"


def transfer_encoding(part: Part) -> str:
    found = _TOKEN.search(str(part.get("Content-Transfer-Encoding", "")))
    return found[0].lower() if found else ""


def payload(part: Part) -> bytes:
    """Return a section's decoded bytes. A delivery status yields the text of its header blocks."""
    written = transfer_encoding(part)
    if written and written != part["Content-Transfer-Encoding"]:
        part.replace_header("Content-Transfer-Encoding", written)
    found: Any = part.get_payload(decode=True)
    if isinstance(found, bytes):
        return found
    if part.is_multipart():  # a delivery status: blocks of headers
        blocks = ["\n".join(f"{name}: {value}" for name, value in one.raw_items()) for one in inside(part)]
        return "\n\n".join(blocks).encode("utf-8", "surrogateescape")
    return b""


def mail_in(part: Part) -> Part:
    """Return the mail in a section.

    Some programs encode the mail in base64, which the parser mistakes for the mail's text.
    """
    inner = inside(part)
    if not inner:
        return parsed(payload(part))
    if transfer_encoding(part) in ("base64", "quoted-printable"):
        holder = Message()
        holder["Content-Transfer-Encoding"] = transfer_encoding(part)
        holder.set_payload(inner[0].as_bytes().lstrip(b"\n").decode("ascii", "surrogateescape"))
        if (found := payload(holder)) and (mail := parsed(found)).keys():
            return mail
    return inner[0]


def body(part: Part) -> str:
    """Return the text of a section. Raises ExtractionError (encoding)."""
    data, declared = payload(part), part.get_content_charset()
    if isinstance(part, WideMail) and transfer_encoding(part) not in ("base64", "quoted-printable"):
        declared = "utf-8"
    if type_of(part) == "text/html":
        from orchestrator.documents.html_text import extract

        return extract(decode_declared(data, declared).encode(), "utf-8")[0]
    return decode_declared(data, declared) if declared else decode(data)
