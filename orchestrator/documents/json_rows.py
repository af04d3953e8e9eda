"""JSON as a table: a list of objects, or one object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from orchestrator.documents.content import Content
from orchestrator.documents.encoding import decode
from orchestrator.documents.rows import TableRow, bad_row
from orchestrator.documents.types import unreadable


class JsonTable:
    """A JSON file. Rows are numbered from 1, in the order of the list."""

    columns = None

    def __init__(self, content: Content, encoding: str | None) -> None:
        self._content = content
        self._encoding = encoding

    def rows(self) -> Iterator[TableRow]:
        text = decode(self._content.whole(), self._encoding).lstrip().encode()
        try:
            if text.startswith(b"["):
                rows = msgspec.json.decode(text, type=list[msgspec.Raw])
            else:
                rows = [msgspec.json.decode(text, type=msgspec.Raw)] if text else []
        except (msgspec.DecodeError, RecursionError) as error:
            raise unreadable(f"It is not valid JSON ({error}); save it again, or exclude it.") from error
        for number, row in enumerate(rows, 1):
            yield TableRow(number, row, len(bytes(row)))

    def cells(self, row: TableRow) -> Mapping[str, object]:
        try:
            value = msgspec.json.decode(row.raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise bad_row(f"Item {row.number} is not valid JSON ({error}); fix or remove it.", row.size) from error
        if not isinstance(value, dict):
            raise bad_row(f"Item {row.number} is not an object; write it as {{...}} or remove it.", row.size)
        return value
