"""A table as an Excel workbook. Holds one row in memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestrator.pipeline.finish.outputs.formats import json_of
from orchestrator.pipeline.finish.outputs.kinds import Plain
from orchestrator.pipeline.finish.outputs.layout import OutputColumn, TableLayout

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.worksheet import Worksheet

SHEET_ROWS = 1_048_575
"""Most rows of a sheet below its header; the others go to the next sheet."""
CELL_CHARACTERS = 32_767
"""Most characters of a cell."""
EXACT = 10**15
"""Excel keeps 15 digits of a number: a longer integer is written as text."""
_WIDTHS = {Plain.TEXT: 40, Plain.JSON: 40, Plain.INSTANT: 20}


def write_workbook(file: BinaryIO, lines: Iterable[bytes], layout: TableLayout) -> None:
    """Write a table into a workbook, on as many sheets as it needs. Raises OSError."""
    from xlsxwriter import Workbook
    from xlsxwriter.exceptions import FileCreateError

    book = Workbook(_Written(file), {"constant_memory": True, "default_date_format": "yyyy-mm-dd hh:mm:ss"})
    sheet, row = _sheet(book, layout.columns), 0
    for record in layout.records(lines):
        if row == SHEET_ROWS:
            sheet, row = _sheet(book, layout.columns), 0
        row += 1
        for column, cell in enumerate(layout.cells(record)):
            _write(sheet, row, column, cell)
    try:
        book.close()
    except FileCreateError as error:
        raise error.args[0] if isinstance(error.args[0], OSError) else OSError(str(error)) from error


class _Written:
    """A file that is only appended to: without seek and tell, an archive is written from front to back."""

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush


def _sheet(book: Workbook, columns: Iterable[OutputColumn]) -> Worksheet:
    sheet, bold = book.add_worksheet(), book.add_format({"bold": True})
    sheet.freeze_panes(1, 0)
    for place, column in enumerate(columns):
        width = _WIDTHS.get(column.kind, 14) if isinstance(column.kind, Plain) else 40
        sheet.set_column(place, place, width)
        sheet.write_string(0, place, column.name[:CELL_CHARACTERS], bold)
    return sheet


def _write(sheet: Worksheet, row: int, column: int, cell: Any) -> None:
    match cell:
        case None:
            return
        case bool():
            sheet.write_boolean(row, column, cell)
        case datetime():
            sheet.write_datetime(row, column, cell.replace(tzinfo=None))
        case Decimal() | float():
            sheet.write_number(row, column, float(cell))
        case int() if abs(cell) < EXACT:
            sheet.write_number(row, column, cell)
        case _:
            text = json_of(cell) if isinstance(cell, list) else str(cell)
            sheet.write_string(row, column, _fitted(text))


def _fitted(text: str) -> str:
    """Return a text that a cell can hold; a longer one ends with its length."""
    # Excel counts UTF-16 units.
    if len(text) <= CELL_CHARACTERS // 2 or len(text.encode("utf-16-le")) // 2 <= CELL_CHARACTERS:
        return text
    end = f" … [{len(text):,} characters]"
    return text.encode("utf-16-le")[: 2 * (CELL_CHARACTERS - len(end))].decode("utf-16-le", errors="ignore") + end
