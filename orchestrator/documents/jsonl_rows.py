"""JSON Lines: one object per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from orchestrator.core.json_decoders import json_decoder
from orchestrator.documents.content import Content
from orchestrator.documents.lines import Blanks, TooLong, lines, too_large, utf8_chunks
from orchestrator.documents.rows import TableRow, bad_row
from orchestrator.documents.types import DocumentProblem, ExtractionError


class JsonlTable:
    """A JSONL file. Rows are numbered by line, including blank lines, as in an editor."""

    columns = None

    def __init__(self, content: Content, encoding: str | None) -> None:
        self._content = content
        self._encoding = encoding
        self._limit = content.limit
        self._decode = json_decoder().decode

    def rows(self) -> Iterator[TableRow]:
        pieces = utf8_chunks(self._content.pieces(), self._encoding, checked=False)
        number = 0
        for line in lines(pieces, self._limit):
            number += line.number if isinstance(line, Blanks) else 1
            if isinstance(line, Blanks):
                continue
            if isinstance(line, TooLong):
                yield TableRow(number, None, line.size, too_large(line.size, self._limit))
            elif line and not line.isspace():
                yield TableRow(number, line, len(line))

    def cells(self, row: TableRow) -> Mapping[str, object]:
        line: bytes = row.raw
        if b"\0" in line:
            line = line.replace(b"\0", b"")
        try:
            value = self._decode(line)
        except UnicodeDecodeError as error:
            raise ExtractionError(
                DocumentProblem.ENCODING,
                f"Line {row.number} is not UTF-8; convert the file, or set `encoding` if it is another throughout.",
                row.size,
            ) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_row(f"Line {row.number} is not valid JSON ({error}); fix or remove it.", row.size) from error
        if not isinstance(value, dict):
            raise bad_row(f"Line {row.number} is JSON but not an object; write it as {{...}} or remove it.", row.size)
        return value
