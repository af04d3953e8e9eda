"""A source of the job file, read: from the path as it was written to a stream of documents."""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.documents import files, tables
from orchestrator.documents.encoding import check_name
from orchestrator.documents.globs import Globs
from orchestrator.documents.types import Document, ExtractionError, UnreadableDocument
from orchestrator.documents.walk import Found, Unlisted, Walk
from orchestrator.errors import InputError

if TYPE_CHECKING:
    from orchestrator.jobspec import DocumentSource


def read(source: DocumentSource, base: Path) -> Iterator[Document | UnreadableDocument]:
    """Stream the documents of `source` in the order of their keys (rows in the order of their table).

    `base` is the job file's folder. Everything that was chosen and not read comes as an UnreadableDocument
    in its place. With `sample`, those documents come whose key has the smallest hashes, so a larger sample
    holds every smaller one; folders and tables that cannot be opened are reported besides.

    Raises InputError: at once for a missing path, a bad pattern or encoding, or a table without
    `text_column`; on iteration for a root that cannot be listed, and at the end if there was nothing.
    """
    return _read(_Opened(source, base))


def fields_of(source: DocumentSource, base: Path) -> frozenset[str] | None:
    """The names that a template may use for some document of `source`, besides `text`.

    None when only the rows can tell (JSONL, or a table that cannot be opened). Raises InputError as `read`.
    """
    opened = _Opened(source, base)
    known: set[str] = set()
    for entry in opened.entries():
        if isinstance(entry, Unlisted):
            continue
        table = opened.table(entry)
        if table is None:
            kind = files.kind_of(entry.relative)
            known |= files.FIELDS | files.FORMAT_FIELDS.get(kind, frozenset())
        elif source.text_column is not None:
            try:
                columns = tables.open_table(table, keys_only=True).columns
            except (OSError, ExtractionError):
                return None
            if columns is None:
                return None
            known |= {"row", *filter(None, columns)}
    return frozenset(known - {"text"})


class _Opened:
    """A source whose settings were checked. Raises InputError."""

    def __init__(self, source: DocumentSource, base: Path) -> None:
        self.source = source
        self.path = os.path.join(base, os.path.expanduser(source.path))  # noqa: PTH111, PTH118 (bytes may be no UTF-8)
        check_name(source.encoding)
        self.is_file = not _is_folder(self.path, source)
        if self.is_file:
            _check_lone_file(source, self.path)
        self._walk = Walk(
            self.path,
            Globs(source.include or ("**/*",), field="include"),
            Globs(source.exclude, field="exclude", hidden=True),
        )
