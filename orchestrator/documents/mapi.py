"""Mails in Outlook's form: numbered properties (MAPI), in an .msg file or a winmail.dat.

Identifiers and their meanings are from [MS-OXPROPS], code pages from [MS-OXCMSG] 2.1.1.1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from orchestrator.documents.code_pages import code_page
from orchestrator.documents.encoding import clean, decode, decode_declared
from orchestrator.documents.types import ExtractionError

STRING, STRING8, BINARY, INTEGER, TIME, OBJECT = 0x1F, 0x1E, 0x102, 3, 0x40, 0x0D
_BODY, _REPORT, _RTF, _HTML = 0x1000, 0x1001, 0x1009, 0x1013
_MESSAGE_CODE_PAGE, _BODY_CODE_PAGE, _LOCALE = 0x3FFD, 0x3FDE, 0x3FF1
ATTACHED_NAMES, ATTACHED_TYPE, ATTACHED_DATA = (0x3707, 0x3704, 0x3001), 0x370E, 0x3701
_YEARS = range(1970, 4500)
"""Years of valid times. Outlook writes 1601 or 4501 for a missing time."""

_OF_LANGUAGES = {
    "cp1250": (0x05, 0x0E, 0x15, 0x18, 0x1A, 0x1B, 0x1C, 0x24), "cp1251": (0x02, 0x19, 0x22, 0x23, 0x2F),
    "cp1253": (0x08,), "cp1254": (0x1F, 0x2C), "cp1255": (0x0D,), "cp1256": (0x01, 0x20, 0x29),
    "cp1257": (0x25, 0x26, 0x27), "cp1258": (0x2A,), "cp874": (0x1E,), "cp932": (0x11,), "cp949": (0x12,),
    "gb18030": (0x04,),
}  # fmt: skip
_BY_LANGUAGE = {language: name for name, languages in _OF_LANGUAGES.items() for language in languages}
_BIG5_LOCALES = (0x0404, 0x0C04, 0x1404)


class MapiProperties:
    """Properties of a mail, recipient or attachment. Without a code page of their own, the code page of `mail`
    applies.
    """

    def __init__(
        self, values: Mapping[tuple[int, int], Callable[[], bytes]], mail: MapiProperties | None = None
    ) -> None:
        """`values` maps identifier and type to a function that reads the value."""
        self._values = values
        self._mail = mail

    def raw(self, ident: int, kind: int) -> bytes:
        """Return the bytes of a value; empty if missing."""
        read = self._values.get((ident, kind))
        return b"" if read is None else read()

    def number(self, ident: int) -> int:
        """Return an integer; 0 if missing."""
        return int.from_bytes(self.raw(ident, INTEGER)[:4], "little")

    def time(self, ident: int) -> str:
        """Return a time in ISO 8601; empty if missing."""
        with suppress(struct.error, OverflowError):
            [ticks] = struct.unpack("<Q", self.raw(ident, TIME)[:8])
            found = datetime(1601, 1, 1, tzinfo=UTC) + timedelta(seconds=ticks // 10_000_000)
            return found.isoformat() if found.year in _YEARS else ""
        return ""

    def text(self, *idents: int) -> str:
        """Return the first non-blank string of `idents`, with `\\n` line ends."""
        return clean(self.as_sent(*idents))

    def as_sent(self, *idents: int) -> str:
        """Return the first non-blank string of `idents`, with its own line ends."""
        for ident in idents:
            if data := self.raw(ident, STRING):
                found = data.decode("utf-16-le", "replace")
            else:
                found = self._narrow(self.raw(ident, STRING8))
            found = found.strip("\0")
            if found.strip():
                return found
        return ""

    def _narrow(self, data: bytes) -> str:
        if data.isascii() and b"\x1b" not in data:
            return data.decode()
        for name in self.code_pages():
            with suppress(ValueError):
                return data.decode(name)
        try:
            return decode(data)
        except ExtractionError:
            return data.decode("cp1252", "replace")

    def code_pages(self) -> Iterator[str]:
        """Yield the possible encodings of strings, the most likely first."""
        for ident in (_MESSAGE_CODE_PAGE, _BODY_CODE_PAGE):
            if name := code_page(self.number(ident)):
                yield name
        if locale := self.number(_LOCALE):
            yield "cp950" if locale in _BIG5_LOCALES else _BY_LANGUAGE.get(locale & 0x3FF, "cp1252")
        if self._mail is not None:
            yield from self._mail.code_pages()

    @property
    def body_encoding(self) -> str | None:
        """Encoding of the HTML body, or None."""
        return code_page(self.number(_BODY_CODE_PAGE))


class Attachment(Struct, frozen=True):
    """An attachment. `read` returns its bytes; `mail` returns an attached mail. Both are None for other objects."""

    properties: MapiProperties
    read: Callable[[], bytes] | None
    mail: Callable[[], MapiMail] | None = None


class MapiMail(Struct, frozen=True):
    properties: MapiProperties
    recipients: Sequence[MapiProperties]
    attachments: Sequence[Attachment]


def body(properties: MapiProperties, limit: int) -> str:
    """Return the plain text, or else the text of HTML, RTF or a delivery report. Raises ExtractionError."""
    if text := properties.as_sent(_BODY):  # unchanged, because the document's digest covers these bytes
        return text
    html = properties.raw(_HTML, BINARY)
    if html.strip(b"\0\r\n \t"):
        from orchestrator.documents.html_text import declared_encoding, extract

        declared = properties.body_encoding or declared_encoding(html)
        return extract(decode_declared(html, declared).encode(), "utf-8")[0]
    if wide := properties.text(_HTML):
        from orchestrator.documents.html_text import extract

        return extract(wide.encode("utf-8", "replace"), "utf-8")[0]
    if packed := properties.raw(_RTF, BINARY):
        from orchestrator.documents import rtf_text
        from orchestrator.documents.packed_rtf import unpacked

        return rtf_text.extract(unpacked(packed, limit), next(properties.code_pages(), None))[0]
    return properties.text(_REPORT)
