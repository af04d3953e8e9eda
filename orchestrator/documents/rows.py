"""The shared interface of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from orchestrator.documents.types import DocumentProblem, ExtractionError


class TableRow(NamedTuple):
    """A row as cut from the table; `Table.cells` parses `raw`. `problem` is set if that is impossible."""

    number: int  # from 1; for JSONL the line, otherwise the record after the header
    raw: Any
    size: int  # bytes
    problem: ExtractionError | None = None
    label: str = ""  # the row's name in place of its number
    has_id: bool = False  # the id names the row, since its number changes as rows come and go

    @property
    def name(self) -> str:
        """The name of the row in messages."""
        return "The row" if self.has_id else f"Row {self.number}"


class Table(Protocol):
    """A table that is read from front to back. Opening and iterating raise OSError and ExtractionError."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns; None if every row has its own."""

    def rows(self) -> Iterator[TableRow]:
        """Yield the rows in order; blank lines are left out, but count in the numbers of JSONL."""

    def cells(self, row: TableRow) -> Mapping[str, object]:
        """Map columns to values. Raises ExtractionError (bad_row, encoding)."""


def bad_row(message: str, size: int | None = None, setting: str | None = None) -> ExtractionError:
    return ExtractionError(DocumentProblem.BAD_ROW, message, size, setting)
