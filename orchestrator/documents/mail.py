"""Mail in the format of RFC 5322: its text with the visible headers, and its attachments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from email.message import Message
from functools import partial
from itertools import chain, pairwise

from orchestrator.documents.archives import Member
from orchestrator.documents.content import Content
from orchestrator.documents.kinds import MAIL, TEXT
from orchestrator.documents.lines import Blanks, TooLong, lines, too_large
from orchestrator.documents.mail_headers import header, iso_date
from orchestrator.documents.mail_members import (
    MESSAGE,
    SHOWN,
    TNEF,
    attachment,
    is_pgp,
    message_fields,
    message_text,
)
from orchestrator.documents.mail_sections import (
    Sections,
    body,
    file_name,
    mail_in,
    parsed,
    payload,
    sections,
    type_of,
)
from orchestrator.documents.smime import encrypted
from orchestrator.documents.tnef import outlook_text
from orchestrator.documents.types import ExtractionError, unreadable
from orchestrator.documents.unpacking import UnpackLimit

_MARK = b"\xef\xbb\xbf"
_TIME = re.compile(rb"\d\d:\d\d.*\d{4}")
_HEADER = re.compile(rb"[!-9;-~]+:")


def mail_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the mail's text and its attachments. Raises OSError, ExtractionError."""
    del unpacking  # a mail is not packed: its parts have at most as many bytes as the file
    yield from _parts(partial(parsed, content.whole()))


def begins_with_a_header(data: bytes) -> bool:
    return _HEADER.match(data.removeprefix(_MARK).lstrip()) is not None


def mbox_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the numbered mails of an mbox file as parts. Raises OSError, ExtractionError."""
    del unpacking
    for number, mail in enumerate(_mails(content), 1):
        yield Member(f"{number}", partial(_whole, mail, content.limit), kind=MAIL)


def _whole(mail: bytes | int, limit: int) -> bytes:
    if isinstance(mail, int):
        raise too_large(mail, limit)
    return mail


def _mails(content: Content) -> Iterator[bytes | int]:
    """Yield each mail's bytes, or its size if that exceeds the limit."""
    held: list[bytes] = []
    size, is_blank, began = 0, True, False
    for line, after in pairwise(chain(lines(content.pieces(), content.limit), (b"",))):
        if not began:
            line = line.removeprefix(_MARK) if isinstance(line, bytes) else line
            if isinstance(line, bytes) and not line.strip():
                continue
            if not isinstance(line, bytes) or not line.startswith(b"From "):
                raise unreadable("Not an mbox: it does not begin with a mail (`From `); exclude it.")
            began = True
            continue
        if isinstance(line, bytes) and _begins_mail(line, after, is_blank=is_blank):
            yield b"\n".join(held) if size <= content.limit else size
            held, size, is_blank = [], 0, True
            continue
        if isinstance(line, Blanks):
            line = b"\n" * (line.number - 1)
        is_blank = isinstance(line, bytes) and not line.strip()
        size += (line.size if isinstance(line, TooLong) else len(line)) + 1
        if isinstance(line, bytes) and size <= content.limit:
            held.append(line[1:] if line.startswith(b">") and line.lstrip(b">").startswith(b"From ") else line)
    if began:
        yield b"\n".join(held) if size <= content.limit else size


def _begins_mail(line: bytes, after: object, *, is_blank: bool) -> bool:
    """Return True for a separator line, which names a mail's sender and time.

    `is_blank` is true if the previous line is blank. Some programs do not escape text lines that start with `From `,
    and some put no blank line before a mail.
    """
    if not line.startswith(b"From "):
        return False
    has_header = isinstance(after, bytes) and _HEADER.match(after) is not None
    return (is_blank or has_header) if _TIME.search(line) else (is_blank and has_header)


def sent_as(read: Callable[[], bytes], headers: Mapping[str, str], fields: Mapping[str, str]) -> Iterator[Member]:
    """Yield the text and attachments of a mail stored in its sent form. `headers` replace the mail's own headers."""
    yield from _parts(partial(_signed, read), headers, fields)


def _signed(read: Callable[[], bytes]) -> Message:
    """Parse a mail in its sent form. A bare signature or encryption envelope (DER) becomes a section of that type."""
    data = read()
    if data[:1] == b"\x30" or (data[:2] == b"MI" and b":" not in data.partition(b"\n")[0]):  # DER, or DER in base64
        wrapped = Message()
        wrapped["Content-Type"] = "application/pkcs7-mime"
        wrapped["Content-Transfer-Encoding"] = "8bit"
        wrapped.set_payload(data.decode("ascii", "surrogateescape"))
        return wrapped
    return parsed(data)


def _parts(
    parse: Callable[[], Message], headers: Mapping[str, str] | None = None, fields: Mapping[str, str] | None = None
) -> Iterator[Member]:
    try:
        mail = parse()
        found = sections(mail)
        headers = headers or {name: header(mail, name) for name in SHOWN}
        fields = fields or _fields(headers)
        if not any(headers.values()) and not found.texts and not found.attached:
            raise ValueError("no mail")
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        # The parser raises a dozen different types on malformed mails.
        raise unreadable("It is damaged or is not an e-mail message; export it again, or exclude it.") from error
    yield from _members(found, headers, fields)


def _fields(headers: Mapping[str, str]) -> dict[str, str]:
    recipients = ", ".join(filter(None, (headers["To"], headers["Cc"], headers["Bcc"])))
    return message_fields(headers["Subject"], headers["From"], recipients, iso_date(headers["Date"]))


def _members(found: Sections, headers: Mapping[str, str], fields: Mapping[str, str]) -> Iterator[Member]:
    bodies = _bodies(found)
    has_text = isinstance(bodies, ExtractionError) or any(map(str.strip, bodies))
    has_more = not has_text and (bool(found.attached) or any(b"<img" in payload(one).lower() for one in found.texts))
    yield Member(MESSAGE, partial(_text, headers, bodies, has_more=has_more), fields, TEXT)
    known = "" if isinstance(bodies, ExtractionError) else "\n".join(bodies)
    for number, part in enumerate(found.attached, 1):
        if type_of(part) == "message/rfc822":
            name = attachment(file_name(part), "message/rfc822", number, bytes, fields).name
            yield Member(name, bytes, fields, MAIL, parts=partial(_parts, partial(mail_in, part)))
        else:
            yield attachment(file_name(part), type_of(part), number, partial(payload, part), fields, known)
    for number, (part, error) in enumerate(found.lost, len(found.attached) + 1):
        if error is not bodies:
            yield Member(file_name(part) or f"part-{number}", partial(_fail, error), fields, TEXT)


def _bodies(found: Sections) -> list[str] | ExtractionError:
    try:
        bodies = [body(part) for part in found.texts]
        if any(map(str.strip, bodies)):
            return bodies
        if found.lost:
            return found.lost[0][1]
        if any(is_pgp(type_of(part), partial(payload, part)) for part in found.attached):
            return encrypted()
        packed = next((part for part in found.attached if type_of(part) in TNEF), None)
        return bodies if packed is None else [outlook_text(payload(packed))]
    except ExtractionError as error:
        return error


def _text(headers: Mapping[str, str], bodies: list[str] | ExtractionError, *, has_more: bool) -> bytes:
    if isinstance(bodies, ExtractionError):
        raise bodies
    return message_text(headers, *bodies, has_more=has_more)


def _fail(error: ExtractionError) -> bytes:
    raise error
