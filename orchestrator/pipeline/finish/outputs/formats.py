"""Encoding of merged lines as JSONL, CSV, Parquet or a workbook, with at most a few thousand rows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from orchestrator.core.jsonl import single_line
from orchestrator.core.sanitize import BOM, no_formula
from orchestrator.pipeline.finish.outputs.column_types import Kind, ListOf, Plain, Struct, VectorOf
from orchestrator.pipeline.finish.outputs.layout import ChosenColumns, Layout, TableLayout, Tasks
from orchestrator.pipeline.finish.outputs.vectors import sized
from orchestrator.pipeline.finish.outputs.wide import WideLayout
from orchestrator.settings.job_spec import OutputFormat

if TYPE_CHECKING:
    import pyarrow as pa
from typing import TYPE_CHECKING

from orchestrator.pipeline.finish.outputs.layout import OutputColumn

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.worksheet import Worksheet

Format = OutputFormat
GROUP_ROWS = 20_000
GROUP_BYTES = 32_000_000
"""Maximum JSONL bytes of a Parquet row group. With long answers, a group has fewer than `GROUP_ROWS` rows."""
PART_ROWS = 1000
"""Maximum rows held as Python objects. The garbage collector scans these objects again and again."""
_QUOTED = frozenset('",\r\n')


class CountedLines:
    """Iterable that counts lines, and their bytes as JSONL, as they are read."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.rows = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.rows += 1
            self.bytes += len(line) + 1
            yield line


class TableShape(msgspec.Struct, frozen=True):
    """The shape of a table: a row per document if `wide`, else a row per merged row.

    `columns` has the table's columns in order; empty means all columns. With `excel`, a CSV file is marked as UTF-8
    for spreadsheets, and no cell can act as a formula.
    """

    wide: bool = False
    columns: tuple[str, ...] = ()
    excel: bool = False

    def layout(self, job: str, tasks: Tasks, *, flat: bool) -> TableLayout:
        """Return the layout of a job's table. Raises UsageError for a column that the table lacks."""
        made: TableLayout = (WideLayout if self.wide else Layout)(job, tasks, flat=flat, every=bool(self.columns))
        return ChosenColumns(made, self.columns) if self.columns else made


LONG = TableShape()


