"""Mail as Outlook saves it (.msg): its text with the headers that a reader sees, and its attachments."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from orchestrator.documents.archives import Member
from orchestrator.documents.content import Content
from orchestrator.documents.extras import require
from orchestrator.documents.kinds import Holds, Kind
from orchestrator.documents.mail import MESSAGE, message_fields, message_text
from orchestrator.documents.types import DocumentProblem, ExtractionError
from orchestrator.documents.unpacking import UnpackLimit


def msg_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """The mail's text, and its attachments. Raises OSError, ExtractionError."""
    del unpacking  # nothing in it is packed
    data = content.whole()
    oxmsg = require("oxmsg", "Outlook mail", "office")
    try:
        mail = oxmsg.Message.load(io.BytesIO(data))
        fields = _fields(mail)
        text = _text(mail, fields)
        attached = [(one.file_name, one.file_bytes) for one in mail.attachments]
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        # olefile and oxmsg raise a dozen different types on damage.
        raise ExtractionError(
            DocumentProblem.UNREADABLE, "It is damaged or is not an Outlook message; export it again, or exclude it."
        ) from error
    yield Member(MESSAGE, lambda: text, fields, Kind("text", Holds.ONE))
    for number, (name, inside) in enumerate(attached, 1):
        yield Member(name or f"part-{number}", lambda inside=inside: inside or b"", fields)  # type: ignore[misc]


def _fields(mail: Any) -> dict[str, str]:
    to = ", ".join(f"{one.name} <{one.email_address}>" for one in mail.recipients)
    date = mail.sent_date.isoformat() if mail.sent_date else ""
    return message_fields(mail.subject or "", mail.sender or "", to, date)


def _text(mail: Any, fields: dict[str, str]) -> bytes:
    body = mail.body or ""
    if not body.strip() and mail.html_body:
        from orchestrator.documents.html_text import extract

        body = extract(mail.html_body.encode(), "utf-8")[0]
    names = {"From": "sender", "To": "recipients", "Date": "date", "Subject": "subject"}
    return message_text({name: fields[field] for name, field in names.items()}, body)
