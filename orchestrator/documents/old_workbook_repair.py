"""Rewrites Excel 97-2003 workbooks (.xls) as `workbook_repair` rewrites newer ones: empty areas, errors, long texts.

A cell's record starts with its row number, so moving a cell changes only this number. Source: [MS-XLS], 2.1.7.20.6.
"""

from __future__ import annotations

import io
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import groupby

from orchestrator.documents import compound
from orchestrator.documents.code_pages import CHARSETS, byte_page
from orchestrator.documents.office import OLE
from orchestrator.documents.workbook_repair import ERRORS, MOST_CELLS
from orchestrator.documents.workbook_superscripts import write_scripts

_STREAMS, _OTHER = ("Workbook", "Book"), "Other"
_HEAD = struct.Struct("<HH")
_BOUNDARIES = (0x0009, 0x0209, 0x0409, 0x0809)  # records that start a sheet
_END, _SHEET, _DIMENSIONS, _LOCK = 0x000A, 0x0085, 0x0200, 0x002F
_CONTINUE, _NOTHING, _MOST_SIZE = 0x003C, 0x089C, 0xFFFF
_LONG_TEXT = re.compile(rb"\x07\x02[\x18-\x20]\x20..[\x00\x01]", re.DOTALL)
"""Matches the record of a formula's text that has the maximum length of a record."""
_ERROR = re.compile(
    rb"\x06[\0\2\4]..(.{6})\x02.([%s]).{3}\xff\xff" % b"".join(map(re.escape, map(bytes, zip(ERRORS)))), re.DOTALL
)
"""Matches a formula whose result is an error. Its groups are the cell's position and format, and the error."""
_LABEL = 0x0204
_FORMAT = 0x041E
_EXCEL_5 = b"\0\5"
_CODE_PAGE, _WIDE, _WESTERN = 0x0042, 1200, 1252
_FONT, _CHARSET, _WESTERN_CHARSETS = 0x0031, 12, frozenset((0, 1, 2))
"""A font's record, the offset of its character set, and the character sets of Western, unknown and symbol fonts."""
_AS_BYTES = {
    ord(bytes((one,)).decode("cp1252")): one for one in range(0x80, 0xA0) if one not in b"\x81\x8d\x8f\x90\x9d"
}
"""Characters of windows-1252 that differ from Latin-1, with their bytes."""
_LOOK = 500
"""Number of a sheet's leading records to search for its size."""
_CELLS = frozenset((0x0006, 0x00BD, 0x00BE, 0x00D6, 0x00FD, 0x0201, 0x0203, 0x0204, 0x0205, 0x0208, 0x027E, 0x0406))
_BLANK = frozenset((0x00BE, 0x0201, 0x0208))
"""Records of rows and cells that have formats but no content."""


def repaired(data: bytes) -> tuple[bytes, str | None]:
    """Return the workbook in a form that the library can read, and the encoding of its texts, or None.

    If there is an encoding, pass each text from the library through `in_encoding`: the library knows few code pages,
    and none with two bytes per character. Empty rows of sparse sheets are removed. Long texts of formulas become one
    record each, errors become texts, and raised and lowered digits stay distinct. Typed-in errors are lost, because
    their records have no room for a text. Embedded workbooks are renamed, because the library would read the first
    that it finds. Raises the errors of `olefile` and `struct` for damage.
    """
    name, stream = _workbook_stream(data)
    if not name:
        return data, None
    data = _without_others(data, name)
    has_empty = _move_empty(stream)
    sparse = [at for at in _sheet_offsets(stream) if _is_sparse(stream, at)]
    is_wide = stream[4:6] != _EXCEL_5
    has_formats = not is_wide and _write_formats(stream)
    has_scripts = is_wide and write_scripts(stream, list(_records(stream, 0)))
    usual = _WIDE if is_wide else _WESTERN
    page = _write_code_page(stream, usual)
    encoding = None if is_wide or page == usual else _encoding_of_fonts(stream) if page is None else byte_page(page)
    has_texts = _join_texts(stream), _write_errors(stream, is_wide=is_wide)
    changes = (*has_texts, has_empty, has_formats, has_scripts, sparse)
    if page in (None, usual) and not any(changes):
        return data, encoding
    for at in sparse:
        _move_together(stream, at)
    out = io.BytesIO(data)
    with compound.opened(out, "spreadsheets", write_mode=True) as file:
        file.write_stream(name, bytes(stream))
        return out.getvalue(), encoding


def in_encoding(text: str, encoding: str) -> str:
    """Decode a text by its true encoding. The library decoded its bytes as windows-1252."""
    return text.translate(_AS_BYTES).encode("latin-1", "replace").decode(encoding, "replace")


def needs_password(data: bytes) -> bool:
    """Return True if the cells are encrypted, by any of the old methods."""
    name, stream = _workbook_stream(data)
    return bool(name) and any(kind == _LOCK for kind, _, _ in _records(stream, 0))


def _workbook_stream(data: bytes) -> tuple[str, bytearray]:
    if data.startswith(OLE):
        with compound.opened(io.BytesIO(data), "spreadsheets") as file:
            for name in _STREAMS:
                if file.exists(name):
                    return name, bytearray(file.openstream(name).read())
    return "", bytearray()


def _without_others(data: bytes, name: str) -> bytes:
    """Rename all other workbooks in the file, so that the library finds only the one called `name`."""
    renamed = bytearray(data)
    with compound.opened(io.BytesIO(data), "spreadsheets") as file:
        own = next(entry for entry in file.root.kids if entry.name.lower() == name.lower())
        for entry in filter(None, file.direntries):
            if entry.name in _STREAMS or entry is own:
                compound.rename(renamed, file, entry, name if entry is own else _OTHER)
    return bytes(renamed)


