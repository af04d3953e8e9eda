"""Rewrites workbooks (.xlsx, .xlsm, .xlsb) that the reading library would refuse, lose data from, or expand too far.

The library drops errors (`#N/A`) and does not know macro sheets. It expands every sheet to a full rectangle, so one
stray cell at the far end costs gigabytes. Here errors become texts, macro sheets become worksheets, and nearly empty
sheets lose their empty rows and columns. The library refuses workbooks with UTF-16 parts, with a sheet that has no
part, or in pre-release forms of Excel 2007. These workbooks are rewritten, too.
"""

from __future__ import annotations

import io
import posixpath
import re
import struct
import zipfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from xml.sax.saxutils import quoteattr

from orchestrator.documents.encoding import bom_of, wide_without_bom
from orchestrator.documents.office_package import Package, Relation
from orchestrator.documents.superscripts import lowered, raised
from orchestrator.documents.types import beyond_limit
from orchestrator.documents.workbook_superscripts import binary_fonts, binary_texts, inline_texts

MOST_CELLS = 5_000_000
"""Maximum cells of a sheet's rectangle. The library uses 32 bytes per cell, and the Python object 32 more."""
_BINARY_SHEETS = re.compile(r"xl/(worksheets|macrosheets)/[^/]+\.bin", re.IGNORECASE)
_SHEETS = re.compile(r"xl/(worksheets|macrosheets)/[^/]+\.xml", re.IGNORECASE)
_RELATIONS, _WORKBOOK, _BINARY = "xl/_rels/workbook.xml.rels", "xl/workbook.xml", "xl/workbook.bin"
_BINARY_RELATIONS = "xl/_rels/workbook.bin.rels"
_BINARY_SHARED, _BINARY_STYLES = "xl/sharedstrings.bin", "xl/styles.bin"
_PLACES = {
    "chartsheet": "chartsheets/sheet{}", "dialogsheet": "dialogsheets/sheet{}", "sharedStrings": "sharedStrings",
    "styles": "styles", "worksheet": "worksheets/sheet{}", "xlIntlMacrosheet": "worksheets/sheet{}",
    "xlMacrosheet": "worksheets/sheet{}",
}  # fmt: skip
"""Part names in the folder `xl`, by kind of reference; macro sheets become worksheets."""
_KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
_SHARED = "xl/sharedstrings.xml"
_TEXTS = (_SHARED, "xl/styles.xml", "[content_types].xml", "_rels/.rels")
"""Parts that are rewritten only if their first bytes show the need."""
_HEAD = 1024
_ENCODING = re.compile(r"""\A(<\?xml\b[^>]*?)\s+encoding=(["'])[^"'>]*\2""")
_NO_PART = re.compile(rb"""<(?:\w+:)?sheet\b[^>]*?:id=(["'])\1[^>]*?(?:/>|>\s*</(?:\w+:)?sheet>)""")
_SHEET_STATE = re.compile(rb"""(<(?:\w+:)?sheet\s[^>]*?)\sstate=(["'])(?!(?:visible|hidden|veryHidden)\2)[^"']*\2""")
"""A sheet state that Excel never writes."""
_WHOLE_ROWS = re.compile(rb"""<(?:\w+:)?dimension\s[^>]*?ref=(["'])(?![A-Z]+\d+(?::[A-Z]+\d+)?\1)[^"']*\1[^>]*?/>""")
"""A dimension in whole rows or columns. LibreOffice writes it and the library refuses it."""
_BINARY_ERROR = re.compile(
    rb"(?:\x03\x09|\x0b[\x0d-\x7f]|\x0b[\x80-\xff].).{8}[\0\x07\x0f\x17\x1d\x24\x2a]", re.DOTALL
)
"""Bytes that may be a cell with an error. False matches only cost time."""
_INLINE_TEXT = re.compile(
    rb"\x3e(?:[\x0d-\x7f]|[\x80-\xff][\x01-\x7f]|[\x80-\xff]{2,3}.)..\0\0.{4}[\0-\x03]", re.DOTALL
)
"""Bytes that may be a cell with its own formatted text. False matches only cost time."""
_RUN = re.compile(
    rb"""(<(?:\w{1,20}:)?rPr\b(?:[^<]++|<(?!/?(?:\w{1,20}:)?rPr\b))*+</(?:\w{1,20}:)?rPr>\s*+<(?:\w{1,20}:)?t\b[^>]*+>)"""
    rb"""([^<&]++)"""
)
"""Matches a run of rich text. Its groups are the format and the text."""
_SCRIPT = re.compile(rb"""vertAlign\b[^>]*?\bval=["'](super|sub)script""")
_BEFORE_RELEASE = re.compile(rb"(</?)sstItem\b")
_MACRO_SHEET = b"http://schemas.microsoft.com/office/2006/relationships/xlMacrosheet"
_SHEET = _KINDS.encode() + b"worksheet"
_ROOT = re.compile(rb"(</?)(?:\w+:)?macrosheet\b")
_ERROR = re.compile(rb"""(<(?:\w+:)?c\b[^>]*?\st=)(["'])e\2""")
_DIMENSION = re.compile(rb"""<(?:\w+:)?dimension\s[^>]*?ref=["'](?:[A-Z]+\d+:)?([A-Z]+)(\d+)["']""")
_ROW = re.compile(rb"""(<(?:\w+:)?row\b[^>]*?\sr=["'])(\d+)""")
_CELL = re.compile(rb"""(<(?:\w+:)?c\b[^>]*?\sr=["'])([A-Z]{1,3})(\d{1,7})""")
_WIDE = re.compile(rb"""r=["']([A-Z]{2,3})\d""")
_EMPTY_ROW = re.compile(rb"<(?:\w+:)?row\b[^>]*/>")
_MERGED_WHOLE = re.compile(rb"""<(?:\w+:)?mergeCell\b[^>]*?ref=(["'])(?:[A-Z]+:[A-Z]+|\d+:\d+)\1[^>]*/>""")
"""Merged whole columns or rows, which the library cannot read."""
_BINARY_ROW, _BINARY_BLANK, _BINARY_CELLS, _BINARY_DIMENSIONS = 0, 1, range(2, 12), 148
BUNDLE_SHEET, _CELL_ERROR, _CELL_TEXT, _FORMULA_ERROR = 156, 3, 6, 11
ERRORS = {
    0x00: "#NULL!", 0x07: "#DIV/0!", 0x0F: "#VALUE!", 0x17: "#REF!", 0x1D: "#NAME?", 0x24: "#NUM!", 0x2A: "#N/A",
}  # fmt: skip
"""Errors by their codes in binary workbooks ([MS-XLSB] 2.5.97.2)."""


