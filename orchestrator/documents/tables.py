"""Rows of CSV, JSONL, Parquet and spreadsheet files as documents."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from typing import NamedTuple

from orchestrator.core.errors import InputError
from orchestrator.core.near_names import meant
from orchestrator.documents.content import Content
from orchestrator.documents.encoding import clean
from orchestrator.documents.kinds import JSON, SHEETS
from orchestrator.documents.lines import too_large
from orchestrator.documents.plugins import Plugin
from orchestrator.documents.rows import Table, TableRow, bad_row
from orchestrator.documents.types import (
    Document,
    DocumentProblem,
    ExtractionError,
    Render,
    UnreadableDocument,
)
from orchestrator.documents.unpacking import LEAST_UNPACKED, ROW_BYTES, UnpackLimit

MOST_VALUES = 100_000
"""Maximum values of a row, including values in lists and objects."""
MOST_DEPTH = 64
MOST_ID = 500
"""Maximum bytes of an id, which has to fit into a database index."""
MOST_SHOWN = 60
MOST_NAMED = 20
ALIVE_ROWS = 1000
"""Skipped rows between two signs of life."""
NAMING_ROWS = 1000
"""Number of first rows that are read to find the columns of a table without a header."""


class TableFile(NamedTuple):
    """A file of many documents (a table, an archive, mail); `within` is as in `files.DocumentFile`."""

    path: str
    kind: str  # the name of a `kinds.Kind`
    key: str
    name: str
    text_column: str | None
    id_column: str | None
    encoding: str | None
    max_bytes: int
    within: str | None = None
    packing: str = ""
    max_unpacked: int = LEAST_UNPACKED  # bytes, or a multiple of the file's size: see `unpacking`
    converts: bool = False  # LibreOffice converts parts in formats that orch cannot read
    plugins: tuple[Plugin, ...] = ()  # may read parts
    render: Render | None = None

    @property
    def named_columns(self) -> dict[str, str | None]:
        """Columns that the job file names, by setting."""
        return {"text_column": self.text_column, "id_column": self.id_column}

    @property
    def content(self) -> Content:
        return Content(self.path, self.within, self.packing, self.max_bytes, None, self.max_unpacked)


class _Keyed(NamedTuple):
    key: str
    name: str
    row: TableRow
    cells: Mapping[str, object] | None  # parsed already if the id is in a column
    problem: ExtractionError | None


def documents(
    file: TableFile,
    wanted: AbstractSet[str] | None = None,
    first: int = 0,
    content: Content | None = None,
    unpacking: UnpackLimit | None = None,
) -> Iterator[Document | UnreadableDocument | None]:
    """Yield a document or a problem for each row from index `first` on; `wanted` limits the rows to these keys.

    Yields None as a sign of life while rows are skipped. `content`, if given, is read instead of the file.
    `unpacking` counts the bytes of the rows; by default, the file has a limit of its own.

    Raises OSError, MemoryError, and ExtractionError for problems of the whole file.
    """
    table = open_table(file, keys_only=False, content=content)
    _check_columns(table, file)
    unpacking = unpacking or UnpackLimit.of_file(file.path, file.max_unpacked)
    # Skipped rows count, too: a file's total must not depend on where reading starts.
    beside = ROW_BYTES + sum(map(len, table.columns or ()))
    is_empty = True
    for index, keyed in enumerate(_keyed(table, file)):
        is_empty = False
        unpacking.add(keyed.row.size + beside)
        if index < first or (wanted is not None and keyed.key not in wanted):
            if not index % ALIVE_ROWS:
                yield None
            continue
        try:
            document = _document(table, file, keyed)
        except ExtractionError as error:
            yield UnreadableDocument(keyed.key, keyed.name, error.code, error.message, keyed.row.size, error.setting)
            continue
        unpacking.add(max(0, document.size - keyed.row.size - beside))
        yield document
    if is_empty:
        raise ExtractionError(DocumentProblem.EMPTY, "The table has no rows; add some, or exclude it.")


def keys(file: TableFile) -> Iterator[str]:
    """Yield the keys of all rows, with as little parsing as possible. Raises OSError, ExtractionError."""
    table = open_table(file, keys_only=True)
    _check_columns(table, file)
    return (keyed.key for keyed in _keyed(table, file))


class Columns(NamedTuple):
    """Names of a table's columns, in order. If not `fixed`, later rows may have more columns."""

    names: tuple[str, ...]
    fixed: bool


def columns(file: TableFile) -> Columns | None:
    """Return the columns of a table or of its first rows; None if no row is readable. Raises as `keys` does."""
    table = open_table(file, keys_only=True)
    if table.columns is not None:
        return Columns(table.columns, fixed=True)
    names: dict[str, None] = {}
    for row in islice(table.rows(), NAMING_ROWS):
        with suppress(ExtractionError):
            if row.problem is None:
                names |= dict.fromkeys(table.cells(row))
    return Columns(tuple(names), fixed=False) if names else None


