"""CSV in the dialects that spreadsheets write: four delimiters, quoted line breaks, any encoding."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping

from orchestrator.documents.content import Content
from orchestrator.documents.lines import Blanks, TooLong, lines, too_large, utf8_chunks
from orchestrator.documents.rows import TableRow, bad_row
from orchestrator.documents.types import DocumentProblem, ExtractionError

DELIMITERS = (",", ";", "\t", "|")
SNIFF_LINES = 50
SNIFF_BYTES = 64 * 1024
MOST_COLUMNS = 10_000
MOST_HEADER_BYTES = 1_000_000


class CsvTable:
    """A CSV file. Rows are numbered from 1, without the header. Messages also name the line."""

    def __init__(self, content: Content, encoding: str | None, expected: tuple[str, ...] = ()) -> None:
        """Read the header. `expected` are column names that reveal the delimiter. Raises OSError, ExtractionError."""
        self._content = content
        self._encoding = encoding
        self._limit = limit = content.limit
        # The limit is global to the process, so raise it but never lower it. Lines are bounded by `limit` anyway.
        csv.field_size_limit(max(csv.field_size_limit(), limit))
        head = self._head()
        self._delimiter = _delimiter(head, expected)
        header = next((row for row in csv.reader(head, delimiter=self._delimiter) if row), None)
        if header is None:
            raise ExtractionError(DocumentProblem.EMPTY, "The table is empty; add rows, or exclude it.")
        if len(header) > MOST_COLUMNS:
            raise bad_row(f"The table has {len(header):,} columns, more than {MOST_COLUMNS:,}; exclude it.")
        self.columns = tuple(name.strip() for name in header)

    def rows(self) -> Iterator[TableRow]:
        feed = _Feed(self._lines(), self._limit)
        reader = csv.reader(feed, delimiter=self._delimiter)
        number = -1  # the header is row 0
        while True:
            feed.begin()
            try:
                cells = next(reader, None)
            except _TooLarge as error:
                number += 1
                yield TableRow(number, None, error.size, too_large(error.size, self._limit))
                continue
            except csv.Error as error:
                number += 1
                yield TableRow(number, None, feed.size, bad_row(f"Line {feed.first}: {error}; correct it."))
                continue
            number += feed.passed
            if cells is None:
                return
            if not cells:  # a blank line
                continue
            number += 1
            if number and not _is_blank(cells):
                yield TableRow(number, cells, feed.size, self._misfit(number, cells, feed))

    def cells(self, row: TableRow) -> Mapping[str, object]:
        # Spreadsheets write nameless columns, which hold nothing.
        return {name: cell for name, cell in zip(self.columns, row.raw, strict=True) if name}

    def _misfit(self, number: int, cells: list[str], feed: _Feed) -> ExtractionError | None:
        if feed.torn:
            message = f"A quote opened in row {number} (line {feed.first}) is never closed; close it."
            return bad_row(message, feed.size)
        if len(cells) == len(self.columns):
            return None
        return bad_row(
            f"Row {number} (line {feed.first}) has {len(cells)} cells where the header has {len(self.columns)}; "
            "correct it, or quote cells that hold the delimiter.",
            feed.size,
        )

    def _lines(self) -> Iterator[bytes | TooLong | Blanks]:
        pieces = utf8_chunks(self._content.pieces(), self._encoding, checked=True)
        return lines(_plain_newlines(pieces), self._limit)

    def _head(self) -> list[str]:
        head: list[str] = []
        size = 0
        for line in itertools.islice(self._lines(), SNIFF_LINES):
            if isinstance(line, Blanks):
                continue
            if isinstance(line, TooLong) or len(line) > MOST_HEADER_BYTES:
                if not head:
                    raise bad_row(f"The header is longer than {MOST_HEADER_BYTES:,} bytes; is this a table?")
                break
            head.append(line.decode("utf-8") + "\n")
            size += len(line)
            if size > SNIFF_BYTES:
                break
        return head


class _TooLarge(Exception):
    def __init__(self, size: int) -> None:
        self.size = size


class _Feed:
    def __init__(self, source: Iterator[bytes | TooLong | Blanks], limit: int) -> None:
        self._source = source
        self._limit = limit
        self._line = 0
        self.begin()

    def begin(self) -> None:
        self.first = self._line + 1
        self.size = 0
        self.torn = False  # the file ended inside the record
        self.passed = 0  # blank lines before the record
        self._quotes = 0

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        for line in self._source:
            if isinstance(line, Blanks):
                self._line += line.number
                if self.size:
                    return self._to_parser(b"\n" * (line.number - 1))
                continue
            self._line += 1
            if isinstance(line, TooLong):
                self.size += line.size
                self._quotes += line.quotes
                raise self._skip_record()
            if self.size or not line.isspace():
                return self._to_parser(line)
            self.passed += 1
        self.torn = self.size > 0
        raise StopIteration

    def _to_parser(self, line: bytes) -> str:
        if not self.size:
            self.first = self._line
        self.size += len(line) + 1
        self._quotes += line.count(b'"')
        if self.size > self._limit + 1:
            raise self._skip_record()
        return line.decode("utf-8") + "\n"

    def _skip_record(self) -> _TooLarge:
        """Skip the rest of a record that is too large, up to the line that closes its quote. Return the error."""
        while self._quotes % 2 and (line := next(self._source, None)) is not None:
            if isinstance(line, Blanks):
                self._line += line.number
                self.size += line.number
                continue
            self._line += 1
            if isinstance(line, TooLong):
                self.size += line.size
                self._quotes += line.quotes
            else:
                self.size += len(line) + 1
                self._quotes += line.count(b'"')
        return _TooLarge(self.size)


def _is_blank(cells: list[str]) -> bool:
    """True for an empty row. Spreadsheets write thousands of empty rows below a table."""
    return not cells[0].strip() and not "".join(cells).strip()


def _plain_newlines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces without NUL, and with `\\n` line ends. A `\\r` at the end of a piece waits for the next
    piece.
    """
    held = b""
    for piece in pieces:
        data = held + piece
        held = b"\r" if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)].replace(b"\0", b"")
        yield data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
    if held:
        yield b"\n"


def _delimiter(head: list[str], expected: tuple[str, ...]) -> str:
    def score(delimiter: str) -> tuple[int, float, int]:
        rows = [row for row in csv.reader(head, delimiter=delimiter) if row]
        header = [name.strip() for name in rows[0]] if rows else []
        fitting = sum(len(row) == len(header) for row in rows) / len(rows) if len(header) > 1 else 0.0
        return sum(name in header for name in expected), fitting, len(header)

    return max(DELIMITERS, key=score)
