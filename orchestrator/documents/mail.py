"""Mail as RFC 5322 has it: its text with the headers that a reader sees, and its attachments."""

from __future__ import annotations

import email
import email.policy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.message import EmailMessage, Message
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from orchestrator.documents.archives import Member
from orchestrator.documents.content import Content
from orchestrator.documents.encoding import clean, decode, decode_declared
from orchestrator.documents.kinds import Holds, Kind, split_name
from orchestrator.documents.lines import Blanks, TooLong, lines, too_large
from orchestrator.documents.types import DocumentProblem, ExtractionError
from orchestrator.documents.unpacking import UnpackLimit

MESSAGE = "message"
"""The name of the mail's own text among its parts."""
SHOWN = ("From", "To", "Cc", "Date", "Subject")
MAX_SECTIONS = 10_000
_ENDINGS = {
    "text/html": ".html",
    "text/csv": ".csv",
    "text/plain": ".txt",
    "application/pdf": ".pdf",
    "application/rtf": ".rtf",
    "text/rtf": ".rtf",
    "application/zip": ".zip",
    "message/rfc822": ".eml",
}
_TEXT = Kind("text", Holds.ONE)


def mail_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """The mail's text, and its attachments. Raises OSError, ExtractionError."""
    del unpacking  # nothing in it is packed: it has no more bytes than the file
    yield from _parts(content.whole(), MESSAGE, "")


def mbox_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """The mails of an mbox file, each with its number, as mails in an archive. Raises OSError, ExtractionError."""
    del unpacking
    for number, mail in enumerate(_mails(content), 1):
        yield Member(f"{number}", partial(_whole, mail, content.limit), kind=Kind("eml", Holds.PARTS))


def _whole(mail: bytes | int, limit: int) -> bytes:
    if isinstance(mail, int):
        raise too_large(mail, limit)
    return mail


def _mails(content: Content) -> Iterator[bytes | int]:
    """The bytes of each mail, or how many they are where that is more than the limit."""
    held: list[bytes] = []
    size, is_blank, began = 0, True, False
    for line in lines(content.pieces(), content.limit):
        if isinstance(line, bytes) and line.startswith(b"From ") and is_blank:
            if began:
                yield b"\n".join(held) if size <= content.limit else size
            held, size, began, is_blank = [], 0, True, False
            continue
        if not began:
            if isinstance(line, bytes) and not line.strip():
                continue
            raise ExtractionError(
                DocumentProblem.UNREADABLE,
                "Not an mbox: it does not begin with a mail (`From `); exclude it.",
            )
        if isinstance(line, Blanks):
            line = b"\n" * (line.number - 1)
        is_blank = isinstance(line, bytes) and not line.strip()
        size += (line.size if isinstance(line, TooLong) else len(line)) + 1
        if isinstance(line, bytes) and size <= content.limit:
            held.append(line[1:] if line.startswith(b">") and line.lstrip(b">").startswith(b"From ") else line)
    if began:
        yield b"\n".join(held) if size <= content.limit else size


