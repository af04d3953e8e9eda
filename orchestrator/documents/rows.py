"""The interface that all tables share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from orchestrator.documents.types import DocumentProblem, ExtractionError


class TableRow(NamedTuple):
    """A row of a table. `Table.cells` parses `raw`, unless the row has a `problem`."""

    number: int  # from 1; for JSONL the line, otherwise the record after the header
    raw: Any
    size: int  # bytes
    problem: ExtractionError | None = None
    label: str = ""  # replaces the number in keys, if set
    has_id: bool = False  # messages then omit the number, which changes as rows come and go

    @property
    def name(self) -> str:
        return "The row" if self.has_id else f"Row {self.number}"


class Table(Protocol):
    """A table that is read from front to back. Opening and iterating raise OSError and ExtractionError."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns; None if each row has its own."""

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows in order, without blank lines. The row numbers of JSONL count blank lines, too."""

    def cells(self, row: TableRow) -> Mapping[str, object]:
        """Return a row's values by column. Raises ExtractionError (bad_row, encoding)."""


def bad_row(message: str, size: int | None = None, setting: str | None = None) -> ExtractionError:
    return ExtractionError(DocumentProblem.BAD_ROW, message, size, setting)