def _move_empty(stream: bytearray) -> bool:
    """Remove empty continuation records, at which the library fails. Return True if any was removed.

    A meaningless record after the other continuations fills the freed space.
    """
    found = False
    for is_more, group in groupby(_records(stream[:], 0), lambda record: record[0] == _CONTINUE):
        run = list(group) if is_more else []
        if not all(size for *_, size in run):
            start, end = run[0][1] - _HEAD.size, min(run[-1][1] + run[-1][2], len(stream))
            full = b"".join(stream[at - _HEAD.size : at + size] for _, at, size in run if size)
            rest = end - start - len(full) - _HEAD.size
            stream[start:end] = full + _HEAD.pack(_NOTHING, rest) + bytes(rest)
            found = True
    return found


def _join_texts(stream: bytearray) -> bool:
    """Join each text that continues in further records. Return True if any was joined.

    The library reads only a text's first record. A meaningless record fills the freed space, so that all other
    records keep their offsets.
    """
    found = False
    for start in [match.start() for match in _LONG_TEXT.finditer(stream)]:
        kind, size = _HEAD.unpack_from(stream, start)
        at, is_wide = start + _HEAD.size, stream[start + _HEAD.size + 2] & 1
        text, end = stream[at : at + size], at + size
        while end + _HEAD.size < len(stream) and _HEAD.unpack_from(stream, end)[0] == _CONTINUE:
            more = _HEAD.unpack_from(stream, end)[1]
            if stream[end + _HEAD.size] & 1 != is_wide:  # rare: the joined text would need more room
                break
            text += stream[end + _HEAD.size + 1 : end + _HEAD.size + more]
            end += _HEAD.size + more
        if size < len(text) <= _MOST_SIZE:
            rest = end - at - len(text) - _HEAD.size
            stream[start:end] = _HEAD.pack(kind, len(text)) + text + _HEAD.pack(_NOTHING, rest) + bytes(rest)
            found = True
    return found


def _write_errors(stream: bytearray, *, is_wide: bool) -> bool:
    """Replace formulas whose result is an error by texts, which are never longer. Return True if any was replaced.

    With `is_wide`, texts state the width of their characters, as in Excel 97 and later.
    """
    found = list(_ERROR.finditer(bytes(stream)))
    for one in found:
        text = ERRORS[one[2][0]].encode()
        label = one[1] + struct.pack("<H", len(text)) + b"\0" * is_wide + text
        start = one.start()
        struct.pack_into("<H", stream, start, _LABEL)
        stream[start + _HEAD.size : start + _HEAD.size + len(label)] = label
    return bool(found)


def _write_formats(stream: bytearray) -> bool:
    """Write number formats as in Excel 97 and later. Return True if any was changed.

    The library reads all formats in this form. The longer length field replaces a format's last character. The
    characters before the last reveal date formats, unless the format has only one.
    """
    found = [at for kind, at, size in _records(stream, 0) if kind == _FORMAT and size == stream[at + 2] + 3 > 4]
    for at in found:
        size = stream[at + 2]
        stream[at + 2 : at + 3 + size] = struct.pack("<H", size - 1) + stream[at + 3 : at + 2 + size]
    return bool(found)


def _write_code_page(stream: bytearray, usual: int) -> int | None:
    for kind, at, size in _records(stream, 0):
        if kind == _CODE_PAGE and size == 2:
            (page,) = struct.unpack_from("<H", stream, at)
            struct.pack_into("<H", stream, at, usual)
            return int(page)
    return None


def _encoding_of_fonts(stream: bytearray) -> str | None:
    found = {stream[at + _CHARSET] for kind, at, size in _records(stream, 0) if kind == _FONT and size > _CHARSET}
    named = {CHARSETS[charset] for charset in found - _WESTERN_CHARSETS if charset in CHARSETS}
    return named.pop() if len(named) == 1 else None


def _records(stream: bytearray, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, offset and size of the records from offset `at` to the end of their substream."""
    depth = 0
    while at + _HEAD.size <= len(stream):
        kind, size = _HEAD.unpack_from(stream, at)
        depth += (kind in _BOUNDARIES) - (kind == _END)
        yield kind, at + _HEAD.size, size
        at += _HEAD.size + size
        if depth <= 0:
            return


def _sheet_offsets(stream: bytearray) -> list[int]:
    return [struct.unpack_from("<I", stream, at)[0] for kind, at, _ in _records(stream, 0) if kind == _SHEET]


def _is_sparse(stream: bytearray, sheet: int) -> bool:
    for number, (kind, at, size) in enumerate(_records(stream, sheet)):
        if kind == _DIMENSIONS and size >= 12:
            first, last, left, right = struct.unpack_from("<IIHH", stream, at)
            return bool((last - first) * (right - left) > MOST_CELLS)
        if number > _LOOK:
            break
    return False


def _move_together(stream: bytearray, sheet: int) -> None:
    places = [(kind, at) for kind, at, size in _records(stream, sheet) if kind in _CELLS and size >= 4]
    rows = sorted({struct.unpack_from("<H", stream, at)[0] for kind, at in places if kind not in _BLANK})
    for _, at in places:
        (row,) = struct.unpack_from("<H", stream, at)
        struct.pack_into("<H", stream, at, bisect_left(rows, row))