def repaired(data: bytes, package: Package) -> bytes:
    """Return the workbook in a form that the library can read; unchanged if it already is.

    The library does not limit unpacking. A package that could exceed our limits is therefore unpacked once here.
    Raises ExtractionError, and zipfile's errors for a damaged package.
    """
    if (better := _under_usual_names(package)) is not None:
        data, package = better, Package(better)
    changed: dict[str, bytes] = {}
    for part in package.parts():
        if (repair := _repair_of(part, package)) is not None:
            whole = package.whole(part)
            if (better := repair(whole if part.lower().endswith(".bin") else _as_utf8(whole))) is not whole:
                changed[part] = better
    package.check_unread()
    return _rewritten(data, changed) if changed else data


def _under_usual_names(package: Package) -> bytes | None:
    """Return the workbook with Excel's part names; None if it already has them.

    The library finds some parts by name, ignoring the workbook's references. It refuses a binary workbook with any
    other sheet name.
    """
    try:
        main = package.main_part()
    except KeyError:
        return None
    ending = main.rpartition(".")[2].lower()
    relations = [one for one in package.relations(main) if one.kind in _PLACES and package.holds(one.target)]
    is_usual = main.lower() in (_WORKBOOK, _BINARY) and (ending == "xml" or _are_usual(relations, package))
    if is_usual and not package.has_twins:
        return None
    out, stated = io.BytesIO(), []
    with zipfile.ZipFile(out, "w") as new:
        new.writestr("[Content_Types].xml", "<Types/>")
        new.writestr("_rels/.rels", _relations([("", "officeDocument", f"xl/workbook.{ending}")]))
        new.writestr(f"xl/workbook.{ending}", package.whole(main))
        for number, one in enumerate(relations, 1):
            name = f"{_PLACES[one.kind].format(number)}.{ending}"
            new.writestr(f"xl/{name}", package.whole(one.target))
            stated.append((one.id, "worksheet" if name.startswith("worksheets/") else one.kind, name))
        new.writestr(f"xl/_rels/workbook.{ending}.rels", _relations(stated))
    return out.getvalue()


