"""Spreadsheets (.xlsx, .xlsm, .xlsb, .xls, .ods, .fods, XML of Excel 2003), as one text or as a document per row.

The saving program computed the values, including errors such as `#N/A`. Formats and formulas are not read.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from orchestrator.documents.content import Content, too_large_inside
from orchestrator.documents.encoding import clean
from orchestrator.documents.excel_4 import is_old_stream, old_sheets
from orchestrator.documents.extras import require
from orchestrator.documents.lines import text_too_large
from orchestrator.documents.ods_cells import OdsParts, OdsSheet, holds_sheets, ods_sheets
from orchestrator.documents.office import EXCELS_PASSWORD, OLE, damaged, encrypted, is_locked, unlocked
from orchestrator.documents.office_package import DAMAGE, Package
from orchestrator.documents.old_workbook_repair import in_encoding, needs_password
from orchestrator.documents.old_workbook_repair import repaired as repaired_old
from orchestrator.documents.rows import TableRow, bad_row
from orchestrator.documents.sheet_parts import SheetParts, is_about_sheet
from orchestrator.documents.types import ExtractionError, unsupported
from orchestrator.documents.workbook_repair import repaired
from orchestrator.documents.xml_workbook import holds_xml_sheets, xml_sheets

MOST_HEADER = 50
"""Number of first rows to search for the column names."""


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text and `{"sheets": names}`: a heading per sheet, a line per row, ` | ` between cells."""
    del encoding
    lines: list[str] = []
    names: list[str] = []
    left = most
    book = _Workbook(data)
    parts = book.parts(most)
    for name, is_hidden, rows in book.sheets():
        names.append(name)
        block = [line for row in rows if (line := " | ".join(_trimmed(row)))]
        block += parts.lines(name) if parts else []
        left -= sum(map(len, block))
        if left < 0:
            raise text_too_large(most)
        if block:
            lines += [f"## {name} (hidden)" if is_hidden else f"## {name}", *block, ""]
    return clean("\n".join(lines)).strip(), {"sheets": names, **(parts.losses.notes() if parts else {})}


class SheetTable:
    """The rows of every sheet that has the expected columns. A row is named by sheet and row: `Prices!3`."""

    def __init__(self, content: Content, expected: tuple[str, ...]) -> None:
        with content.opened() as handle:
            data = handle.read(content.limit + 1)
        if len(data) > content.limit:
            raise too_large_inside(content.limit)
        self._sheets = [(name, *_header(rows, expected)) for name, _, rows in _Workbook(data).sheets() if rows]
        fitting = [sheet for sheet in self._sheets if set(expected) <= set(sheet[2])]
        self._fitting = fitting
        best = max(self._sheets, key=lambda sheet: len(sheet[2]), default=("", [], (), 0))
        self.columns: tuple[str, ...] = tuple(fitting[0][2] if fitting else best[2])

    def rows(self) -> Iterator[TableRow]:
        number = 0
        for name, rows, columns, first in self._fitting:
            for at, cells in enumerate(rows[first:], first + 1):
                if any(cells):
                    number += 1
                    size = sum(map(len, map(str, cells)))
                    yield TableRow(number, (columns, cells), size, None, f"{name}!{at}")

    def cells(self, row: TableRow) -> Mapping[str, object]:
        columns, cells = row.raw
        filled = [*cells, *("" for _ in columns[len(cells) :])]
        named = [(name, cell) for name, cell in zip(columns, filled, strict=False) if name]
        if len({name for name, _ in named}) < len(named):
            raise bad_row(
                f"Row {row.label} is in a sheet that has two columns with the same name; rename one.", row.size
            )
        return dict(named)


def _header(rows: list[list[str]], expected: tuple[str, ...]) -> tuple[list[list[str]], tuple[str, ...], int]:
    """Return the rows, the column names and the index of the first row below them.

    If no row has the expected columns, the names are from the first non-empty row and the index is after the last
    row.
    """
    for at, row in enumerate(rows[:MOST_HEADER]):
        names = tuple(cell.strip() for cell in row)
        if set(expected) <= set(names):
            return rows, names, at + 1
    first = next((row for row in rows if any(row)), [])
    return rows, tuple(cell.strip() for cell in first), len(rows)


