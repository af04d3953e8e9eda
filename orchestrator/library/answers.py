"""Rows of a job as typed values, and a table of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, overload

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from orchestrator.core.batch_api import ResultLine
from orchestrator.core.counts import number_of
from orchestrator.core.errors import RowError, StorageError, UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Job, RequestState
from orchestrator.core.money import money, plain
from orchestrator.library.context import Context
from orchestrator.library.frames import CellType, NewColumn, as_json
from orchestrator.library.html_tables import html_table
from orchestrator.pipeline.finish.finisher import merged_lines
from orchestrator.pipeline.finish.merge import ResultLines
from orchestrator.pipeline.finish.outputs.column_types import Kind, Plain, Struct, kind_of, root_of
from orchestrator.pipeline.finish.outputs.layout import VECTOR, WHOLE, read
from orchestrator.policy.answer_text import response_json

T = TypeVar("T")
Schema = type[Any] | UnionType | Mapping[str, Any]
SHOWN = 20
"""Maximum rows of a table in a notebook."""
_TYPES = {
    Plain.TEXT: CellType.TEXT, Plain.INTEGER: CellType.INTEGER, Plain.NUMBER: CellType.NUMBER,
    Plain.BOOLEAN: CellType.BOOLEAN,
}  # fmt: skip


class AnswerFields(dict[str, Any]):
    """An answer that is a JSON object. Its fields are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the answer has no field {name!r}") from None


class AnswerRow(msgspec.Struct, Generic[T], frozen=True):
    """A row with its outcome: an `answer`, or an `error`.

    `document` names the row or file, `route` is the backend that answered, `cost` is in dollars. `quotes` are the
    answer's quotes with their positions; their fields are also attributes.
    """

    document: str
    answer: T | None
    error: RowError | None
    cost: Decimal
    route: str | None
    model: str | None
    custom_id: str
    state: str
    quotes: Sequence[Any]


class AnsweredRow(AnswerRow[T], Generic[T], frozen=True):
    """A row with an answer."""

    answer: T
    error: None


class FailedRow(AnswerRow[Any], frozen=True):
    """A row without an answer."""

    answer: None
    error: RowError


EndedRow = AnsweredRow[T] | FailedRow
"""A row with an outcome. Checking `error` tells type checkers if the row has an answer."""


class AnswerType(Generic[T]):
    """The type of a question's answers: a type that pydantic knows, a JSON Schema, or text."""

    def __init__(self, schema: Any, *, is_vector: bool = False) -> None:
        self._is_vector = is_vector
        self._adapter: TypeAdapter[Any] | None = None
        self._python_names: list[str] = []
        self.name: str | None = None
        """Name of the type; None if the type has no name."""
        self.json_schema: dict[str, Any] | None = None
        if isinstance(schema, Mapping):
            self.json_schema = dict(schema)
        elif schema is not None:
            self._adapter, self.json_schema = _adapter_of(schema)
            self._python_names = _field_names(schema)
            self.name = schema.__name__ if isinstance(schema, type) else None
        self._kind = None if self.json_schema is None else kind_of(self.json_schema)

    def fields(self) -> dict[str, CellType]:
        """Return the columns of the answers. Answers without named fields have one column, `answer`."""
        if self._kind is None:
            return {VECTOR: CellType.ANY} if self._is_vector else {WHOLE: CellType.TEXT}
        if not isinstance(self._kind, Struct):
            return {WHOLE: _cell_type(self._kind)}
        types = [(name, _cell_type(inner)) for name, inner in self._kind.fields]
        if self._adapter is None:
            return dict(types)
        root = root_of(self.json_schema)
        formats = root.get("properties", {}) if isinstance(root, Mapping) else {}
        # A type's fields and its schema's properties have the same order, even if fields have aliases.
        names = self._python_names if len(self._python_names) == len(types) else [name for name, _ in types]
        return {
            python: _with_date_type(type_, formats.get(name, {}))
            for python, (name, type_) in zip(names, types, strict=True)
        }

    def parse(self, output: Any, raw: bytes) -> T:
        """Parse an answer into its type. Raises ValidationError if `raw` does not fit."""
        if self._adapter is not None:
            return self._adapter.validate_json(raw)  # type: ignore[no-any-return]
        return _attributes(output)  # type: ignore[no-any-return]

    def cells(self, answer: T | None, fields: Iterable[str]) -> list[Any]:
        """Return an answer's value for each column."""
        value: Any = answer
        if self._adapter is not None and answer is not None:
            value = _without_enums(self._adapter.dump_python(answer))
        if isinstance(self._kind, Struct):
            return [value.get(name) if isinstance(value, dict) else None for name in fields]
        is_cell = value is None or isinstance(value, str) or self._is_vector or self.json_schema is not None
        return [value if is_cell else as_json(value)]