class _CountedRecords:
    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self.columns = layout.columns
        self.rows = 0

    def records(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for record in self._layout.records(lines):
            self.rows += 1
            yield record

    def cells(self, record: bytes) -> list[Any]:
        return self._layout.cells(record)


def encode(
    file: BinaryIO, lines: Iterable[bytes], form: Format, job: str, tasks: Tasks, table: TableShape = LONG
) -> int:
    """Write merged lines to a file, and return the number of its rows. `tasks` has the kind of answers by task.

    In JSONL, the merged lines are unchanged unless the table has its own shape. Raises OSError, and UsageError for an
    unknown column.
    """
    if form == "batch" or (form == "jsonl" and not (table.wide or table.columns)):
        counted = CountedLines(lines)
        file.writelines(line + b"\n" for line in counted)
        return counted.rows
    known, rows = sized(tasks, lines) if form == "parquet" else (tasks, lines)
    layout = _CountedRecords(table.layout(job, known, flat=form in ("csv", "xlsx")))
    match form:
        case "csv":
            file.writelines(csv_lines(rows, layout, excel=table.excel))
        case "parquet":
            _write_parquet(file, rows, layout)
        case "xlsx":
            write_workbook(file, rows, layout)
        case _:
            file.writelines(_json_lines(rows, layout))
    return layout.rows


def _json_lines(lines: Iterable[bytes], layout: TableLayout) -> Iterator[bytes]:
    names = [column.name for column in layout.columns]
    for record in layout.records(lines):
        cells = (float(cell) if isinstance(cell, Decimal) else cell for cell in layout.cells(record))
        yield single_line(msgspec.json.encode(dict(zip(names, cells, strict=True)))) + b"\n"


def csv_lines(lines: Iterable[bytes], layout: TableLayout, *, excel: bool = False) -> Iterator[bytes]:
    """Yield the header and rows of a table as RFC 4180 CSV in UTF-8.

    An empty cell is null, and `""` is an empty string. The csv module cannot write both.
    """
    names = [column.name for column in layout.columns]
    if not excel:
        yield _csv_line(names)
        for record in layout.records(lines):
            yield _csv_line(layout.cells(record))
        return
    yield BOM.encode() + _csv_line(map(no_formula, names))
    for record in layout.records(lines):
        cells = (json_of(cell) if isinstance(cell, list) else cell for cell in layout.cells(record))
        yield _csv_line(no_formula(cell) if isinstance(cell, str) else cell for cell in cells)


def json_of(cell: list[Any]) -> str:
    return msgspec.json.encode(cell).decode()


def _csv_line(cells: Iterable[Any]) -> bytes:
    return (",".join(map(_csv_cell, cells)) + "\r\n").encode()


def _csv_cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return '"' + value.replace('"', '""') + '"' if not value or not _QUOTED.isdisjoint(value) else value
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.isoformat()
        case list():
            return _csv_cell(json_of(value))
        case _:
            return repr(value)


def _write_parquet(file: BinaryIO, lines: Iterable[bytes], layout: TableLayout) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column.name, _arrow(column.kind)) for column in layout.columns])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        group: list[pa.RecordBatch] = []
        for part, ends_group in _parts(layout.records(lines)):
            columns = zip(*map(layout.cells, part), strict=True)
            arrays = [pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)]
            group.append(pa.record_batch(arrays, schema=schema))
            if ends_group:
                writer.write_table(pa.Table.from_batches(group), row_group_size=GROUP_ROWS)
                group.clear()
        if group:
            writer.write_table(pa.Table.from_batches(group), row_group_size=GROUP_ROWS)


def _parts(records: Iterable[bytes]) -> Iterator[tuple[list[bytes], bool]]:
    part: list[bytes] = []
    rows = size = 0
    for record in records:
        part.append(record)
        rows += 1
        size += len(record)
        is_full = rows == GROUP_ROWS or size >= GROUP_BYTES
        if is_full or len(part) == PART_ROWS:
            yield part, is_full
            part = []
        if is_full:
            rows = size = 0
    if part:
        yield part, False


def _arrow(kind: Kind) -> pa.DataType:
    import pyarrow as pa

    match kind:
        case ListOf(item):
            return pa.list_(_arrow(item))
        case VectorOf(size):
            return pa.list_(pa.float32(), -1 if size is None else size)
        case Struct(fields):
            return pa.struct([(name, _arrow(inner)) for name, inner in fields])
        case Plain.INTEGER:
            return pa.int64()
        case Plain.NUMBER:
            return pa.float64()
        case Plain.BOOLEAN:
            return pa.bool_()
        case Plain.MONEY:
            return pa.decimal128(38, 12)
        case Plain.INSTANT:
            return pa.timestamp("us", tz="UTC")
        case _:
            return pa.string()


SHEET_ROWS = 1_048_575
"""Maximum rows of a sheet below its header. Further rows go to the next sheet."""
CELL_CHARACTERS = 32_767
EXACT = 10**15
"""Smallest integer written as text: Excel keeps only 15 digits of a number."""
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
    """Append-only wrapper of a file. Without seek and tell, an archive is written from front to back."""

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
    # Excel counts UTF-16 units.
    if len(text) <= CELL_CHARACTERS // 2 or len(text.encode("utf-16-le")) // 2 <= CELL_CHARACTERS:
        return text
    end = f" … [{len(text):,} characters]"
    return text.encode("utf-16-le")[: 2 * (CELL_CHARACTERS - len(end))].decode("utf-16-le", errors="ignore") + end
