"""Encoding of merged lines as JSONL, CSV or Parquet. Holds at most a few thousand rows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from orchestrator.pipeline.finish.outputs.kinds import Kind, ListOf, Plain, Struct, VectorOf
from orchestrator.pipeline.finish.outputs.layout import Layout, Tasks
from orchestrator.pipeline.finish.outputs.vectors import sized
from orchestrator.settings.job_spec import OutputFormat

if TYPE_CHECKING:
    import pyarrow as pa

Format = OutputFormat
GROUP_ROWS = 20_000
GROUP_BYTES = 32_000_000
"""JSONL bytes of a Parquet row group: long answers make it shorter than `GROUP_ROWS`."""
_QUOTED = frozenset('",\r\n')


class CountedLines:
    """Lines that are counted as they pass, with their bytes as JSONL."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.rows = 0
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.rows += 1
            self.bytes += len(line) + 1
            yield line


def encode(file: BinaryIO, lines: Iterable[bytes], form: Format, job: str, tasks: Tasks) -> None:
    """Write merged lines to a file. `tasks` maps the job's tasks to the kind of their answers. Raises OSError."""
    match form:
        case "jsonl" | "batch":
            file.writelines(line + b"\n" for line in lines)
        case "csv":
            file.writelines(csv_lines(lines, Layout(job, tasks, flat=True)))
        case "parquet":
            known, rows = sized(tasks, lines)
            _write_parquet(file, rows, Layout(job, known, flat=False))


def csv_lines(lines: Iterable[bytes], layout: Layout) -> Iterator[bytes]:
    """Yield a header and merged lines as RFC 4180 in UTF-8.

    An empty cell is null, `""` an empty text: the csv module cannot tell them apart.
    """
    yield _csv_line(column.name for column in layout.columns)
    for line in lines:
        yield _csv_line(layout.cells(line))


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
            return _csv_cell(msgspec.json.encode(value).decode())
        case _:
            return repr(value)


def _write_parquet(file: BinaryIO, lines: Iterable[bytes], layout: Layout) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column.name, _arrow(column.kind)) for column in layout.columns])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(lines):
            columns = zip(*map(layout.cells, group), strict=True)
            arrays = [pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema), row_group_size=GROUP_ROWS)


def _groups(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group lines into row groups."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line)
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


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