def _adapter_of(schema: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    name = schema.__name__ if isinstance(schema, type) else f"{schema!r:.80}"
    try:
        if isinstance(schema, BaseModel | str | int | float | list | tuple | set | bytes):
            raise TypeError("it is a value instead of a type")
        adapter: TypeAdapter[Any] = TypeAdapter(schema)
        return adapter, adapter.json_schema()
    except (PydanticUserError, TypeError, NameError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"schema: {name} is not a type of answers: {reason}",
            hint="give a pydantic model, a dataclass, a TypedDict, or a JSON Schema as a dict",
        ) from None


def _field_names(schema: Any) -> list[str]:
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return list(schema.model_fields)
    return [field.name for field in dataclasses.fields(schema)] if dataclasses.is_dataclass(schema) else []


def _cell_type(kind: Kind) -> CellType:
    return _TYPES.get(kind, CellType.ANY) if isinstance(kind, Plain) else CellType.ANY


def _with_date_type(type_: CellType, schema: Mapping[str, Any]) -> CellType:
    options = [one for one in schema.get("anyOf", [schema]) if isinstance(one, Mapping) and one.get("type") != "null"]
    formats = {one.get("format") for one in options}
    if type_ is CellType.TEXT and formats != {None}:  # dates are text in JSON, but not in Python
        return CellType.DATE if formats == {"date"} else CellType.ANY
    return type_


def _attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return AnswerFields({name: _attributes(inner) for name, inner in value.items()})
    return [_attributes(inner) for inner in value] if isinstance(value, list) else value


def _without_enums(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _without_enums(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_without_enums(inner) for inner in value]
    return value


def answer_rows(lines: Iterable[bytes], type_: AnswerType[T], prefix: str = "") -> Iterator[EndedRow[T]]:
    """Yield the rows of merged lines. A split document has one row, without its parts.

    `prefix`, the job's `name_prefix`, is removed from the names of documents.
    """
    for line in lines:
        row, output, raw = read(line)
        if row.stage == "map":
            continue
        origin, document = row.provenance, row.document.removeprefix(prefix)
        quotes = _attributes(row.quotes or [])
        whence = (plain(origin.cost_usd), origin.backend, origin.model, row.custom_id, row.status, quotes)
        if row.status == "succeeded":
            try:
                yield AnsweredRow(document, type_.parse(output, raw), None, *whence)
                continue
            except ValidationError as mismatch:
                error = RowError(
                    f"the answer does not fit {type_.name or 'the schema'}: {mismatch}", code="schema_mismatch"
                )
        else:
            code, message = (None, None) if row.error is None else (row.error.code, row.error.message)
            error = _row_error(row.status, code, message)
        yield FailedRow(document, None, error, *whence)


def finished_lines(context: Context, job: Job, *, style: str = "jsonl", is_merged: bool = False) -> Iterator[bytes]:
    """Return the merged lines of a finished job.

    `is_merged` means that the job has just ended, so the merged rows in the home are current. Raises StorageError.
    """
    merged = context.home.merged(job.id, style)
    if is_merged and merged.exists():
        return _lines_of(merged)
    return merged_lines(context.store, context.home, job, style=style)


def _lines_of(merged: Path) -> Iterator[bytes]:
    try:
        with merged.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise StorageError(f"the result file {merged} cannot be read: {error.strerror}") from error


def raise_first(rows: Sequence[tuple[str, RowError | None]]) -> None:
    """Raise the first failed row's error, if any, with the row's name and the number of failed rows."""
    if failed := [(name, error) for name, error in rows if error is not None]:
        name, first = failed[0]
        hint = f"{len(failed)} of {number_of(len(rows), 'row')} failed; without raise_on_error, they are values"
        raise RowError(f"{name}: {first.message}", code=first.code, hint=hint)


class Answers(Sequence[EndedRow[T]]):
    """The rows of a job in input order."""

    def __init__(self, rows: Sequence[EndedRow[T]], type_: AnswerType[T]) -> None:
        self._rows = rows
        self._type = type_

    @overload
    def __getitem__(self, index: int) -> EndedRow[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Answers[T]: ...
    def __getitem__(self, index: int | slice) -> EndedRow[T] | Answers[T]:
        if isinstance(index, slice):
            return Answers(self._rows[index], self._type)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def cost(self) -> Decimal:
        """Sum of the rows' cost in dollars."""
        return plain(sum((row.cost for row in self._rows), Decimal(0)))

    @property
    def failed(self) -> list[FailedRow]:
        """Rows without an answer."""
        return [row for row in self._rows if isinstance(row, FailedRow)]

    def raise_failed(self) -> None:
        """Raise the first failed row's error, if any, with the number of failed rows."""
        raise_first([(row.document, row.error) for row in self._rows])

    def __repr__(self) -> str:
        return f"<Answers: {number_of(len(self), 'row')}, {len(self.failed)} failed, {money(self.cost)}>"

    def _repr_html_(self) -> str:
        fields = list(self._type.fields())
        rows = [
            [row.document, *self._type.cells(row.answer, fields), row.error and row.error.code, money(row.cost)]
            for row in self._rows[:SHOWN]
        ]
        more = number_of(len(self) - SHOWN, "more row") if len(self) > SHOWN else ""
        return html_table(["document", *fields, "error", "cost"], rows, more)


def answer_columns(rows: Sequence[EndedRow[T]], type_: AnswerType[T], prefix: str) -> list[NewColumn]:
    """Return the columns that a job adds to a frame: the answers' fields, `error` and `cost`."""
    fields = type_.fields()
    cells = [type_.cells(row.answer, fields) for row in rows]
    columns = [
        NewColumn(f"{prefix}{name}", cell, [values[place] for values in cells])
        for place, (name, cell) in enumerate(fields.items())
    ]
    errors = [None if row.error is None else f"{row.error.code}: {row.error.message}" for row in rows]
    return [
        *columns,
        NewColumn(f"{prefix}error", CellType.TEXT, errors),
        NewColumn(f"{prefix}cost", CellType.MONEY, [row.cost for row in rows]),
    ]


_decode_line = json_decoder(ResultLine).decode
_decode_body = json_decoder().decode


def completions(context: Context, job: Job, parse: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the ids of a finished batch file's rows, each with its parsed response body or its RowError.

    Raises StorageError.
    """
    with closing(ResultLines(context.home.results)) as results:
        for row in context.store.rows.finished(job.id):
            line = results.read(row) if row.state is RequestState.SUCCEEDED else None
            response = None if line is None else _decode_line(line).response
            if response is None:
                yield row.custom_id, _row_error(row.state, row.error_code, row.error_message)
            else:
                yield row.custom_id, parse(_decode_body(response_json(response)))


def _row_error(state: str, code: str | None, message: str | None) -> RowError:
    return RowError(message or f"this row is {state}", code=code or state)
