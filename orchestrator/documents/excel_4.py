"""Workbooks of Excel 2 to 4 (.xls): consecutive records, without a container.

Sources: OpenOffice.org's Documentation of the Microsoft Excel File Format, sections 5 and 6, and xlrd's reader.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Callable

from orchestrator.documents.code_pages import byte_page
from orchestrator.documents.ods_cells import OdsSheet, too_many_cells
from orchestrator.documents.office import encrypted
from orchestrator.documents.workbook_repair import ERRORS, MOST_CELLS

_HEAD = struct.Struct("<HH")
_BEGINS = (0x0009, 0x0209, 0x0409)
"""Numbers of the records that start a sheet or a workbook."""
_SINCE_3 = 0x0200
"""Lowest record number of Excel 3 and later.

Older records have an extra byte before a cell's content and shorter length fields for texts.
"""
_WORKBOOK, _LOCK, _CODE_PAGE, _FROM_1904, _SHEET_NAME = 0x0100, 0x002F, 0x0042, 0x0022, 0x008F
_FORMATS, _LOOKS = (0x001E, 0x041E), (0x0043, 0x0243, 0x0443)
_INTEGER, _RK = 0x0002, 0x027E
_NUMBERS, _TEXTS, _TRUTHS = (0x0003, 0x0203), (0x0004, 0x0204), (0x0005, 0x0205)
_FORMULAS, _RESULTS = (0x0006, 0x0206, 0x0406), (0x0007, 0x0207)
_LITERAL = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?![hms])[^\]]*\]', re.IGNORECASE)
_DATE, _LENGTH = re.compile("[dmyhs]", re.IGNORECASE), re.compile(r"\[[hms]", re.IGNORECASE)
_FIRST, _FIRST_MAC = (
    datetime.datetime.combine(datetime.date(*day), datetime.time()) for day in ((1899, 12, 31), (1904, 1, 1))
)
_LEAP, _DAYS = 60, 2_958_466
"""Day number from which Excel's day numbers are one too high, and the number of days in its calendar."""


def is_old_stream(data: bytes) -> bool:
    """Return True if a file starts like a workbook of Excel 2 to 4."""
    return len(data) > 8 and data[0] == 0x09 and data[1] in (0, 2, 4) and data[2] in (4, 6, 8) and data[3] == 0


def old_sheets(data: bytes, shown: Callable[[object], str]) -> list[OdsSheet]:
    """Return all sheets. `shown` formats numbers, dates and durations.

    Raises ExtractionError or struct.error.
    """
    book = _Book(shown)
    at = 0
    while at + _HEAD.size <= len(data):
        kind, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        book.take(kind, data[at : at + size])
        at += size
    for sheet in book.sheets:
        sheet.drop_empty()
    return book.sheets


class _Book:
    def __init__(self, shown: Callable[[object], str]) -> None:
        self.sheets: list[OdsSheet] = []
        self._shown = shown
        self._encoding = "cp1252"
        self._formats: list[str] = []
        self._looks: list[int] = []
        self._is_from_1904 = False
        self._name = ""
        self._place: tuple[int, int] | None = None  # row and column of a formula whose text follows
        self._cells = 0

    def take(self, kind: int, record: bytes) -> None:
        if kind in _BEGINS:
            if struct.unpack_from("<H", record, 2)[0] != _WORKBOOK:
                self.sheets.append(OdsSheet(self._name or f"Sheet{len(self.sheets) + 1}", is_hidden=False))
        elif kind == _LOCK:
            raise encrypted()
        elif kind == _CODE_PAGE:
            (page,) = struct.unpack_from("<H", record)
            self._encoding = byte_page(page) or "cp1252"
        elif kind == _FROM_1904:
            self._is_from_1904 = record[:1] == b"\1"
        elif kind in _FORMATS:
            self._formats.append(self._text(record[2 if kind == _FORMATS[1] else 0 :], 1))
        elif kind in _LOOKS:
            self._looks.append(record[2] & 0x3F if kind == _LOOKS[0] else record[1])
        elif kind == _SHEET_NAME:
            self._name = self._text(record[4:], 1)
        elif kind in _RESULTS and self._place is not None:
            self._put(*self._place, self._text(record, 1 if kind == _RESULTS[0] else 2))
        elif self.sheets:
            self._cell(kind, record)

    def _cell(self, kind: int, record: bytes) -> None:
        is_first = kind < _SINCE_3
        start = 7 if is_first else 6
        value: object = None
        if kind == _INTEGER:
            value = float(struct.unpack_from("<H", record, start)[0])
        elif kind in _NUMBERS:
            (value,) = struct.unpack_from("<d", record, start)
        elif kind == _RK:
            value = _rk(struct.unpack_from("<I", record, start)[0])
        elif kind in _TEXTS:
            value = self._text(record[start:], 1 if is_first else 2)
        elif kind in _TRUTHS:
            value = ERRORS.get(record[start], "") if record[start + 1] else bool(record[start])
        elif kind in _FORMULAS:
            value = self._result(record, start)
        if value is not None:
            row, column = struct.unpack_from("<HH", record)
            look = record[4] & 0x3F if is_first else struct.unpack_from("<H", record, 4)[0]
            self._put(row, column, self._dated(value, look) if isinstance(value, float) else self._shown(value))

    def _result(self, record: bytes, start: int) -> object:
        """Return the result of a formula; None if the result is a text, which follows in its own record."""
        result = record[start : start + 8]
        if result[6:8] != b"\xff\xff":
            return float(struct.unpack("<d", result)[0])
        if result[0] == 0:
            row, column = struct.unpack_from("<HH", record)
            self._place = (row, column)
            return None
        return bool(result[2]) if result[0] == 1 else ERRORS.get(result[2]) if result[0] == 2 else None

    def _dated(self, value: float, look: int) -> str:
        number = self._looks[look] if look < len(self._looks) else 0
        shape = _LITERAL.sub("", self._formats[number]) if number < len(self._formats) else ""
        shape = shape.partition(";")[0]
        if "general" in shape.lower() or not _DATE.search(shape):
            return self._shown(value)
        if _LENGTH.search(shape):
            return self._shown(datetime.timedelta(days=value))
        return self._moment(value)

    def _moment(self, days: float) -> str:
        if not 0 <= days < _DAYS:
            return self._shown(days)
        first = _FIRST_MAC if self._is_from_1904 else _FIRST if days < _LEAP else _FIRST - datetime.timedelta(days=1)
        moment = first + datetime.timedelta(milliseconds=round(days * 86_400_000))
        return self._shown(moment if days >= 1 else moment.time())

    def _text(self, record: bytes, bytes_of_length: int) -> str:
        length = int.from_bytes(record[:bytes_of_length], "little")
        return record[bytes_of_length : bytes_of_length + length].decode(self._encoding, "replace")

    def _put(self, row: int, column: int, text: str) -> None:
        self._place = None
        rows = self.sheets[-1].rows
        while len(rows) <= row:
            rows.append([])
        before = len(rows[row])
        rows[row] += [""] * (column + 1 - before)
        rows[row][column] = text
        self._cells += max(0, column + 1 - before)
        if self._cells > MOST_CELLS:
            raise too_many_cells()


def _rk(number: int) -> float:
    """Return the value of an RK number.

    Its upper 30 bits are an integer or the leading bits of a float, optionally in hundredths.
    """
    if number & 2:
        value = float((number >> 2) - (1 << 30 if number & 0x8000_0000 else 0))
    else:
        (value,) = struct.unpack("<d", struct.pack("<II", 0, number & 0xFFFF_FFFC))
    return value / 100 if number & 1 else value
