"""Layouts of merged rows: the columns of a job's table, and the cells of each row. Pure.

The long layout has a table row per merged row, whatever its task; the wide layout has a table row per document. A
task with a schema gets a column per field, `TASK.FIELD`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Protocol

import msgspec

from orchestrator.core.errors import UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.pipeline.finish.outputs.column_types import (
    Kind,
    Plain,
    Struct,
    Unfit,
    VectorOf,
    fitter,
    flattened,
    kind_of,
)

WHOLE, VECTOR = "answer", "vector"
"""Column names for answers that are not objects with named fields."""
Tasks = Mapping[str, Mapping[str, Any] | VectorOf | None]
"""Schemas of the tasks' answers, by task; None for plain text."""


class _Tokens(msgspec.Struct):
    input: int
    cached: int
    cache_write: int
    output: int
    reasoning: int


class _Error(msgspec.Struct):
    code: str
    message: str | None


class _Origin(msgspec.Struct):
    backend: str | None
    upstream: str | None
    model: str | None
    batch_id: str | None
    tier: str | None
    attempt: int
    tokens: _Tokens
    cost_usd: Decimal
    latency_ms: int | None
    finish_reason: str | None
    prompt_version: str
    document_cut_from_tokens: int | None
    carried_from: str | None
    why: str | None
    settled_at: datetime | None = None
    document_sent_as: str | None = None
    document_notes: str | None = None
    cost_estimated: bool = False


class MergedRow(msgspec.Struct):
    """A merged line, as `results.merged_row` writes it."""

    custom_id: str
    document: str
    task: str
    status: str
    output: msgspec.Raw
    error: _Error | None
    provenance: _Origin
    stage: str | None = None
    part: int | None = None
    parts: int | None = None
    quotes: list[dict[str, Any]] | None = None


_decode = json_decoder(MergedRow).decode


def read(line: bytes) -> tuple[MergedRow, Any, bytes]:
    """Parse a merged line. Return it with its decoded output and its output as JSON."""
    try:
        row = _decode(line)
        return row, msgspec.json.decode(row.output), bytes(row.output)
    except RecursionError:  # nested too deeply to decode: shown as received
        # These bytes cannot occur within a JSON string, where quotes are escaped.
        start = line.index(b'"output":') + len(b'"output":')
        end = line.rindex(b',"error":')
        return _decode(line[:start] + b"null" + line[end:]), _DEEP, line[start:end]


_DEEP: Any = object()
_T, _I = Plain.TEXT, Plain.INTEGER
IDENTITY: tuple[tuple[str, Plain], ...] = (
    ("job", _T), ("document", _T), ("task", _T), ("custom_id", _T),
    ("state", _T), ("error_code", _T), ("error_message", _T), (WHOLE, _T),
)  # fmt: skip
PROVENANCE: tuple[tuple[str, Plain], ...] = (
    ("model", _T), ("backend", _T), ("upstream", _T), ("batch_id", _T), ("tier", _T), ("attempt", _I),
    ("cost_usd", Plain.MONEY), ("input_tokens", _I), ("cached_tokens", _I), ("cache_write_tokens", _I),
    ("output_tokens", _I), ("reasoning_tokens", _I), ("latency_ms", _I), ("finish_reason", _T),
    ("prompt_version", _T), ("document_cut_from_tokens", _I), ("carried_from", _T), ("why", _T),
    ("settled_at", Plain.INSTANT), ("stage", _T), ("part", _I), ("parts", _I), ("document_sent_as", _T),
    ("document_notes", _T),
)  # fmt: skip
ON_REQUEST: tuple[tuple[str, Plain], ...] = (("cost_estimated", Plain.BOOLEAN),)
"""Columns that appear only if the user chooses them by name."""
MOST_NAMED = 60


class OutputColumn(msgspec.Struct, frozen=True):
    """A column with its type and a name that is unique regardless of case."""

    name: str
    kind: Kind


class _TaskColumns(msgspec.Struct, frozen=True):
    kind: Kind
    fields: dict[str, Callable[[Any], Any]]
    start: int
    width: int


