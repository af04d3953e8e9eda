"""Raised and lowered digits in binary workbooks (.xls, .xlsb). The reading library drops formats of parts of a text.

Sources: [MS-XLS] 2.4.122, 2.4.265, 2.5.293, and [MS-XLSB] 2.4.149, 2.5.121.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from orchestrator.documents.superscripts import lowered, raised

Fonts = Mapping[int, Callable[[str], str]]
"""Functions that mark text as raised or lowered, by font number. All other fonts are left out."""
_SCRIPTS = {1: raised, 2: lowered}
_FONT, _TEXTS, _CONTINUE, _NOTHING = 0x0031, 0x00FC, 0x003C, 0x089C
_MOST_SIZE = 8224
_WIDE, _HAS_MORE, _HAS_RUNS = 1, 4, 8
_HEAD, _RUN = struct.Struct("<HH"), struct.Struct("<HH")
_BINARY_FONT, _END_OF_FONTS, _BINARY_TEXT, _CELL_TEXT = 43, 612, 19, 6
INLINE_TEXT = 62
"""An .xlsb cell with its own formatted text, which the library drops ([MS-XLSB] 2.4.323)."""

Record = tuple[int, int, int]
"""Kind, offset of the data, and size in bytes."""


def binary_fonts(records: Iterable[tuple[int, bytes, bytes]]) -> Fonts:
    """Return the fonts of an .xlsb that raise or lower text, from its style records."""
    found: list[int] = []
    for kind, record, _ in records:
        if kind == _END_OF_FONTS:
            break
        if kind == _BINARY_FONT:
            found.append(int.from_bytes(record[6:8], "little"))
    return {number: _SCRIPTS[script] for number, script in enumerate(found) if script in _SCRIPTS}


def binary_texts(texts: bytes, records: Iterable[tuple[int, bytes, bytes]], fonts: Fonts) -> bytes:
    """Return an .xlsb's shared texts with scripts marked; unchanged if no text has raised or lowered digits."""
    out, is_changed = bytearray(), False
    for kind, record, whole in records:
        better = _plain_text(record, fonts) if kind == _BINARY_TEXT and record[0] & 1 else None
        is_changed |= better is not None
        out += whole if better is None else better
    return bytes(out) if is_changed else texts


def inline_texts(records: Iterable[tuple[int, bytes, bytes]], fonts: Fonts) -> bytes:
    """Return an .xlsb sheet in which cells with their own formatted text contain plain text.

    Raises IndexError and struct.error.
    """
    out = bytearray()
    for kind, record, whole in records:
        if kind == INLINE_TEXT:
            _, written = _rich_text(record[8:], fonts)
            data = record[:8] + struct.pack("<I", len(written)) + written.encode("utf-16-le", "surrogatepass")
            out += bytes((_CELL_TEXT,)) + _size_of(data) + data
        else:
            out += whole
    return bytes(out)


def _plain_text(record: bytes, fonts: Fonts) -> bytes | None:
    """Return a text record with scripts marked in its characters; None if it has no scripts."""
    text, written = _rich_text(record, fonts)
    if written == text:
        return None
    data = b"\0" + struct.pack("<I", len(written)) + written.encode("utf-16-le", "surrogatepass")
    return bytes((_BINARY_TEXT,)) + _size_of(data) + data


def _rich_text(record: bytes, fonts: Fonts) -> tuple[str, str]:
    """Return a formatted text twice: as it is, and with its scripts marked."""
    (size,) = struct.unpack_from("<I", record, 1)
    end = 5 + 2 * size
    text = record[5:end].decode("utf-16-le", "surrogatepass")
    (runs,) = struct.unpack_from("<I", record, end) if record[0] & 1 else (0,)
    return text, _written(text, list(_RUN.iter_unpack(record[end + 4 : end + 4 + 4 * runs])), fonts)


def _size_of(data: bytes) -> bytes:
    """Return the size of a record's data as four 7-bit bytes."""
    return bytes((len(data) >> 7 * shift) & 0x7F | 0x80 * (shift < 3) for shift in range(4))


def _written(text: str, runs: Sequence[tuple[int, ...]], fonts: Fonts, *, is_narrow: bool = False) -> str:
    """Return the text with its scripts marked.

    With `is_narrow`, scripts whose characters are beyond ISO 8859-1 get `^` or `_` instead.
    """
    if not text.isascii() and max(text) > "\uffff":  # run offsets count UTF-16 units, not these characters
        return text
    for (start, font), (end, _) in reversed([*pairwise([*runs, (len(text), 0)])]):
        if (change := fonts.get(font)) is not None:
            script = change(text[start:end])
            if is_narrow and script != text[start:end] and not _is_narrow(script):
                script = ("^" if change is raised else "_") + text[start:end]
            text = text[:start] + script + text[max(start, end) :]
    return text