def _are_usual(relations: list[Relation], package: Package) -> bool:
    places = (posixpath.dirname(f"xl/{_PLACES[one.kind]}") == posixpath.dirname(one.target) for one in relations)
    return all(places) and not (package.holds(_BINARY_RELATIONS) and b'="/' in package.whole(_BINARY_RELATIONS))


def _relations(stated: list[tuple[str, str, str]]) -> str:
    lines = (
        f'<Relationship Id={quoteattr(ident)} Type="{_KINDS}{kind}" Target="{to}"/>' for ident, kind, to in stated
    )
    return f"<Relationships>{''.join(lines)}</Relationships>"


def _repair_of(part: str, package: Package) -> Callable[[bytes], bytes] | None:
    name = part.lower()
    if _SHEETS.fullmatch(name):
        return _repaired_sheet
    if _BINARY_SHEETS.fullmatch(name):
        return lambda sheet: _repaired_binary_sheet(sheet, package)
    if name in _REPAIRS:
        return _REPAIRS[name]
    if name == _SHARED:
        return _repaired_texts
    if name == _BINARY_SHARED and package.holds(_BINARY_STYLES):
        return lambda texts: _with_binary_scripts(texts, package.whole(_BINARY_STYLES))
    if name not in _TEXTS:
        return None
    head = package.head(part, _HEAD)
    return _repaired_texts if not head.startswith(b"<") or _is_wide(head) else None


def _is_wide(head: bytes) -> bool:
    return (bom_of(head) or wide_without_bom(head) or "utf-8") not in ("utf-8", "utf-8-sig")


def _as_utf8(part: bytes) -> bytes:
    if not _is_wide(part[:_HEAD]):
        return part
    text = part.decode(bom_of(part) or wide_without_bom(part) or "utf-8").removeprefix("\ufeff")
    return _ENCODING.sub(r"\1", text).encode()


def _repaired_texts(texts: bytes) -> bytes:
    texts = _BEFORE_RELEASE.sub(rb"\1si", texts) if b"<sstItem" in texts else texts
    return with_scripts(texts)


def with_scripts(texts: bytes) -> bytes:
    """Return the part with its superscripts and subscripts marked, so that they differ from the numbers before
    them.
    """
    return _RUN.sub(_with_script, texts) if b"vertAlign" in texts else texts


def _with_script(run: re.Match[bytes]) -> bytes:
    kind = _SCRIPT.search(run[1])
    if kind is None or not run[2].isascii():
        return run[0]
    change = raised if kind[1] == b"super" else lowered
    return run[1] + change(run[2].decode()).encode("ascii", "xmlcharrefreplace")


def _with_binary_scripts(texts: bytes, styles: bytes) -> bytes:
    with suppress(IndexError, struct.error):  # the library may read a damaged part anyway
        fonts = binary_fonts(binary_records(styles))
        return binary_texts(texts, binary_records(texts), fonts) if fonts else texts
    return texts


