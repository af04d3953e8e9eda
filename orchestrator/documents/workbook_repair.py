"""Rewrites workbooks (.xlsx, .xlsm) if the library that reads them loses something, or needs too much memory.

The library drops errors (`#N/A`), does not know macro sheets, and makes a full rectangle of every sheet. With one
stray cell at the far end, that takes gigabytes. So errors become texts, macro sheets become sheets, and mostly empty
sheets lose their empty rows and columns.
"""

from __future__ import annotations

import io
import re
import zipfile
from bisect import bisect_left

from orchestrator.documents.office_package import Package
from orchestrator.documents.types import DocumentProblem, ExtractionError

MOST_CELLS = 5_000_000
"""Cells of a sheet's rectangle. A cell takes 32 bytes in the library, and as many again as a Python object."""
_SHEETS = re.compile(r"xl/(worksheets|macrosheets)/[^/]+\.xml", re.IGNORECASE)
_RELATIONS = "xl/_rels/workbook.xml.rels"
_MACRO_SHEET = b"http://schemas.microsoft.com/office/2006/relationships/xlMacrosheet"
_SHEET = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"
_ROOT = re.compile(rb"(</?)(?:\w+:)?macrosheet\b")
_ERROR = re.compile(rb"""(<(?:\w+:)?c\b[^>]*?\st=)(["'])e\2""")
_DIMENSION = re.compile(rb"""<(?:\w+:)?dimension\s[^>]*?ref=["'](?:[A-Z]+\d+:)?([A-Z]+)(\d+)["']""")
_ROW = re.compile(rb"""(<(?:\w+:)?row\b[^>]*?\sr=["'])(\d+)""")
_CELL = re.compile(rb"""(<(?:\w+:)?c\b[^>]*?\sr=["'])([A-Z]{1,3})(\d{1,7})""")
_EMPTY_ROW = re.compile(rb"<(?:\w+:)?row\b[^>]*/>")


def repaired(data: bytes, package: Package) -> bytes:
    """Return the workbook in a form that the library can read; unchanged if it already is.

    The library has no limits on unpacking, so a package that could exceed its limits is unpacked once here. Raises
    ExtractionError, and what `zipfile` raises for damage.
    """
    changed: dict[str, bytes] = {}
    for part in package.parts():
        if _SHEETS.fullmatch(part):
            sheet = package.whole(part)
            if (better := _repaired_sheet(sheet)) is not sheet:
                changed[part] = better
        elif part == _RELATIONS:
            relations = package.whole(part)
            if _MACRO_SHEET in relations:
                changed[part] = relations.replace(_MACRO_SHEET, _SHEET)
    package.check_unread()
    return _rewritten(data, changed) if changed else data


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
    if b't="e"' in sheet or b"t='e'" in sheet:
        sheet = _ERROR.sub(rb"\1\2str\2", sheet)
    return _without_empty(sheet) if _is_sparse(sheet) else sheet


def _is_sparse(sheet: bytes) -> bool:
    """True if its rectangle is too large. Its stated size is believed if its last row confirms it."""
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
        columns = max((_number(found[2]) for found in _CELL.finditer(sheet)), default=1)
    return rows * columns > MOST_CELLS


def _without_empty(sheet: bytes) -> bytes:
    """Return the sheet with its used rows and columns moved together. Raises ExtractionError if they are too many."""
    cells = {(found[2], found[3]) for found in _CELL.finditer(sheet)}
    columns = sorted({_number(name) for name, _ in cells})
    rows = sorted({int(number) for _, number in cells})
    if len(rows) * len(columns) > MOST_CELLS:
        raise ExtractionError(
            DocumentProblem.TOO_LARGE,
            f"A sheet of it has {len(rows):,} rows and {len(columns):,} columns with anything in them, more than "
            f"{MOST_CELLS:,} cells; split it, or exclude it.",
        )
    place = {letters_of(column): letters_of(at) for at, column in enumerate(columns, 1)}

    def row(number: bytes) -> bytes:
        return b"%d" % (bisect_left(rows, int(number)) + 1)

    sheet = _EMPTY_ROW.sub(b"", sheet)
    sheet = _CELL.sub(lambda found: found[1] + place[found[2]] + row(found[3]), sheet)
    return _ROW.sub(lambda found: found[1] + row(found[2]), sheet)


def _number(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number


def letters_of(number: int) -> bytes:
    """Return the name of a column: A for 1."""
    letters = b""
    while number:
        number, rest = divmod(number - 1, 26)
        letters = bytes((65 + rest,)) + letters
    return letters