class TableLayout(Protocol):
    """The columns of a job's table, and the cells of its rows."""

    columns: tuple[OutputColumn, ...]

    def records(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        """Yield the merged lines of each table row, joined by newlines."""

    def cells(self, record: bytes) -> list[Any]:
        """Return the cells of a table row, one per column; None is an empty cell."""


class AnswerColumns:
    """The columns of a job's answers, in the order of its tasks.

    `tasks` has the kind of answers by task. `flat` is for formats without nesting (CSV, SQL): an object becomes a
    column per leaf, and a list becomes JSON text.
    """

    def __init__(self, tasks: Tasks, *, flat: bool) -> None:
        self._flat = flat
        self._tasks: dict[str, _TaskColumns] = {}
        self.named: list[tuple[str, Kind]] = []
        for task, schema in tasks.items():
            if schema is None:
                continue
            kind = schema if isinstance(schema, VectorOf) else kind_of(schema)
            kind = flattened(kind) if flat else kind
            named = list(_named(task, kind, flat=flat))
            self._tasks[task] = _TaskColumns(kind, _fitters(kind), len(self.named), len(named))
            self.named += named

    def fill(self, cells: list[Any], row: MergedRow, output: Any, raw: bytes) -> str | None:
        """Put an answer into the cells of its task. Return the whole answer as text if it does not fit."""
        columns = self._tasks.get(row.task)
        # An answer that failed its check is shown as received.
        if columns is None or output is _DEEP or row.status != "succeeded":
            return _text(output, raw)
        values, fits = _fitted(output, columns)
        spread = list(_leaves(columns.kind, values)) if self._flat else values
        cells[columns.start : columns.start + columns.width] = spread
        return None if fits else _text(output, raw)


class Layout:
    """The long layout: a table row per merged row. The column `answer` has answers that do not fit their columns."""

    def __init__(self, job: str, tasks: Tasks, *, flat: bool, every: bool = False) -> None:
        self._job = job
        self._every = every
        self._answers = AnswerColumns(tasks, flat=flat)
        answers = self._answers.named
        self.answers = slice(len(IDENTITY) - 1, len(IDENTITY) + len(answers))
        """Slice of the answer columns: `answer`, then the columns of fields."""
        self.columns = columns_of((*IDENTITY, *answers, *PROVENANCE, *(ON_REQUEST if every else ())))

    def records(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        return lines

    def cells(self, record: bytes) -> list[Any]:
        """Return the cells of a merged line, one per column; None is an empty cell."""
        row, output, raw = read(record)
        error, origin, tokens = row.error, row.provenance, row.provenance.tokens
        answers: list[Any] = [None] * len(self._answers.named)
        whole = self._answers.fill(answers, row, output, raw)
        return [
            self._job, row.document, row.task, row.custom_id,
            row.status, error and error.code, error and error.message, whole,
            *answers,
            origin.model, origin.backend, origin.upstream, origin.batch_id, origin.tier, origin.attempt,
            origin.cost_usd, tokens.input, tokens.cached, tokens.cache_write,
            tokens.output, tokens.reasoning, origin.latency_ms, origin.finish_reason,
            origin.prompt_version, origin.document_cut_from_tokens, origin.carried_from, origin.why,
            origin.settled_at, row.stage, row.part, row.parts, origin.document_sent_as,
            origin.document_notes, *((origin.cost_estimated,) if self._every else ()),
        ]  # fmt: skip


def columns_of(named: Iterable[tuple[str, Kind]]) -> tuple[OutputColumn, ...]:
    every = tuple(named)
    names = unique(name for name, _ in every)
    return tuple(OutputColumn(name, kind) for name, (_, kind) in zip(names, every, strict=True))


def _text(output: Any, raw: bytes) -> str | None:
    return output if output is None or isinstance(output, str) else raw.decode()


def _named(task: str, kind: Kind, *, flat: bool) -> Iterator[tuple[str, Kind]]:
    if not isinstance(kind, Struct):
        yield f"{task}.{VECTOR if isinstance(kind, VectorOf) else WHOLE}", kind
        return
    for name, inner in kind.fields:
        if flat and isinstance(inner, Struct):
            yield from _named(f"{task}.{name}", inner, flat=True)
        else:
            yield f"{task}.{name}", inner


def _fitters(kind: Kind) -> dict[str, Callable[[Any], Any]]:
    parts = kind.fields if isinstance(kind, Struct) else ((WHOLE, kind),)
    return {name: fitter(inner) for name, inner in parts}


def _fitted(output: Any, columns: _TaskColumns) -> tuple[list[Any], bool]:
    """Return the fields of an answer that fit their columns, and True if all of them fit."""
    given = output if isinstance(columns.kind, Struct) else {WHOLE: output}
    if not isinstance(given, dict):
        return [None] * len(columns.fields), False
    fits, values = given.keys() <= columns.fields.keys(), []
    for name, fitted in columns.fields.items():
        try:  # `suppress` would cost as much as the fit
            values.append(fitted(given.get(name)))
        except Unfit:
            values.append(None)
            fits = False
    return values, fits


def _leaves(kind: Kind, values: list[Any]) -> Iterator[Any]:
    kinds = [inner for _, inner in kind.fields] if isinstance(kind, Struct) else [kind]
    for value, inner in zip(values, kinds, strict=True):
        if isinstance(inner, Struct):
            yield from _leaves(inner, [(value or {}).get(name) for name, _ in inner.fields])
        else:
            yield value


def unique(names: Iterable[str], most: int | None = None) -> list[str]:
    """Make names unique regardless of case by appending a number. `most` is the maximum UTF-8 bytes of a name."""
    taken: set[str] = set()
    found = []
    for name in names:
        number, short = 1, _cut(name, most)
        while short.casefold() in taken:
            number += 1
            ending = f"_{number}"
            short = _cut(name, most and most - len(ending)) + ending
        taken.add(short.casefold())
        found.append(short)
    return found


def _cut(name: str, most: int | None) -> str:
    return name if most is None else name.encode()[:most].decode(errors="ignore")


def _columns_there(name: str, names: Sequence[str]) -> str:
    of_a_row = {column for column, _ in (*IDENTITY, *PROVENANCE, *ON_REQUEST)}
    known = {one.rpartition(".")[2].casefold(): one for one in reversed(names)}
    known |= {one.casefold(): one for one in names}
    found = get_close_matches(name.casefold(), known, 1)
    near = f"did you mean {known[found[0]]!r}?" if found else None
    if near is None and name in of_a_row:
        near = "it is a column of the table with a row per answer: --long, or `shape: long`;"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{near or ''} its columns: {', '.join(names[:MOST_NAMED])}{more}".strip()


class ChosenColumns:
    """Chosen columns of another layout, in a chosen order."""

    def __init__(self, layout: TableLayout, names: Sequence[str]) -> None:
        """Choose columns by name. Raises UsageError for a name that is not a column of the layout."""
        self._layout = layout
        places = {column.name: place for place, column in enumerate(layout.columns)}
        for name in names:
            if name not in places:
                raise UsageError(f"the table has no column {name!r}", hint=_columns_there(name, list(places)))
        self._places = [places[name] for name in dict.fromkeys(names)]
        self.columns = tuple(layout.columns[place] for place in self._places)

    def records(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        return self._layout.records(lines)

    def cells(self, record: bytes) -> list[Any]:
        cells = self._layout.cells(record)
        return [cells[place] for place in self._places]