def _parts(data: bytes, name: str, prefix: str) -> Iterator[Member]:
    try:
        mail = email.message_from_bytes(data, policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        texts, attached = _sorted(mail)
        fields = _fields(mail)
        if not any(fields.values()) and not texts and not attached:
            raise ValueError("no mail")
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        # The parser raises a dozen different types on headers that are not what they should be.
        raise ExtractionError(
            DocumentProblem.UNREADABLE, "It is damaged or is not an e-mail message; export it again, or exclude it."
        ) from error
    yield Member(prefix + name, partial(_text, mail, texts), fields, _TEXT)
    for number, part in enumerate(attached, 1):
        yield Member(prefix + _name(part, number), partial(_bytes, part), fields)


def _sorted(mail: EmailMessage) -> tuple[list[Message[str, str]], list[Message[str, str]]]:
    """The sections that are the mail's text, and those that are attached."""
    texts: list[Message[str, str]] = []
    attached: list[Message[str, str]] = []
    waiting: list[Message[str, str]] = [mail]
    seen = 0
    while waiting:
        part = waiting.pop()
        seen += 1
        if seen > MAX_SECTIONS:
            raise ExtractionError(
                DocumentProblem.TOO_LARGE, f"The mail has more than {MAX_SECTIONS:,} sections; exclude it."
            )
        kind = part.get_content_type()
        if kind == "multipart/alternative" and part.is_multipart():
            waiting.append(_best(part))
        elif kind.startswith("multipart/") and part.is_multipart():
            waiting.extend(reversed(_inner(part)))
        elif kind in ("text/plain", "text/html") and not part.get_filename() and not _is_attached(part):
            texts.append(part)
        elif not kind.startswith("multipart/"):
            attached.append(part)
    return texts, attached


def _inner(part: Message[str, str]) -> list[Message[str, str]]:
    found: Any = part.get_payload()
    return list(found)


def _best(part: Message[str, str]) -> Message[str, str]:
    """Of several forms of the same text the plain one, else the last, which is the richest."""
    forms = _inner(part)
    plain = [one for one in forms if one.get_content_type() == "text/plain" and _payload(one).strip()]
    return (plain or [one for one in forms if one.get_content_type() != "text/calendar"] or forms)[0 if plain else -1]


def _is_attached(part: Message[str, str]) -> bool:
    return part.get_content_disposition() == "attachment"


def _payload(part: Message[str, str]) -> bytes:
    found: Any = part.get_payload(decode=True)
    return found if isinstance(found, bytes) else b""


def _bytes(part: Message[str, str]) -> bytes:
    """What is attached; a mail is given as it was sent."""
    if part.get_content_type() == "message/rfc822" and part.is_multipart():
        return bytes(_inner(part)[0])
    return _payload(part)


def _name(part: Message[str, str], number: int) -> str:
    """The name of an attachment, with an ending that its type tells where it has none that is known."""
    name = ""
    with suppress(Exception):  # what the parser raises on a name that is not written as it should be
        name = (part.get_filename() or "").replace("\\", "/").rpartition("/")[2].strip()
    ending = _ENDINGS.get(part.get_content_type(), "")
    if not name:
        return f"part-{number}{ending}"
    return name if split_name(name)[1] else name + ending


def _fields(mail: EmailMessage) -> dict[str, str]:
    date = ""
    with suppress(Exception):  # a date of any form
        date = parsedate_to_datetime(_header(mail, "Date")).isoformat()
    recipients = ", ".join(filter(None, (_header(mail, "To"), _header(mail, "Cc"))))
    return message_fields(_header(mail, "Subject"), _header(mail, "From"), recipients, date)


def message_fields(subject: str, sender: str, recipients: str, date: str) -> dict[str, str]:
    """What templates may use of a mail; `date` is in ISO 8601."""
    return {"subject": subject, "sender": sender, "recipients": recipients, "date": date}


def _header(mail: EmailMessage, name: str) -> str:
    try:
        value = str(mail.get(name) or "")
    except Exception:  # noqa: BLE001 (the parser has no one error for headers that are not as they should be)
        return ""
    return " ".join(clean(value.encode("utf-8", "replace").decode()).split())


def _text(mail: EmailMessage, texts: list[Message[str, str]]) -> bytes:
    return message_text({name: _header(mail, name) for name in SHOWN}, *map(_body, texts))


def message_text(headers: Mapping[str, str], *bodies: str) -> bytes:
    """The headers that a reader sees, a blank line, and the text."""
    head = "\n".join(f"{name}: {value}" for name, value in headers.items() if value)
    return "\n\n".join(filter(None, (head, *map(str.strip, bodies)))).encode()


def _body(part: Message[str, str]) -> str:
    data, declared = _payload(part), part.get_content_charset()
    if part.get_content_type() == "text/html":
        from orchestrator.documents.html_text import extract

        return extract(decode_declared(data, declared).encode(), "utf-8")[0]
    return decode_declared(data, declared) if declared else decode(data)
