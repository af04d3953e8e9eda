"""Parquet files, with a few thousand rows in memory at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.documents.content import Content
from orchestrator.documents.rows import TableRow, bad_row
from orchestrator.documents.types import DocumentProblem, ExtractionError, unreadable

BATCH_BYTES = 8_000_000  # target size of a batch, estimated from the average row
BATCH_ROWS = 4096


class ParquetTable:
    """A Parquet file. Rows are numbered from 1. `only` names the columns to read; None reads all."""

    def __init__(self, content: Content, only: tuple[str, ...] | None = None) -> None:
        self._content = content
        self._only = only
        with _opened(content) as file:
            self.columns: tuple[str, ...] = tuple(file.schema_arrow.names)

    def rows(self) -> Iterator[TableRow]:
        only = self._only if self._only is None else [name for name in self._only if name in self.columns]
        with _opened(self._content) as file:
            if only == []:  # without columns, pyarrow yields no rows
                yield from (TableRow(number, {}, 0) for number in range(1, file.metadata.num_rows + 1))
                return
            number = 0
            for batch in file.iter_batches(_batch_rows(file.metadata), columns=only, use_threads=False):
                share = batch.nbytes // max(batch.num_rows, 1)
                for value in _values(_in_microseconds(batch)):
                    number += 1
                    if isinstance(value, Exception):
                        message = f"A value of row {number} cannot be read ({value}); write it again."
                        yield TableRow(number, None, share, bad_row(message))
                    else:
                        yield TableRow(number, value, share)

    def cells(self, row: TableRow) -> Mapping[str, object]:
        cells: Mapping[str, object] = row.raw
        return cells


@contextlib.contextmanager
def _opened(content: Content) -> Iterator[Any]:
    with content.opened() as handle:
        if handle.read(4) == b"PARE":
            raise ExtractionError(
                DocumentProblem.ENCRYPTED, "The Parquet file is encrypted; write it without encryption."
            )
        handle.seek(0)
        try:
            # Without the first two settings, pyarrow holds whole row groups in memory.
            file = pq.ParquetFile(handle, pre_buffer=False, buffer_size=1 << 20, coerce_int96_timestamp_unit="us")
            yield file
        except (ExtractionError, MemoryError):  # pyarrow's ArrowMemoryError is a MemoryError
            raise
        except Exception as error:
            # pyarrow raises a dozen different types on a damaged file.
            reason = str(error).partition("\n")[0][:200]
            raise unreadable(f"The file is damaged or is not Parquet ({reason}); write it again.") from error


def _batch_rows(metadata: Any) -> int:
    unpacked = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    average: int = max(1, unpacked // max(1, metadata.num_rows))
    return max(1, min(BATCH_ROWS, BATCH_BYTES // average))


def _values(batch: pa.RecordBatch) -> Iterator[dict[str, object] | Exception]:
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        # A row has a broken string or a date beyond year 9999. Read each row by itself to find the sound ones.
        for at in range(batch.num_rows):
            try:
                yield batch.slice(at, 1).to_pylist()[0]
            except (ValueError, OverflowError, pa.ArrowException) as error:
                yield error


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without nanoseconds. Python's times lack them, and pyarrow drops them only on request."""
    columns = []
    for column in batch.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            column = column.cast(pa.timestamp("us", kind.tz), safe=False)
        elif pa.types.is_duration(kind) and kind.unit == "ns":
            column = column.cast(pa.duration("us"), safe=False)
        elif pa.types.is_time64(kind) and kind.unit == "ns":
            column = column.cast(pa.time64("us"), safe=False)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