def has_all(tables: Sequence[Columns], settings: Mapping[str, str | None]) -> bool:
    return all(any(name in table.names for table in tables) for name in filter(None, settings.values()))


def check_columns(tables: Sequence[Columns], settings: Mapping[str, str | None], source: str) -> None:
    """Raise InputError if a setting names a column that no table of the source has exactly once."""
    names = list(dict.fromkeys(column for table in tables for column in table.names if column))
    for setting, name in settings.items():
        if name is None or any(table.names.count(name) == 1 for table in tables):
            continue
        if name in names:
            raise InputError(f"{source} has several columns named {name!r}", field=setting, hint="rename one of them")
        whose = f"{source} has no" if len(tables) == 1 else f"none of the {len(tables):,} tables in {source} has a"
        rows = "" if all(table.fixed for table in tables) else f" in its first {NAMING_ROWS:,} rows"
        near = get_close_matches(name.casefold(), [column.casefold() for column in names], 1)
        meant = "".join(f"did you mean {column!r}? " for column in names if column.casefold() in near)
        raise InputError(f"{whose} column {name!r}{rows}", field=setting, hint=f"{meant}{names_words(names)}")


def names_words(names: Sequence[str]) -> str:
    there = ", ".join(column[:MOST_SHOWN] for column in names[:MOST_NAMED]) or "none"
    return f"columns there: {there}" + (f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else "")


def open_table(file: TableFile, *, keys_only: bool, content: Content | None = None) -> Table:
    """Open a file as a table of its kind. Raises OSError, ExtractionError."""
    if file.text_column is None:
        raise _without_text_column(file, is_inside=content is not None)
    content = content or file.content
    expected = tuple(filter(None, file.named_columns.values()))
    if file.kind == "jsonl":
        from orchestrator.documents.jsonl_rows import JsonlTable

        return JsonlTable(content, file.encoding)
    if file.kind == JSON:
        from orchestrator.documents.json_rows import JsonTable

        return JsonTable(content, file.encoding)
    if file.kind == "csv":
        from orchestrator.documents.csv_rows import CsvTable

        return CsvTable(content, file.encoding, expected)
    if file.kind == SHEETS:
        from orchestrator.documents.sheets import SheetTable

        return SheetTable(content, expected)
    from orchestrator.documents.parquet_rows import ParquetTable

    only = () if file.id_column is None else (file.id_column,)
    return ParquetTable(content, only if keys_only else None)


def _without_text_column(file: TableFile, *, is_inside: bool) -> ExtractionError:
    found = None
    if not is_inside:
        with suppress(OSError, ExtractionError):
            found = columns(file._replace(text_column=""))
    there = "" if found is None else f" ({names_words([name for name in found.names if name])})"
    return ExtractionError(
        DocumentProblem.NO_TEXT_COLUMN,
        f"This is a table: set `text_column` of its source to the column with the text{there}, or exclude it.",
    )


def _check_columns(table: Table, file: TableFile) -> None:
    if table.columns is None:
        return
    for setting, name in file.named_columns.items():
        if name is None:
            continue
        if name not in table.columns:
            there = ", ".join(column[:MOST_SHOWN] for column in table.columns[:MOST_NAMED] if column)
            near = meant(name, filter(None, table.columns))
            cure = f"{near} Correct" if near else "correct"
            raise bad_row(
                f"The table has no column {name!r}, only: {there}; {cure} the job file or the table.", None, setting
            )
        if table.columns.count(name) > 1:
            raise bad_row(f"The table has several columns named {name!r}; give them different names.", None, setting)


def _keyed(table: Table, file: TableFile) -> Iterator[_Keyed]:
    seen = SeenTexts()
    for row in table.rows():
        cells, problem, ident = None, row.problem, row.label or f"{row.number}"
        if file.id_column is not None:
            try:
                if problem is not None:
                    raise problem
                cells = _cells(table, row)
                ident = _ident(cells, file.id_column, row)
                if not seen.add(ident):
                    raise bad_row(
                        f"Row {row.number} has the id {ident!r} of an earlier row; ids must differ.", row.size
                    )
                row = row._replace(has_id=True)
            except ExtractionError as error:
                # A row without an id gets a unique key, even if another row has the id "row 7".
                ident, problem = f"row {row.number}", error
                while not seen.add(ident):
                    ident += "'"
        yield _Keyed(f"{file.key}#{ident}", f"{file.name}#{ident}", row, cells, problem)


