"""winmail.dat (TNEF, [MS-OXTNEF]): a mail in the form that Outlook sends to other Outlooks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial

from orchestrator.documents.mapi import (
    ATTACHED_DATA,
    BINARY,
    INTEGER,
    OBJECT,
    STRING,
    STRING8,
    Attachment,
    MapiMail,
    MapiProperties,
    body,
)
from orchestrator.documents.types import unreadable

_SIGNATURE = 0x223E9F78
_HEAD = 6
_SUBJECT, _BODY, _CODE_PAGE, _PROPERTIES = 0x8004, 0x800C, 0x9007, 0x9003
_BEGIN, _TITLE, _DATA, _ATTACHED_PROPERTIES = 0x9002, 0x8010, 0x800F, 0x9005
_WIDTHS = {2: 4, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 0x0A: 4, 0x0B: 4, 0x14: 8, 0x40: 8, 0x48: 16}
_SIZED = frozenset((STRING8, STRING, OBJECT, BINARY))
_SEVERAL = 0x1000
_NAMED = 0x8000
_MESSAGE_OBJECT = bytes.fromhex("0703020000000000c000000000000046")
MAX_TEXT = 100_000_000
_OLD_NAMES = {_SUBJECT: 0x37, _BODY: 0x1000, _TITLE: 0x3704}
"""Attributes that predate properties, and their equivalent properties."""
Values = dict[tuple[int, int], Callable[[], bytes]]


def outlook_text(data: bytes) -> str:
    """Return the mail's text. Raises ExtractionError."""
    return body(outlook_mail(data).properties, MAX_TEXT)


def outlook_mail(data: bytes) -> MapiMail:
    """Return the mail in a winmail.dat. Raises ExtractionError."""
    try:
        return _read(data)
    except (struct.error, IndexError, KeyError) as error:
        raise unreadable("winmail.dat is damaged; ask for the mail without it, or exclude it.") from error


def _read(data: bytes) -> MapiMail:
    if len(data) <= _HEAD or struct.unpack_from("<I", data)[0] != _SIGNATURE:
        raise IndexError
    values: Values = {}
    attached: list[Values] = []
    for ident, value in _attributes(data):
        target = attached[-1] if attached else values
        if ident == _BEGIN:
            attached.append({})
        elif ident in (_PROPERTIES, _ATTACHED_PROPERTIES):
            target.update(_properties(value))
        elif ident == _DATA:
            target[ATTACHED_DATA, BINARY] = partial(bytes, value)
        elif ident == _CODE_PAGE:
            target[0x3FFD, INTEGER] = partial(bytes, value[:4])
        elif ident in _OLD_NAMES:
            target.setdefault((_OLD_NAMES[ident], STRING8), partial(bytes, value))
    properties = MapiProperties(values)
    return MapiMail(properties, [], [_attachment(MapiProperties(one, properties), one) for one in attached])


def _attachment(properties: MapiProperties, values: Values) -> Attachment:
    inner = properties.raw(ATTACHED_DATA, OBJECT)
    if inner.startswith(_MESSAGE_OBJECT):
        return Attachment(properties, None, partial(outlook_mail, inner[16:]))
    if (ATTACHED_DATA, BINARY) in values:
        return Attachment(properties, values[ATTACHED_DATA, BINARY])
    return Attachment(properties, None)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield attributes by number. A trailing line end is ignored. Raises IndexError for truncated data."""
    at = _HEAD
    while at + 9 <= len(data):
        _, ident, _, size = struct.unpack_from("<BHHI", data, at)
        at += 9
        if at + size > len(data):
            raise IndexError
        yield ident, data[at : at + size]
        at += size + 2


def _properties(data: bytes) -> Iterator[tuple[tuple[int, int], Callable[[], bytes]]]:
    [count], at = struct.unpack_from("<I", data), 4
    for _ in range(count):
        kind, ident = struct.unpack_from("<HH", data, at)
        at += 4
        if ident >= _NAMED:
            at = _after_name(data, at)
        base, number = kind & ~_SEVERAL, 1
        if kind & _SEVERAL or base in _SIZED:
            [number] = struct.unpack_from("<I", data, at)
            at += 4
        for _ in range(number):
            value, at = _value(data, at, base)
            yield (ident, kind), partial(bytes, value)


def _after_name(data: bytes, at: int) -> int:
    kind, size = struct.unpack_from("<II", data, at + 16)
    return at + 24 + (-(-size // 4) * 4 if kind else 0)


def _value(data: bytes, at: int, kind: int) -> tuple[bytes, int]:
    if kind not in _SIZED:
        width = _WIDTHS[kind]
        if at + width > len(data):
            raise IndexError
        return data[at : at + width], at + width
    [size] = struct.unpack_from("<I", data, at)
    at += 4
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + -(-size // 4) * 4
