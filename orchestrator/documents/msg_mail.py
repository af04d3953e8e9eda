"""Outlook's .msg mails ([MS-OXMSG]): a compound file whose storages hold properties."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from orchestrator.documents import compound
from orchestrator.documents.archives import Member
from orchestrator.documents.content import Content
from orchestrator.documents.mapi import ATTACHED_DATA, BINARY, OBJECT, Attachment, MapiMail, MapiProperties
from orchestrator.documents.outlook_mail import members
from orchestrator.documents.types import ExtractionError, unreadable
from orchestrator.documents.unpacking import UnpackLimit

_TABLE = "__properties_version1.0"
_VALUE = re.compile(r"__substg1\.0_([0-9A-F]{4})([0-9A-F]{4})", re.IGNORECASE)
_ATTACHMENT, _RECIPIENT = "__attach_version1.0", "__recip_version1.0"
_ROOT_HEAD, _MAIL_HEAD, _HEAD = 32, 24, 8
"""Bytes before the properties in the file, in a mail inside a mail, and in any other storage."""
_ENTRY = 16
_STORAGE = 1


def msg_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the mail's text and its attachments. Raises OSError, ExtractionError."""
    del unpacking  # only a mail's RTF is packed, and it has its own limit
    data = content.whole()
    try:
        file = _File(compound.opened(io.BytesIO(data), "Outlook mail"))
        if not file.values(file.root):
            raise ValueError("not a mail")
        found = list(members(file.mail(file.root, _ROOT_HEAD), content.limit))
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        raise _damaged() from error
    yield from found


class _File:
    """A compound file. Parameters of type `Any` are entries of its directory."""

    def __init__(self, ole: Any) -> None:
        self._ole = ole
        self.root = ole.root

    def mail(self, storage: Any, head: int) -> MapiMail:
        properties = MapiProperties(self.values(storage, head))
        inner = [entry for entry in storage.kids if entry.entry_type == _STORAGE]
        return MapiMail(
            properties,
            [MapiProperties(self.values(one), properties) for one in inner if one.name.startswith(_RECIPIENT)],
            [self._attachment(one, properties) for one in inner if one.name.startswith(_ATTACHMENT)],
        )

    def _attachment(self, storage: Any, mail: MapiProperties) -> Attachment:
        values = self.values(storage)
        properties = MapiProperties(values, mail)
        if read := values.get((ATTACHED_DATA, BINARY)):
            return Attachment(properties, read)
        inner = next((one for one in storage.kids if _ident(one.name) == (ATTACHED_DATA, OBJECT)), None)
        if inner is not None and any(one.name == _TABLE for one in inner.kids):
            return Attachment(properties, None, partial(self.mail, inner, _MAIL_HEAD))
        return Attachment(properties, None)

    def values(self, storage: Any, head: int = _HEAD) -> dict[tuple[int, int], Callable[[], bytes]]:
        """Return functions that read a storage's properties, by identifier and type.

        Fixed-width properties are in a table.
        """
        found: dict[tuple[int, int], Callable[[], bytes]] = {}
        for entry in storage.kids:
            if entry.name == _TABLE:
                table = self._read(entry)
                for at in range(head, len(table) - _ENTRY + 1, _ENTRY):
                    kind, ident = (int.from_bytes(table[at + i : at + i + 2], "little") for i in (0, 2))
                    found.setdefault((ident, kind), partial(bytes, table[at + 8 : at + _ENTRY]))
        for entry in storage.kids:
            if (ident_and_kind := _ident(entry.name)) is not None:
                found[ident_and_kind] = partial(self._read, entry)
        return found

    def _read(self, entry: Any) -> bytes:
        try:
            # `openstream` would search the whole folder by name, for each of thousands of recipients.
            data: bytes = self._ole._open(entry.isectStart, entry.size).read()
        except Exception as error:
            raise _damaged() from error
        return data


def _damaged() -> ExtractionError:
    # olefile raises a dozen different types on damage.
    return unreadable("It is damaged or is not an Outlook message; export it again, or exclude it.")


def _ident(name: str) -> tuple[int, int] | None:
    found = _VALUE.fullmatch(name)
    return (int(found[1], 16), int(found[2], 16)) if found else None
