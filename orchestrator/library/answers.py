"""Rows of a job as typed values, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import msgspec
from pydantic import BaseModel, ValidationError

from orchestrator.core.errors import RowError, StorageError, UsageError
from orchestrator.core.model import Job
from orchestrator.core.money import money
from orchestrator.library.context import Context
from orchestrator.library.frames import CellType, NewColumn, as_json
from orchestrator.library.html_tables import html_table
from orchestrator.pipeline import merged_lines
from orchestrator.pipeline.finish.outputs.kinds import Plain, Struct, kind_of
from orchestrator.pipeline.finish.outputs.layout import VECTOR, WHOLE, read

T = TypeVar("T")
Schema = type[BaseModel] | Mapping[str, Any]
SHOWN = 20
"""Rows of a table in a notebook."""
_TYPES = {
    Plain.TEXT: CellType.TEXT, Plain.INTEGER: CellType.INTEGER, Plain.NUMBER: CellType.NUMBER,
    Plain.BOOLEAN: CellType.BOOLEAN,
}  # fmt: skip


class AnswerFields(dict[str, Any]):
    """An answer that is a JSON object; its fields are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the answer has no field {name!r}") from None


class AnswerRow(msgspec.Struct, Generic[T], frozen=True):
    """A row with its outcome: an `answer`, or an `error`.

    `document` names the row or file, `route` is the backend that answered, `cost` is in dollars.
    """

    document: str
    answer: T | None
    error: RowError | None
    cost: Decimal
    route: str | None
    model: str | None
    custom_id: str
    state: str


class AnswerType(Generic[T]):
    """The type of a question's answers: a pydantic model, a JSON Schema, or text."""

    def __init__(self, schema: Schema | None, *, is_vector: bool = False) -> None:
        self._is_vector = is_vector
        self.model = schema if isinstance(schema, type) else None
        if self.model is not None and not issubclass(self.model, BaseModel):
            raise UsageError(f"schema: {self.model.__name__} is not a pydantic model", hint="or give a JSON Schema")
        self.json_schema: dict[str, Any] | None = None
        if schema is not None:
            self.json_schema = self.model.model_json_schema() if self.model else dict(_mapping(schema))

    @property
    def name(self) -> str | None:
        """Name of the model, None for other answers."""
        return None if self.model is None else self.model.__name__

    def fields(self) -> dict[str, CellType]:
        """Return the columns of the answers; one column `answer` for answers without named fields."""
        if self.json_schema is None:
            return {VECTOR: CellType.ANY} if self._is_vector else {WHOLE: CellType.TEXT}
        kind = kind_of(self.json_schema)
        if not isinstance(kind, Struct):
            return {WHOLE: _TYPES.get(kind, CellType.ANY) if isinstance(kind, Plain) else CellType.ANY}
        types = {
            name: _TYPES.get(inner, CellType.ANY) if isinstance(inner, Plain) else CellType.ANY
            for name, inner in kind.fields
        }
        if self.model is None:
            return types
        names = {(field.alias or name): name for name, field in self.model.model_fields.items()}
        formats = self.json_schema["properties"]
        return {names.get(name, name): _dated(type_, formats.get(name, {})) for name, type_ in types.items()}

    def parse(self, output: Any, raw: bytes) -> T:
        """Return an answer as its type. Raises ValidationError."""
        if self.model is not None:
            return self.model.model_validate_json(raw)  # type: ignore[return-value]
        return _attributes(output)  # type: ignore[no-any-return]

    def cells(self, answer: T | None, fields: Iterable[str]) -> list[Any]:
        """Return an answer's value for each column."""
        if answer is None:
            return [None for _ in fields]
        if isinstance(answer, BaseModel):
            dumped = answer.model_dump()
            return [_plain(dumped.get(name)) for name in fields]
        if isinstance(answer, dict) and list(fields) != [WHOLE]:
            return [answer.get(name) for name in fields]
        is_cell = isinstance(answer, str) or self._is_vector or self.json_schema is not None
        return [answer if is_cell else as_json(answer)]


def _mapping(schema: Any) -> Mapping[str, Any]:
    if not isinstance(schema, Mapping):
        raise UsageError(f"schema: {type(schema).__name__} is not a pydantic model or a JSON Schema")
    return schema


def _dated(type_: CellType, schema: Mapping[str, Any]) -> CellType:
    """Return the type of a model's field: a date is text in JSON, but not in Python."""
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    formats = {one.get("format") for one in options}
    if type_ is CellType.TEXT and formats != {None}:
        return CellType.DATE if formats == {"date"} else CellType.ANY
    return type_


