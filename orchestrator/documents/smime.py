"""The signed content of S/MIME and other CMS files (RFC 5652).

Signatures are not checked: a document is read whoever signed it.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.documents.types import DocumentProblem, ExtractionError, unreadable

_PKCS7 = bytes.fromhex("2a864886f70d0107")
_SMIME = bytes.fromhex("2a864886f70d01091001")
_SIGNED = _PKCS7 + b"\x02"
_ENCRYPTED = (_PKCS7 + b"\x03", _PKCS7 + b"\x06", _SMIME + b"\x17")
_COMPRESSED = _SMIME + b"\x09"
_MAX_INFLATED = 100_000_000
_MAX_DEPTH = 12
_SEQUENCE, _OCTETS, _CHUNKED = 0x30, 0x04, 0x24
_LINES = re.compile(rb"-----[A-Z0-9 ]+-----|\s+")


class _Element(NamedTuple):
    """A BER value: its tag, and where its content begins and ends. `after` is the start of the next value."""

    tag: int
    begin: int
    end: int
    after: int


def content(data: bytes) -> bytes:
    """Return the signed or compressed bytes. Raises ExtractionError: encrypted, or unreadable (also for a detached
    signature).
    """
    if data[:1] != bytes([_SEQUENCE]):
        try:
            data = base64.b64decode(_LINES.sub(b"", data), validate=True)
        except binascii.Error as error:
            raise _damaged() from error
    try:
        return _content(data)
    except (IndexError, ValueError, zlib.error) as error:
        raise _damaged() from error


def _content(data: bytes) -> bytes:
    kind, inner = _pair(data, _element(data, 0))
    if kind in _ENCRYPTED:
        raise encrypted()
    fields = list(_children(data, _element(data, inner.begin)))
    place = {_SIGNED: 2, _COMPRESSED: 2}.get(kind)
    if place is None:
        raise _damaged()
    _, wrapped = _pair(data, fields[place])
    found = b"".join(_octets(data, _element(data, wrapped.begin), 0))
    if kind == _COMPRESSED:
        found = zlib.decompressobj().decompress(found, _MAX_INFLATED)
    return found


def _pair(data: bytes, sequence: _Element) -> tuple[bytes, _Element]:
    """Return a sequence's object identifier and the explicitly tagged content after it."""
    first, second = list(_children(data, sequence))[:2]
    return data[first.begin : first.end], second


def _octets(data: bytes, element: _Element, depth: int) -> Iterator[bytes]:
    if element.tag == _OCTETS:
        yield data[element.begin : element.end]
    elif element.tag == _CHUNKED and depth < _MAX_DEPTH:
        for inner in _children(data, element):
            yield from _octets(data, inner, depth + 1)
    else:
        raise _damaged()


def _children(data: bytes, element: _Element) -> Iterator[_Element]:
    at = element.begin
    while at < element.end:
        inner = _element(data, at)
        yield inner
        at = inner.after


def _element(data: bytes, at: int, depth: int = 0) -> _Element:
    """Parse an element. Raises IndexError if the data is truncated."""
    tag, size, begin = data[at], data[at + 1], at + 2
    if size == 0x80:
        return _open_element(data, tag, begin, depth)
    if size > 0x80:
        width = size & 0x7F
        size = int.from_bytes(data[begin : begin + width], "big")
        begin += width
    if begin + size > len(data):
        raise IndexError
    return _Element(tag, begin, begin + size, begin + size)


def _open_element(data: bytes, tag: int, begin: int, depth: int) -> _Element:
    """Parse an element of indefinite length, which ends with two zero bytes after its last child."""
    if depth > _MAX_DEPTH:
        raise _damaged()
    at = begin
    while data[at] or data[at + 1]:
        at = _element(data, at, depth + 1).after
    return _Element(tag, begin, at, at + 2)


def encrypted() -> ExtractionError:
    """Return the error for a mail that only its recipient can decrypt."""
    return ExtractionError(
        DocumentProblem.ENCRYPTED, "The mail is encrypted; save an unencrypted copy, or exclude the file."
    )


def _damaged() -> ExtractionError:
    return unreadable("The signed text is damaged, or there is only a signature; save the mail again, or exclude it.")
