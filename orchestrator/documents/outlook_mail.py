"""The text and attachments of a mail in Outlook's form, from an .msg file or a winmail.dat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from functools import partial

from orchestrator.documents.archives import Member
from orchestrator.documents.content import Content
from orchestrator.documents.ignored import IgnoredReason
from orchestrator.documents.kinds import OUTLOOK, TEXT
from orchestrator.documents.mail import sent_as
from orchestrator.documents.mail_headers import header, iso_date, words
from orchestrator.documents.mail_members import MESSAGE, attachment, is_pgp, is_within, message_fields, message_text
from orchestrator.documents.mapi import ATTACHED_NAMES, ATTACHED_TYPE, Attachment, MapiMail, MapiProperties, body
from orchestrator.documents.smime import encrypted
from orchestrator.documents.tnef import MAX_TEXT, outlook_mail

_HEADERS, _SUBJECT, _SENT, _RECEIVED = 0x7D, 0x37, 0x39, 0x0E06
_NAME, _ADDRESS, _SMTP, _ROLE = 0x3001, 0x3003, 0x39FE, 0x0C15
_SENDERS = ((0x42, (0x5D02, 0x65)), (0x0C1A, (0x5D01, 0x0C1F)))
"""Properties with the sender's name and addresses: first of the represented person, then of the actual sender."""
_ROLES = {2: "Cc", 3: "Bcc"}
_SHOWN = {"To": 0x0E04, "Cc": 0x0E03, "Bcc": 0x0E02}


def winmail_parts(content: Content, known: str) -> Iterator[Member]:
    """Yield a winmail.dat's attachments, and its text unless `known` contains that text. Raises ExtractionError."""
    yield from members(outlook_mail(content.whole()), MAX_TEXT, known)


def members(mail: MapiMail, limit: int, known: str = "") -> Iterator[Member]:
    """Yield the mail's attachments, and its text unless `known` contains that text. Texts have at most `limit`
    bytes.
    """
    headers = _headers(mail)
    shown = ("To", "Cc", "Bcc")
    fields = message_fields(
        headers["Subject"], headers["From"], ", ".join(filter(None, map(headers.get, shown))), headers["Date"]
    )
    signed = next((one for one in mail.attachments if _is_signed(mail, one)), None)
    if signed is not None:
        yield from sent_as(signed.read or bytes, headers, fields)
    elif not known or not is_within(body(mail.properties, limit), known):
        yield Member(MESSAGE, partial(_text, mail, headers, limit), fields, TEXT)
    for number, one in enumerate(mail.attachments, 1):
        if one is not signed:
            yield _member(one, number, fields, limit)


def _member(one: Attachment, number: int, fields: Mapping[str, str], limit: int) -> Member:
    name = one.properties.text(*ATTACHED_NAMES)
    if one.mail is not None:
        title = " ".join(name.replace("/", " ").replace("\\", " ").split()) or f"part-{number}"
        title = title if title.lower().endswith(".msg") else f"{title}.msg"
        return Member(title, bytes, fields, OUTLOOK, parts=partial(_inner, one.mail, limit))
    if one.read is None:
        return Member(name or f"part-{number}", bytes, fields, passed=IgnoredReason.KIND)
    return attachment(name, one.properties.text(ATTACHED_TYPE).lower(), number, one.read, fields)


def _inner(mail: Callable[[], MapiMail], limit: int) -> Iterator[Member]:
    yield from members(mail(), limit)


def _is_signed(mail: MapiMail, one: Attachment) -> bool:
    """Return True if the attachment is the mail itself in its sent form, signed or encrypted."""
    kind = mail.properties.text(0x1A).lower()
    return len(mail.attachments) == 1 and one.read is not None and ".smime" in kind


def _headers(mail: MapiMail) -> dict[str, str]:
    properties = mail.properties
    sent = HeaderParser().parsestr(properties.text(_HEADERS).lstrip())
    date = properties.time(_SENT) or properties.time(_RECEIVED) or iso_date(header(sent, "Date"))
    return {
        "From": words(" ".join(sent.get("From", "").split())) or _sender(properties),
        **{name: _recipients(mail, name, sent) for name in _SHOWN},
        "Date": date,
        "Subject": " ".join(properties.text(_SUBJECT).split()),
    }


def _sender(properties: MapiProperties) -> str:
    found = [(properties.text(name), _address(properties, addresses)) for name, addresses in _SENDERS]
    name, address = next(filter(all, found), next(filter(any, found), ("", "")))
    quoted = f'"{name}"' if name and address else name
    return f"{quoted} <{address}>".strip() if address else quoted


def _address(properties: MapiProperties, idents: Sequence[int]) -> str:
    """Return the first internet address, or "".

    An Exchange address (`/o=…`) means nothing outside its organisation.
    """
    return next((one for one in map(properties.text, idents) if "@" in one and not one.startswith("/")), "")


def _recipients(mail: MapiMail, role: str, sent: Message) -> str:
    found = [one for one in mail.recipients if _ROLES.get(one.number(_ROLE), "To") == role]
    whole = [(" ".join(one.text(_NAME).split()), _address(one, (_SMTP, _ADDRESS))) for one in found]
    if (not whole or not all(address for _, address in whole)) and (as_sent := header(sent, role)):
        return as_sent
    names = [f"{name} <{address}>".strip() if address else name for name, address in whole]
    return ", ".join(filter(None, names)) or mail.properties.text(_SHOWN[role])


def _text(mail: MapiMail, headers: Mapping[str, str], limit: int) -> bytes:
    text = body(mail.properties, limit)
    if not text.strip() and any(map(_is_pgp, mail.attachments)):
        raise encrypted()
    return message_text(headers, text, has_more=bool(mail.attachments))


def _is_pgp(one: Attachment) -> bool:
    return is_pgp(one.properties.text(ATTACHED_TYPE).lower(), one.read or bytes)
