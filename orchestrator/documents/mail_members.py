"""Parts of a mail in any format: the text with its headers, and attachments by name and type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from orchestrator.documents.archives import Member
from orchestrator.documents.kinds import CALENDAR, MAIL, OUTLOOK_DATA, TEXT, split_name
from orchestrator.documents.mail_headers import words
from orchestrator.documents.smime import content, encrypted
from orchestrator.documents.types import DocumentProblem, ExtractionError

MESSAGE = "message"
"""Name of the part that is the mail's own text."""
SHOWN = ("From", "To", "Cc", "Bcc", "Date", "Subject")
ENDINGS = {
    "text/html": ".html",
    "text/csv": ".csv",
    "text/plain": ".txt",
    "text/calendar": ".ics",
    "text/rfc822-headers": ".txt",
    "application/ics": ".ics",
    "application/pdf": ".pdf",
    "application/rtf": ".rtf",
    "text/rtf": ".rtf",
    "application/zip": ".zip",
    "application/epub+zip": ".epub",
    "application/msword": ".doc",
    "application/vnd.ms-excel": ".xls",
    "application/vnd.ms-powerpoint": ".ppt",
    "application/vnd.ms-outlook": ".msg",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.oasis.opendocument.text": ".odt",
    "application/vnd.oasis.opendocument.spreadsheet": ".ods",
    "application/vnd.oasis.opendocument.presentation": ".odp",
    "message/rfc822": ".eml",
    "message/delivery-status": ".txt",
    "message/disposition-notification": ".txt",
    "message/feedback-report": ".txt",
}
TNEF = frozenset(("application/ms-tnef", "application/vnd.ms-tnef"))
SIGNED = frozenset(("application/pkcs7-mime", "application/x-pkcs7-mime"))
_PGP, _PGP_TYPE = "-----BEGIN PGP MESSAGE-----", "application/pgp-encrypted"


def message_fields(subject: str, sender: str, recipients: str, date: str) -> dict[str, str]:
    """Return the template fields of a mail. `date` is in ISO 8601."""
    return {"subject": subject, "sender": sender, "recipients": recipients, "date": date}


def message_text(headers: Mapping[str, str], *bodies: str, has_more: bool = False) -> bytes:
    """Return the visible headers, a blank line, and the text of a mail.

    `has_more` means that the mail has attachments or pictures. Raises ExtractionError if the text is encrypted.
    Raises ExtractionError if there is no text, unless the mail consists of its subject only.
    """
    texts = [text for text in map(str.strip, bodies) if text]
    if texts and texts[0].startswith(_PGP):
        raise encrypted()
    if not texts and has_more:
        raise ExtractionError(
            DocumentProblem.EMPTY,
            "The mail has no text besides its subject, only attachments or pictures; each of these that is read "
            "is a document of its own. Exclude the message if that is all.",
        )
    if not texts and not headers.get("Subject"):
        raise ExtractionError(DocumentProblem.EMPTY, "The mail has neither a text nor a subject; exclude it.")
    head = "\n".join(f"{name}: {headers[name]}" for name in SHOWN if headers.get(name))
    return "\n\n".join(filter(None, (head, *texts))).encode("utf-8", "replace")


def is_pgp(kind: str, read: Callable[[], bytes]) -> bool:
    """Return True if an attachment of type `kind` is the mail's PGP-encrypted text."""
    return kind == _PGP_TYPE or read()[:200].lstrip().startswith(_PGP.encode())


def attachment(
    name: str, kind: str, number: int, read: Callable[[], bytes], fields: Mapping[str, str], known: str = ""
) -> Member:
    """Return the mail's attachment number `number`. `kind` is its content type, `known` the mail's own text."""
    name = words(name).replace("\\", "/").rpartition("/")[2].strip().strip("\0")
    lower = name.lower()
    if kind in TNEF or lower == "winmail.dat":
        return Member(name or "winmail.dat", read, fields, OUTLOOK_DATA, known=known)
    if is_signed_file(name):
        return Member(name[:-4], partial(_content, read), fields)
    if kind in SIGNED or lower == "smime.p7m":
        return Member(name or "smime.p7m", partial(_content, read), fields, MAIL)
    ending = ENDINGS.get(kind, "")
    if not name:
        name = f"part-{number}{ending}"
    elif not split_name(name)[1]:
        name += ending
    if kind in ("text/calendar", "application/ics") or name.lower().endswith(".ics"):
        return Member(name, read, fields, CALENDAR)
    return Member(name, read, fields, TEXT if ending == ".txt" and kind != "text/plain" else None)


def is_signed_file(name: str) -> bool:
    """Return True for a file in a signature envelope, such as `offer.pdf.p7m`."""
    return name.lower().endswith(".p7m") and bool(split_name(name[:-4])[1])


def _content(read: Callable[[], bytes]) -> bytes:
    return content(read())


def is_within(text: str, other: str) -> bool:
    """Return True if a text occurs in another, compared by letters and digits only."""
    return _letters(text) in _letters(other)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()
