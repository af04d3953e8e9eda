"""Functions that worker processes run. They read files and split tables into rows.

Arguments and results are plain tuples because only plain values pass between processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice

from orchestrator.core.bounded.memory import ask_for_more
from orchestrator.documents import files, tables
from orchestrator.documents.encoding import whole
from orchestrator.documents.files import DocumentFile
from orchestrator.documents.kinds import CONTAINERS
from orchestrator.documents.plugins import Plugin
from orchestrator.documents.tables import TableFile
from orchestrator.documents.types import (
    Document,
    DocumentProblem,
    ExtractionError,
    Picture,
    Render,
    UnreadableDocument,
)

BATCH_ROWS = 200
BATCH_BYTES = 100_000
BATCH_SECONDS = 0.2
LOOK_ROWS = 8
"""Rows between two checks of the clock."""
Plain = tuple[object, ...]


def file(*about: object) -> Iterator[list[Plain]]:
    """Yield the document of a `DocumentFile`, or its problem."""
    yield [_plain(files.read(_file_of(about)))]


def sent(about: Plain, data: bytes) -> Iterator[list[Plain]]:
    """Yield what `file` yields, for bytes sent from another machine."""
    yield [_plain(files.read_bytes(_file_of(about), data))]


def _file_of(about: Plain) -> DocumentFile:
    given = DocumentFile(*about)  # type: ignore[arg-type]
    plugin = None if given.plugin is None else Plugin(*given.plugin)
    return given._replace(plugin=plugin, render=_render(given.render))


def parts(about: Plain, wanted: AbstractSet[str] | None, begin: int, end: int | None) -> Iterator[list[Plain]]:
    """Yield the results of `parts.documents` in batches, then the file's own problem, if any."""
    from orchestrator.documents import parts as parts_of

    file = TableFile(*about)  # type: ignore[arg-type]
    batch: list[Plain] = []
    size = 0
    try:
        for found in parts_of.documents(_with_plugins(file), wanted, begin, end):
            if isinstance(found, Document | UnreadableDocument):
                batch.append(_plain(found))
                size += found.size or 0
            elif isinstance(found, parts_of.Unconverted):
                key, path, data, fields = found
                batch.append((whole(key), whole(path), data, _whole_value(fields)))
                size += len(data)
            else:
                batch.append(tuple(found))
            if size > BATCH_BYTES or len(batch) >= BATCH_ROWS:
                yield batch
                batch, size = [], 0
    except (ExtractionError, OSError) as error:
        batch.append(_plain(unreadable(file.key, error)))
    if batch:
        yield batch


def part_keys(*about: object) -> Iterator[list[str]]:
    from orchestrator.documents import parts as parts_of

    try:
        found = parts_of.keys(_with_plugins(TableFile(*about)))  # type: ignore[arg-type]
        while batch := list(map(whole, islice(found, BATCH_ROWS))):
            yield batch
    except (ExtractionError, OSError):
        return


def _with_plugins(file: TableFile) -> TableFile:
    return file._replace(plugins=tuple(Plugin(*one) for one in file.plugins), render=_render(file.render))


def _render(about: Plain | None) -> Render | None:
    if about is None:
        return None
    render = Render(*about)  # type: ignore[arg-type]
    if render.is_ocr:
        ask_for_more()  # OCR needs more memory than other readers
    return render


def rows(about: Plain, wanted: AbstractSet[str] | None, first: int) -> Iterator[list[Plain] | None]:
    """Yield the documents and problems of a `TableFile` in batches, then the table's own problem, if any."""
    batch: list[Plain] = []
    size, began = 0, time.monotonic()
    for found in _rows(TableFile(*about), wanted, first):  # type: ignore[arg-type]
        if found is not None:
            batch.append(_plain(found))
            size += found.size or 0
        if (
            found is None
            or size > BATCH_BYTES
            or len(batch) >= BATCH_ROWS
            or (not len(batch) % LOOK_ROWS and time.monotonic() - began > BATCH_SECONDS)
        ):
            yield batch or None
            batch, size, began = [], 0, time.monotonic()
    if batch:
        yield batch


def _rows(
    table: TableFile, wanted: AbstractSet[str] | None, first: int
) -> Iterator[Document | UnreadableDocument | None]:
    try:
        yield from tables.documents(table, wanted, first)
    except (ExtractionError, OSError) as error:
        yield unreadable(table.key, error)


def keys(*about: object) -> Iterator[list[str]]:
    """Yield the keys of all documents of a `TableFile` in batches.

    The keys end at an error, which reading the table reports.
    """
    file = TableFile(*about)  # type: ignore[arg-type]
    try:
        found = _keys_of_parts(file) if file.kind in CONTAINERS.values() else tables.keys(file)
        while batch := list(map(whole, islice(found, BATCH_ROWS))):
            yield batch
    except (ExtractionError, OSError):
        return


def _keys_of_parts(file: TableFile) -> Iterator[str]:
    from orchestrator.documents import parts as parts_of

    found = parts_of.documents(_with_plugins(file))
    return (one.key for one in found if not isinstance(one, parts_of.Passed | parts_of.Begin))


def columns(*about: object) -> Iterator[Plain]:
    """Yield the `Columns` of a `TableFile`; nothing if unreadable."""
    try:
        found = tables.columns(TableFile(*about))  # type: ignore[arg-type]
    except (ExtractionError, OSError):
        return
    if found is not None:
        yield tuple(map(whole, found.names)), found.fixed


def unreadable(key: str, error: ExtractionError | OSError) -> UnreadableDocument:
    """Return the problem of a whole file, folder or table."""
    found = error if isinstance(error, ExtractionError) else files.io_problem(error)
    return UnreadableDocument(key, key.rpartition("/")[2], found.code, found.message, found.size, found.setting)


def _plain(found: Document | UnreadableDocument) -> Plain:
    """Return a result as plain values for the main process. Every string can be written as UTF-8."""
    key, name = whole(found.key), whole(found.name)
    if isinstance(found, Document):
        pictures = tuple(map(tuple, found.pictures))
        fields = {whole(name): _whole_value(value) for name, value in found.fields.items()}
        return key, name, whole(found.text), found.digest, found.size, fields, pictures, found.notes
    return key, name, found.code.value, whole(found.message), found.size, found.setting


def _whole_value(value: object) -> object:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, Mapping):
        return {_whole_value(name): _whole_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return list(map(_whole_value, value))
    return tuple(map(_whole_value, value)) if isinstance(value, tuple) else value


def from_plain(found: Plain) -> Document | UnreadableDocument:
    if len(found) == 8:
        pictures = tuple(Picture(*one) for one in found[6])  # type: ignore[attr-defined]
        return Document(*found[:6], pictures, found[7])  # type: ignore
    key, name, code, message, size, setting = found
    return UnreadableDocument(key, name, DocumentProblem(code), message, size, setting)  # type: ignore[arg-type]