def _attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return AnswerFields({name: _attributes(inner) for name, inner in value.items()})
    return [_attributes(inner) for inner in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Return a value of a model without enums and sets, which frames do not have."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value


def answer_rows(lines: Iterable[bytes], type_: AnswerType[T]) -> Iterator[AnswerRow[T]]:
    """Yield the rows of merged lines; the parts of a long document are in the row of the whole."""
    for line in lines:
        row, output, raw = read(line)
        if row.stage == "map":
            continue
        answer, error = None, None
        if row.status == "succeeded":
            try:
                answer = type_.parse(output, raw)
            except ValidationError as mismatch:
                error = RowError(f"the answer does not fit {type_.name}: {mismatch}", code="schema_mismatch")
        else:
            code, message = (row.status, None) if row.error is None else (row.error.code, row.error.message)
            error = RowError(message or f"this row is {row.status}", code=code)
        origin = row.provenance
        yield AnswerRow(
            row.document, answer, error, origin.cost_usd, origin.backend, origin.model, row.custom_id, row.status
        )


def finished_lines(context: Context, job: Job, *, style: str = "jsonl", is_merged: bool = False) -> Iterator[bytes]:
    """Return the merged lines of a finished job.

    `is_merged` says that the job has just ended, so the merged rows in the home are current. Raises StorageError.
    """
    merged = context.home.merged(job.id, style)
    if is_merged and merged.exists():
        return _lines_of(merged)
    return merged_lines(context.store, context.home, job, style=style)


def _lines_of(merged: Path) -> Iterator[bytes]:
    """Yield the lines of a file without line ends. Raises StorageError."""
    try:
        with merged.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")
    except OSError as error:
        raise StorageError(f"the result file {merged} cannot be read: {error.strerror}") from error


class Answers(Sequence[AnswerRow[T]]):
    """The rows of a job in input order."""

    def __init__(self, rows: Sequence[AnswerRow[T]], type_: AnswerType[T]) -> None:
        self._rows = rows
        self._type = type_

    @overload
    def __getitem__(self, index: int) -> AnswerRow[T]: ...
    @overload
    def __getitem__(self, index: slice) -> Answers[T]: ...
    def __getitem__(self, index: int | slice) -> AnswerRow[T] | Answers[T]:
        if isinstance(index, slice):
            return Answers(self._rows[index], self._type)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def cost(self) -> Decimal:
        """Sum of the rows' cost in dollars."""
        return sum((row.cost for row in self._rows), Decimal(0))

    @property
    def failed(self) -> list[AnswerRow[T]]:
        """Rows without an answer."""
        return [row for row in self._rows if row.error is not None]

    def raise_failed(self) -> None:
        """Raise the first row's error, with the number of all, if any row failed."""
        if not (failed := self.failed):
            return
        first = failed[0].error
        assert first is not None, "only rows with an error failed"
        hint = f"{len(failed)} of {len(self)} rows failed; leave out raise_on_error to get them as values"
        raise RowError(f"{failed[0].document}: {first.message}", code=first.code, hint=hint)

    def __repr__(self) -> str:
        return f"<Answers: {len(self)} rows, {len(self.failed)} failed, {money(self.cost)}>"

    def _repr_html_(self) -> str:
        fields = list(self._type.fields())
        rows = [
            [row.document, *self._type.cells(row.answer, fields), row.error and row.error.code, money(row.cost)]
            for row in self._rows[:SHOWN]
        ]
        more = f"{len(self) - SHOWN:,} more rows" if len(self) > SHOWN else ""
        return html_table(["document", *fields, "error", "cost"], rows, more)


def answer_columns(rows: Sequence[AnswerRow[T]], type_: AnswerType[T], prefix: str) -> list[NewColumn]:
    """Return the columns that rows add to a frame: the answers' fields, `error` and `cost`."""
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


_decode = msgspec.json.Decoder().decode


def completions(lines: Iterable[bytes], parse: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the id of each result line of a batch with its body, by `parse`, or with the RowError of a failed row."""
    for line in lines:
        row = _decode(line)
        response, error = row.get("response"), row.get("error")
        body = None if response is None else response.get("body")
        if response is not None and 200 <= response["status_code"] < 300 and error is None:
            yield row["custom_id"], parse(body)
            continue
        told = error or (body.get("error") if isinstance(body, dict) else None) or {}
        message = str(told.get("message") or f"HTTP {response and response['status_code']}")
        yield row["custom_id"], RowError(message, code=str(told.get("code") or told.get("type") or "failed"))