def _is_narrow(text: str) -> bool:
    return not text or max(text) <= "\xff"


def write_scripts(stream: bytearray, records: Sequence[Record]) -> bool:
    """Mark the scripts in an .xls's texts. Return True if a script was marked.

    `records` are the workbook's records. Each text loses its formats, which makes room for the marks. All other
    records keep their offsets.
    """
    scripts = [stream[at + 8] for kind, at, size in records if kind == _FONT and size > 9]
    fonts = {
        number + (number > 3): _SCRIPTS[script] for number, script in enumerate(scripts) if script in _SCRIPTS
    }  # font number 4 does not exist
    first = next((number for number, (kind, _, _) in enumerate(records) if kind == _TEXTS), None)
    if not fonts or first is None:
        return False
    pieces = [records[first]]
    for record in records[first + 1 :]:
        if record[0] != _CONTINUE:
            break
        pieces.append(record)
    with suppress(struct.error, IndexError):  # the library may read damaged texts anyway
        texts = _Texts([bytes(stream[at : at + size]) for _, at, size in pieces])
        found = list(texts.read(fonts))
        if any(text.is_changed for text in found):
            begin, end = pieces[0][1] - _HEAD.size, pieces[-1][1] + pieces[-1][2]
            written = _packed(texts.head, found, end - begin)
            if written is not None:
                stream[begin:end] = written
                return True
    return False


class _Text(NamedTuple):
    text: str
    is_wide: bool
    is_changed: bool


class _Texts:
    """Texts of a workbook, split over a record and its continuations. Raises struct.error and IndexError."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._piece, self._at = 0, 8
        self.head = pieces[0][:8]

    def read(self, fonts: Fonts) -> Iterator[_Text]:
        for _ in range(struct.unpack_from("<I", self.head, 4)[0]):
            size, flags = struct.unpack("<HB", self._bytes(3))
            (runs,) = struct.unpack("<H", self._bytes(2)) if flags & _HAS_RUNS else (0,)
            (more,) = struct.unpack("<I", self._bytes(4)) if flags & _HAS_MORE else (0,)
            text, is_wide = self._characters(size, flags & _WIDE)
            formats = list(_RUN.iter_unpack(self._bytes(4 * runs)))
            self._bytes(more)
            written = _written(text, formats, fonts, is_narrow=not is_wide) if formats else text
            yield _Text(written, is_wide, written != text)

    def _bytes(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            if self._at >= len(self._pieces[self._piece]):
                self._piece, self._at = self._piece + 1, 0
            taken = self._pieces[self._piece][self._at : self._at + size - len(found)]
            self._at += len(taken)
            found += taken
        return found

    def _characters(self, size: int, wide: int) -> tuple[str, bool]:
        """Return the characters, and True if any piece is wide. Each continuation states its own width."""
        text, any_wide = "", bool(wide)
        while size:
            if self._at >= len(self._pieces[self._piece]):
                self._piece, self._at = self._piece + 1, 1
                wide = self._pieces[self._piece][0] & _WIDE
                any_wide |= bool(wide)
            data = self._pieces[self._piece][self._at : self._at + (size << wide)]
            data = data[: len(data) >> wide << wide]
            if not data:
                raise IndexError
            self._at += len(data)
            text += data.decode("utf-16-le" if wide else "latin-1", "surrogatepass")
            size -= len(data) >> wide
        return text, any_wide


def _packed(head: bytes, texts: list[_Text], size: int) -> bytes | None:
    """Return the texts as records of exactly `size` bytes in total; None if they do not fit."""
    pieces = [bytearray(head)]
    for text, was_wide, _ in texts:
        is_wide = was_wide and not _is_narrow(text)
        data = text.encode("utf-16-le" if is_wide else "latin-1", "surrogatepass")
        if len(pieces[-1]) + 3 + (1 << is_wide) > _MOST_SIZE:
            pieces.append(bytearray())
        pieces[-1] += struct.pack("<HB", len(data) >> is_wide, is_wide)
        while data:
            room = (_MOST_SIZE - len(pieces[-1])) >> is_wide << is_wide
            if room <= 0:
                pieces.append(bytearray((is_wide,)))
                continue
            pieces[-1] += data[:room]
            data = data[room:]
    rest = size - sum(_HEAD.size + len(piece) for piece in pieces)
    if rest < 0:
        return None
    if rest < _HEAD.size:
        pieces[-1] += bytes(rest)
        rest = 0
    kinds = [_TEXTS, *[_CONTINUE] * (len(pieces) - 1)]
    out = b"".join(_HEAD.pack(kind, len(piece)) + piece for kind, piece in zip(kinds, pieces, strict=True))
    while rest:
        filled = min(rest - _HEAD.size, 0xFFFF) if rest <= 0xFFFF else 0x8000
        out += _HEAD.pack(_NOTHING, filled) + bytes(filled)
        rest -= _HEAD.size + filled
    return out