def _ident(cells: Mapping[str, object], column: str, row: TableRow) -> str:
    value = cells.get(column)
    if isinstance(value, bool | dict | list | bytes | None):
        setting = None if column in cells else "id_column"
        told = f"Row {row.number} has no text or number in the id column {column!r}; give it one."
        raise bad_row(told, None, setting)
    ident = str(value).replace("\0", "")
    if not ident.strip():
        raise bad_row(f"Row {row.number} has an empty id in the column {column!r}; give it one.")
    if (size := len(ident.encode("utf-8", "replace"))) > MOST_ID:
        raise bad_row(
            f"Row {row.number} has an id of {size:,} bytes, more than {MOST_ID}; give it another.", row.size
        )
    return ident


def _document(table: Table, file: TableFile, keyed: _Keyed) -> Document:
    row = keyed.row
    if keyed.problem is not None:
        raise keyed.problem
    cells = _cells(table, row) if keyed.cells is None else keyed.cells
    text = _text(cells, file.text_column or "", row)
    canonical = _canonical(cells, row)
    if file.kind in ("parquet", SHEETS) and len(canonical) > file.max_bytes:  # other kinds were measured as lines
        raise too_large(len(canonical), file.max_bytes)
    fields: dict[str, object] = {"row": row.number, **_without_nul(cells, canonical)}
    fields.pop("text", None)
    return Document(keyed.key, keyed.name, text, hashlib.sha256(canonical).hexdigest(), len(canonical), fields)


def _cells(table: Table, row: TableRow) -> Mapping[str, object]:
    try:
        return table.cells(row)
    except MemoryError:
        raise ExtractionError(
            DocumentProblem.MEMORY_LIMIT,
            f"{row.name} takes more memory to read than it may; leave some of it out, or raise `max_memory` "
            "under [documents] in orch.toml.",
            row.size,
        ) from None


def _canonical(cells: Mapping[str, object], row: TableRow) -> bytes:
    import msgspec

    try:
        canonical = msgspec.json.encode(cells, order="sorted", enc_hook=repr)
    except (ValueError, TypeError, RecursionError) as error:
        raise bad_row(f"{row.name} holds a value that cannot be written as JSON ({error}); fix it.") from error
    # Brackets and commas are upper bounds for nesting and for values. Count exactly only if a bound is exceeded.
    if canonical.count(b"{") + canonical.count(b"[") > MOST_DEPTH or canonical.count(b",") > MOST_VALUES:
        _check_nesting(cells.values(), row, [len(cells)], 1)
    return canonical


def _check_nesting(values: Iterable[object], row: TableRow, so_far: list[int], depth: int) -> None:
    if depth > MOST_DEPTH or so_far[0] > MOST_VALUES:
        most = f"{MOST_VALUES:,} values" if depth <= MOST_DEPTH else f"{MOST_DEPTH} levels"
        raise bad_row(f"{row.name} has more than {most} in its lists and objects; leave some out.", row.size)
    for value in values:
        if isinstance(value, list | dict) and value:
            so_far[0] += len(value)
            _check_nesting(value.values() if isinstance(value, dict) else value, row, so_far, depth + 1)


def _text(cells: Mapping[str, object], column: str, row: TableRow) -> str:
    value = cells.get(column)
    if value is None:
        setting = None if column in cells else "text_column"
        told = f"{row.name} has no text in the column {column!r}; fill it in or remove the row."
        raise bad_row(told, None, setting)
    if not isinstance(value, str):
        kind = type(value).__name__
        raise bad_row(f"{row.name} has {kind} instead of text in the column {column!r}; write it as text.")
    text = clean(value)
    if not text or text.isspace():
        raise ExtractionError(DocumentProblem.EMPTY, f"{row.name} has an empty text; fill it in or remove the row.")
    return text


def _without_nul(cells: Mapping[str, object], canonical: bytes) -> Mapping[str, object]:
    if b"\\u0000" not in canonical:
        return cells

    def strip(value: object) -> object:
        if isinstance(value, str):
            return value.replace("\0", "")
        if isinstance(value, dict):
            return {strip(k): strip(v) for k, v in value.items()}
        return [strip(v) for v in value] if isinstance(value, list) else value

    return {str(strip(k)): strip(v) for k, v in cells.items()}


class SeenTexts:
    """A set of strings, stored as 64-bit hashes. Each takes 13 to 27 bytes, so that millions of ids fit in memory."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._used = 0

    def add(self, text: str) -> bool:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        if not self._insert(int.from_bytes(digest) or 1):  # 0 marks a free slot
            return False
        self._used += 1
        if self._used * 5 > len(self._slots) * 3:
            old, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
            for value in old:
                if value:
                    self._insert(value)
        return True

    def _insert(self, value: int) -> bool:
        slots, mask = self._slots, len(self._slots) - 1
        at = value & mask
        while (there := slots[at]) != 0:
            if there == value:
                return False
            at = (at + 1) & mask
        slots[at] = value
        return True