def _with_inline_texts(sheet: bytes, package: Package) -> bytes:
    with suppress(IndexError, struct.error):  # the library may read a damaged part anyway
        styles = package.whole(_BINARY_STYLES) if package.holds(_BINARY_STYLES) else b""
        return inline_texts(binary_records(sheet), binary_fonts(binary_records(styles)))
    return sheet


def _repaired_relations(relations: bytes) -> bytes:
    return relations.replace(_MACRO_SHEET, _SHEET) if _MACRO_SHEET in relations else relations


def _repaired_workbook(workbook: bytes) -> bytes:
    if b"state=" in workbook:
        workbook = _SHEET_STATE.sub(rb"\1", workbook)
    return _NO_PART.sub(b"", workbook) if b':id=""' in workbook or b":id=''" in workbook else workbook


def _repaired_binary(workbook: bytes) -> bytes:
    """Drop the four extra bytes that pre-release sheet descriptions (BrtBundleSh) contain."""
    out = bytearray()
    for kind, record, whole in binary_records(workbook):
        if kind == BUNDLE_SHEET and not _holds_two_texts(record, 8) and _holds_two_texts(record, 12):
            size = len(record)
            out += struct.pack("BBBB", 0x9C, 0x01, (size - 4) & 0x7F | 0x80, (size - 4) >> 7)
            out += record[:4] + record[8:]
        else:
            out += whole
    return workbook if out == workbook else bytes(out)


def _repaired_binary_sheet(sheet: bytes, package: Package) -> bytes:
    if _INLINE_TEXT.search(sheet):
        sheet = _with_inline_texts(sheet, package)
    sheet = _without_binary_errors(sheet) if _BINARY_ERROR.search(sheet) else sheet
    return _without_empty_binary(sheet) if _is_sparse_binary(sheet) else sheet


def _without_binary_errors(sheet: bytes) -> bytes:

    out = bytearray()
    for kind, record, whole in binary_records(sheet):
        if kind in (_CELL_ERROR, _FORMULA_ERROR) and (text := ERRORS.get(record[8])) is not None:
            # Cells of errors and of texts share the first 8 bytes: column and format.
            data = record[:8] + struct.pack("<I", len(text)) + text.encode("utf-16-le")
            out += bytes((_CELL_TEXT, len(data))) + data
        else:
            out += whole
    return bytes(out)


def _is_sparse_binary(sheet: bytes) -> bool:
    for kind, record, _ in binary_records(sheet):
        if kind == _BINARY_DIMENSIONS:
            first, last, left, right = struct.unpack_from("<4I", record)
            return bool((last - first + 1) * (right - left + 1) > MOST_CELLS)
        if kind == _BINARY_ROW:
            break
    return False


def _without_empty_binary(sheet: bytes) -> bytes:
    row, used = 0, set[tuple[int, int]]()
    for kind, record, _ in binary_records(sheet):
        if kind == _BINARY_ROW:
            (row,) = struct.unpack_from("<I", record)
        elif kind in _BINARY_CELLS:
            used.add((row, *struct.unpack_from("<I", record)))
    rows, columns = (sorted({place[axis] for place in used}) for axis in (0, 1))
    _check_size(rows, columns)
    row_of, column_of = ({old: struct.pack("<I", new) for new, old in enumerate(one)} for one in (rows, columns))
    out = bytearray()
    for kind, record, whole in binary_records(sheet):
        if kind in (_BINARY_ROW, *_BINARY_CELLS):
            new = (column_of if kind else row_of).get(*struct.unpack_from("<I", record))
            if new is not None:  # a row with cells
                out += whole[: len(whole) - len(record)] + new + record[4:]
        elif kind != _BINARY_BLANK:
            out += whole
    return bytes(out)