class _Workbook:
    """An opened workbook. All methods raise ExtractionError."""

    def __init__(self, data: bytes) -> None:
        self._library = require("python_calamine", "spreadsheets", "office")
        self._package: Package | None = None
        self._encoding: str | None = None  # the true encoding, if the library would decode texts wrongly
        with self._errors():
            if data.startswith(OLE):
                data = _opened(data)
            self._package = Package(data) if data.startswith(b"PK") else None
            self._open = self._opened(data)
            if self._open is not None:
                return
            if self._package is None:
                data, self._encoding = repaired_old(data)
            else:
                data = repaired(data, self._package)
            try:
                self._book = self._library.CalamineWorkbook.from_filelike(io.BytesIO(data))
            except self._library.CalamineError as error:  # the library tried all formats and gives no reason
                if needs_password(data):
                    raise encrypted() from error
                raise

    def _opened(self, data: bytes) -> list[OdsSheet] | None:
        """Return the sheets if one of orch's own readers knows the format; None otherwise."""
        if holds_sheets(data, self._package):
            return ods_sheets(data, self._package, _shown)
        if is_old_stream(data):
            return old_sheets(data, _shown)
        return xml_sheets(data, _shown) if holds_xml_sheets(data) else None

    def sheets(self) -> Iterator[tuple[str, bool, list[list[str]]]]:
        """Yield each sheet's name, True if it is hidden, and its cells as text. A chart sheet has no cells."""
        if self._open is not None:
            yield from ((sheet.name, sheet.is_hidden, sheet.rows) for sheet in self._open)
            return
        cells, chart = self._library.SheetTypeEnum.WorkSheet, self._library.SheetTypeEnum.ChartSheet
        seen = self._library.SheetVisibleEnum.Visible
        with self._errors():
            about = {
                one.name: (one.typ, one.visible) for one in self._book.sheets_metadata
            }  # each access rebuilds it
            for name in self._book.sheet_names:
                kind, visible = about.get(name, (cells, seen))
                told = name if self._encoding is None else in_encoding(name, self._encoding)
                if kind == cells:
                    rows = self._book.get_sheet_by_name(name).to_python(skip_empty_area=False)
                    if self._encoding is not None:
                        rows = self._decoded(rows, self._encoding)
                    shown = [[cell if isinstance(cell, str) else _shown(cell) for cell in row] for row in rows]
                    yield told, visible != seen, shown
                elif kind == chart:
                    yield told, visible != seen, []

    @staticmethod
    def _decoded(rows: list[list[object]], encoding: str) -> list[list[object]]:
        return [[in_encoding(cell, encoding) if isinstance(cell, str) else cell for cell in row] for row in rows]

    def parts(self, most: int) -> SheetParts | OdsParts | None:
        if self._open is not None:
            return OdsParts(self._open)
        if self._package is None or not any(map(is_about_sheet, self._package.parts())):
            return None
        try:
            return SheetParts(self._package, most)
        except DAMAGE:  # the package has another format, or is damaged outside its cells
            return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (ExtractionError, MemoryError, GeneratorExit):
            raise
        except self._library.PasswordError as error:
            raise encrypted() from error
        except BaseException as error:
            if isinstance(error, Exception):  # calamine raises a type per format
                raise damaged("spreadsheet") from error
            if type(error).__name__ != "PanicException":
                raise
            raise unsupported(
                "The reader does not know a part of this workbook; save it as .xlsx, or exclude it."
            ) from error


def _opened(data: bytes) -> bytes:
    """Return the workbook, decrypted if Excel opens it without asking for a password.

    Raises ExtractionError if it needs a password or the extra is missing.
    """
    library = require("msoffcrypto", "locked spreadsheets", "office")
    file = None
    with suppress(Exception):  # this library knows fewer old formats than calamine
        file = library.OfficeFile(io.BytesIO(data))
    if file is None and is_locked(data):
        raise encrypted()
    if file is None or not file.is_encrypted():
        return data
    return unlocked(data, EXCELS_PASSWORD)


def _shown(cell: object) -> str:
    if isinstance(cell, float):  # first, as most cells are floats
        return f"{cell:.0f}" if cell.is_integer() and abs(cell) < 1e15 else repr(cell)
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        return cell.date().isoformat()
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ")
    if isinstance(cell, datetime.timedelta):
        return _duration(cell)
    return "" if cell is None else str(cell)


def _duration(length: datetime.timedelta) -> str:
    sign = "-" if length < datetime.timedelta() else ""
    minutes, seconds = divmod(abs(length).seconds + abs(length).days * 86_400, 60)
    return f"{sign}{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _trimmed(row: list[str]) -> list[str]:
    cells = [cell and " ".join(cell.split()) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    return cells
