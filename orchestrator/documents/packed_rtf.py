"""Outlook's compressed RTF ([MS-OXRTFCP]), which refers to the last 4,096 bytes and a dictionary."""

from __future__ import annotations

import struct

from orchestrator.documents.content import too_large_inside
from orchestrator.documents.types import unreadable

_DICTIONARY = (
    b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript "
    b"\\fdecor MS Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n"
    b"\\par \\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx"
)
_WINDOW = 4096
_HEAD = struct.Struct("<II4sI")


def unpacked(data: bytes, limit: int) -> bytes:
    """Return the unpacked RTF, which is incomplete if `data` is truncated. Raises ExtractionError (too_large,
    unreadable).
    """
    if len(data) < _HEAD.size:
        raise unreadable("The text of the mail is damaged; save it again.")
    _, size, mark, _ = _HEAD.unpack_from(data)
    if size > limit:
        raise too_large_inside(limit, size)
    if mark == b"MELA":
        return data[_HEAD.size : _HEAD.size + size]
    if mark != b"LZFu":
        raise unreadable("The text of the mail is damaged; save it again.")
    return _expanded(data, size)


def _expanded(data: bytes, size: int) -> bytes:
    # The ring buffer holds the dictionary, then the text. A position in it is thus a distance from the text's end.
    text = bytearray(_DICTIONARY)
    at, end, whole = _HEAD.size, len(data), len(_DICTIONARY) + size
    while at < end and len(text) < whole:
        flags, at = data[at], at + 1
        for bit in range(8):
            if at >= end or len(text) >= whole:
                break
            if not flags >> bit & 1:
                text.append(data[at])
                at += 1
                continue
            reference = int.from_bytes(data[at : at + 2], "big")
            at += 2
            back = (len(text) - (reference >> 4)) % _WINDOW
            if back == 0 or back > len(text):  # the end mark, or a position that was never written
                return bytes(text[len(_DICTIONARY) :])
            for _ in range((reference & 15) + 2):
                text.append(text[-back])
    return bytes(text[len(_DICTIONARY) : whole])