def binary_records(part: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the kind, the data and the complete bytes of each record. Raises IndexError."""
    at = 0
    while at < len(part):
        begin = at
        kind, at = _number_of_7_bits(part, at, 2)
        size, at = _number_of_7_bits(part, at, 4)
        begin_of_data, at = at, at + size
        yield kind, part[begin_of_data:at], part[begin:at]


def _number_of_7_bits(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Return the little-endian base-128 number at `at`, and the offset after it. Raises IndexError."""
    number = 0
    for shift in range(most):
        number |= (data[at] & 0x7F) << 7 * shift
        at += 1
        if data[at - 1] < 0x80:
            break
    return number, at


def _holds_two_texts(record: bytes, at: int) -> bool:
    for _ in range(2):
        length = int.from_bytes(record[at : at + 4], "little")
        at += 4 + 2 * length
    return at == len(record)


def _rewritten(data: bytes, changed: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            if not entry.is_dir():
                better = changed.get(entry.filename)
                new.writestr(entry.filename, old.read(entry) if better is None else better)
    return out.getvalue()


def _repaired_sheet(sheet: bytes) -> bytes:
    if b"macrosheet" in sheet[:4096]:
        sheet = _ROOT.sub(rb"\1worksheet", sheet)
    if b't="e"' in sheet or (b"'" in sheet and b"t='e'" in sheet):  # searching for one character is much faster
        sheet = _ERROR.sub(rb"\1\2str\2", sheet)
    sheet = with_scripts(sheet)
    if _WHOLE_ROWS.search(sheet, 0, 4096):
        sheet = _WHOLE_ROWS.sub(b"", sheet, 1)
    if sheet.find(b"mergeCell", max(0, sheet.rfind(b"sheetData"))) >= 0:  # merges follow the cells
        sheet = _MERGED_WHOLE.sub(b"", sheet)
    return _without_empty(sheet) if _is_sparse(sheet) else sheet


def _is_sparse(sheet: bytes) -> bool:
    """Return True if the sheet's rectangle is too large. The stated size is used only if the last row confirms it."""
    last = _ROW.search(sheet, max(sheet.rfind(b"<row "), sheet.rfind(b":row "), 4) - 4)
    if last is None:
        return False
    rows = int(last[2])
    if rows * 16_384 <= MOST_CELLS:
        return False
    told = _DIMENSION.search(sheet, 0, 4096)
    if told is not None and int(told[2]) == rows:
        columns = _number(told[1])
    else:
        columns = max(26, _widest(_WIDE.findall(sheet)))  # an upper bound: other elements have `r` attributes, too
        columns = columns if rows * columns <= MOST_CELLS else _widest(found[2] for found in _CELL.finditer(sheet))
    return rows * columns > MOST_CELLS


def _widest(names: Iterable[bytes]) -> int:
    return max(map(_number, set(names)), default=1)


def _without_empty(sheet: bytes) -> bytes:
    cells = {(found[2], found[3]) for found in _CELL.finditer(sheet)}
    columns = sorted({_number(name) for name, _ in cells})
    rows = sorted({int(number) for _, number in cells})
    _check_size(rows, columns)
    place = {letters_of(column): letters_of(at) for at, column in enumerate(columns, 1)}

    def row(number: bytes) -> bytes:
        return b"%d" % (bisect_left(rows, int(number)) + 1)

    sheet = _EMPTY_ROW.sub(b"", sheet)
    sheet = _CELL.sub(lambda found: found[1] + place[found[2]] + row(found[3]), sheet)
    return _ROW.sub(lambda found: found[1] + row(found[2]), sheet)


def _check_size(rows: list[int], columns: list[int]) -> None:
    if len(rows) * len(columns) > MOST_CELLS:
        raise beyond_limit(
            f"A sheet of it has {len(rows):,} rows and {len(columns):,} columns with anything in them, more than "
            f"{MOST_CELLS:,} cells; split it, or exclude it."
        )


_REPAIRS = {_RELATIONS: _repaired_relations, _WORKBOOK: _repaired_workbook, _BINARY: _repaired_binary}


def _number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number


def letters_of(number: int) -> bytes:
    """Return the name of a column, counted from 1: A for 1."""
    letters = b""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = bytes((65 + rest,)) + letters
    return letters
