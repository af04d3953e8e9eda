"""Workbooks in one XML file (SpreadsheetML) by Excel 2002-2003 and many web programs, read from front to back.

Sources: Microsoft's "XML Spreadsheet Reference" (2001), and the readers of SheetJS and Apache Tika.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from orchestrator.documents.ods_cells import OdsSheet, moment, too_many_cells
from orchestrator.documents.office import TextLimit
from orchestrator.documents.office_package import parse
from orchestrator.documents.superscripts import lowered, raised
from orchestrator.documents.workbook_repair import MOST_CELLS, letters_of

_SPACE = "urn:schemas-microsoft-com:office:spreadsheet"
_SS = f"{_SPACE}}}"
_VISIBLE = "urn:schemas-microsoft-com:office:excel}Visible"
_SCRIPTS = {"Sup": raised, "Sub": lowered}
_MOST_ROWS, _MOST_COLUMNS, _MOST_TEXT = 1_048_576, 16_384, 50_000_000
_NO_DAYS = ("1899-12-30T", "1899-12-31T")
"""Dates that mean no date: the value is only a time."""
_DURATIONS = ("[h", "[m", "[s")
_LEAP = datetime.datetime(1900, 3, 1, tzinfo=datetime.UTC)
"""The day from which Excel's day numbers are one too high."""


def holds_xml_sheets(data: bytes) -> bool:
    return data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<" and _SPACE.encode() in data[:8192]


def xml_sheets(data: bytes, shown: Callable[[object], str]) -> list[OdsSheet]:
    """Return all sheets. `shown` formats numbers and durations. Raises ExtractionError, and expat's errors."""
    book = _Book(shown)
    parse((data.lstrip(b" \t\r\n"),), book.start, book.end, book.characters)
    return book.sheets


class _Book:
    def __init__(self, shown: Callable[[object], str]) -> None:
        self.sheets: list[OdsSheet] = []
        self._shown = shown
        self._limit = TextLimit(_MOST_TEXT)
        self._cells = self._at = self._merged = 0
        self._type = self._author = self._style = self._cell_style = ""
        self._durations: set[str] = set()  # styles of durations
        self._pieces: list[str] | None = None  # of the open text
        self._scripts: list[int] = []  # index of the first piece of each open superscript or subscript
        self._is_comment = False

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._limit.element()
        name = tag.rpartition("}")[2]
        if tag == f"{_SS}Worksheet":
            self.sheets.append(OdsSheet(attributes.get(f"{_SS}Name", ""), is_hidden=False))
        elif tag == f"{_SS}Style":
            self._style = attributes.get(f"{_SS}ID", "")
        elif tag == f"{_SS}NumberFormat" and attributes.get(f"{_SS}Format", "").lower().startswith(_DURATIONS):
            self._durations.add(self._style)
        elif not self.sheets:
            return
        elif tag == f"{_SS}Row":
            self._begin_row(attributes)
        elif tag == f"{_SS}Cell":
            self._at = _place(attributes.get(f"{_SS}Index"), self._at, _MOST_COLUMNS)
            self._cell_style = attributes.get(f"{_SS}StyleID", "")
            self._merged = _place(attributes.get(f"{_SS}MergeAcross"), -1, _MOST_COLUMNS) + 1
        elif tag == f"{_SS}Comment":
            self._is_comment, self._author = True, attributes.get(f"{_SS}Author", "")
        elif tag in (f"{_SS}Data", _VISIBLE):
            self._type, self._pieces = attributes.get(f"{_SS}Type", ""), []
        elif name in _SCRIPTS and self._pieces is not None:
            self._scripts.append(len(self._pieces))

    def end(self, tag: str) -> None:
        name = tag.rpartition("}")[2]
        if name in _SCRIPTS and self._scripts and self._pieces is not None:
            begin = self._scripts.pop()
            self._pieces[begin:] = [_SCRIPTS[name]("".join(self._pieces[begin:]))]
        elif tag == _VISIBLE and self._pieces is not None:
            self.sheets[-1].is_hidden = "Hidden" in "".join(self._pieces)
            self._pieces = None
        elif tag == f"{_SS}Data" and self._pieces is not None:
            self._end_text("".join(self._pieces))
        elif tag == f"{_SS}Comment":
            self._is_comment = False
        elif tag == f"{_SS}Cell" and self.sheets:
            self._at += 1 + self._merged
        elif tag == f"{_SS}Worksheet":
            self.sheets[-1].drop_empty()

    def characters(self, text: str) -> None:
        if self._pieces is not None:
            self._limit.text(text)
            self._pieces.append(text)

    def _begin_row(self, attributes: dict[str, str]) -> None:
        rows = self.sheets[-1].rows
        at = _place(attributes.get(f"{_SS}Index"), len(rows), _MOST_ROWS)
        rows += [[]] * (at - len(rows))
        rows.append([])
        self._at = 0

    def _end_text(self, text: str) -> None:
        self._pieces, self._scripts = None, []
        sheet = self.sheets[-1]
        if self._is_comment:
            place = f"{letters_of(self._at + 1).decode()}{max(1, len(sheet.rows))}"
            author = f"{self._author}: " if self._author and not text.startswith(self._author) else ""
            sheet.beside.append(f"[comment {place}]: {author}{' '.join(text.split())}")
        elif sheet.rows:
            row = sheet.rows[-1]
            before = len(row)
            row += [""] * (self._at - before)
            row.append(self._value(text))
            self._cells += len(row) - before
            if self._cells > MOST_CELLS:
                raise too_many_cells()

    def _value(self, text: str) -> str:
        if self._type == "DateTime":
            if self._cell_style in self._durations and (length := _duration(text.strip())) is not None:
                return self._shown(length)
            whole = moment(text.strip())
            return whole.partition(" ")[2] or whole if text.startswith(_NO_DAYS) else whole
        if self._type == "Boolean":
            return "TRUE" if text.strip() == "1" else "FALSE"
        if self._type == "Number":
            try:
                return self._shown(float(text))
            except ValueError:
                return text
        return text


def _duration(moment: str) -> datetime.timedelta | None:
    try:
        end = datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC)
        return end - datetime.datetime(1899, 12, 31 if end < _LEAP else 30, tzinfo=datetime.UTC)
    except (TypeError, ValueError):
        return None


def _place(number: str | None, other: int, most: int) -> int:
    """Return the 0-based index for an attribute that counts from 1; `other` if it is missing or invalid."""
    return (
        max(1, min(int(number), most)) - 1
        if number is not None and number.isdecimal() and len(number) < 10
        else other
    )
