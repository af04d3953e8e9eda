"""Frames of rows: reads their columns as plain values, and adds columns to the same kind of frame."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from orchestrator.core.errors import UsageError

Record = dict[str, Any]


class CellType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DATE = "date"
    MONEY = "money"
    ANY = "any"  # nested, mixed or unknown


class NewColumn(Struct, frozen=True):
    """A column that answers add. A row without a value has None."""

    name: str
    type: CellType
    values: Sequence[Any]


class Frame(Protocol):
    """The caller's rows, in order."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns that a prompt can use."""

    def records(self, names: Sequence[str]) -> Iterator[Record]:
        """Yield each row with these columns only."""

    def row_name(self, number: int) -> str:
        """Return a row's name: its position, counted from 0, and its index label if that differs."""

    def with_columns(self, columns: Sequence[NewColumn]) -> Any:
        """Return the caller's frame with more columns; kind, rows and index stay the same."""


def frame_of(rows: Any) -> Frame:
    """Return the caller's rows as a frame. Raises UsageError for an unknown kind."""
    for base in type(rows).__mro__:
        if (kind := _KINDS.get((base.__module__.partition(".")[0], base.__name__))) is not None:
            return kind(rows)
    if isinstance(rows, list | tuple) and all(isinstance(row, Mapping) for row in rows):
        return _Records(rows)
    name = f"{type(rows).__module__}.{type(rows).__qualname__}".removeprefix("builtins.")
    hint = next((_CURES[base.__name__] for base in type(rows).__mro__ if base.__name__ in _CURES), _FRAMES)
    if isinstance(rows, list | tuple):
        number, row = next((number, row) for number, row in enumerate(rows) if not isinstance(row, Mapping))
        hint = _TEXTS if isinstance(row, str) else _ROWS
        name = f"a {name} whose row {number} is {type(row).__name__}"
    raise UsageError(f"{name} is not a frame of rows", hint=_ITERATORS if isinstance(rows, Iterator) else hint)


_FRAMES = "give a pandas or polars DataFrame, a pyarrow Table, a datasets Dataset, or a list of dicts"
_ROWS = "every row is a dict: row.model_dump() of a pydantic model, dataclasses.asdict(row) of a dataclass"
_TEXTS = 'every row is a dict: give [{"text": text} for text in texts]'
_ITERATORS = "it can be read only once: give list(rows)"
_COLUMN = 'give a frame with this column, such as pandas.DataFrame({"text": column})'
_FILES = "for files, call orch.documents(path).map(prompt)"
_CURES = {
    "str": _FILES, "PurePath": _FILES,
    "LazyFrame": "call .collect() first", "Series": _COLUMN, "ChunkedArray": _COLUMN, "Array": _COLUMN,
    "ndarray": _COLUMN, "RecordBatch": "give pyarrow.Table.from_batches([batch])",
    "DatasetDict": 'choose a split, such as rows["train"]', "IterableDataset": "give list(rows)",
    "dict": "give a list with a dict for each row, or pandas.DataFrame(rows) for columns",
}  # fmt: skip
"""Hints for values that are almost a frame, by class name."""


class _Numbered:
    def row_name(self, number: int) -> str:
        return f"row {number}"


class _Records(_Numbered):
    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(str(name) for row in self._rows for name in row))

    def records(self, names: Sequence[str]) -> Iterator[Record]:
        for row in self._rows:
            yield {name: row.get(name) for name in names}

    def with_columns(self, columns: Sequence[NewColumn]) -> list[Record]:
        found: list[Record] = [dict(row) for row in self._rows]
        for column in columns:
            for row, value in zip(found, column.values, strict=True):
                row[column.name] = value
        return found


class _Library(_Numbered):
    """A frame of another library. Most libraries call the columns `column_names`."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    @property
    def columns(self) -> list[str]:
        return list(self._frame.column_names)


_PANDAS_DTYPES = {
    CellType.TEXT: "string", CellType.INTEGER: "Int64", CellType.NUMBER: "Float64", CellType.BOOLEAN: "boolean",
}  # fmt: skip


class _Pandas(_Library):
    @property
    def columns(self) -> list[str]:
        return [name for name in self._frame.columns if isinstance(name, str)]

    def row_name(self, number: int) -> str:
        label = self._frame.index[number]
        return super().row_name(number) if str(label) == str(number) else f"row {number}, index {label}"

    def records(self, names: Sequence[str]) -> Iterator[Record]:
        if not names:
            return iter([{} for _ in range(len(self._frame))])
        values = [self._frame[name].tolist() for name in names]
        return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))

    def with_columns(self, columns: Sequence[NewColumn]) -> Any:
        pandas = importlib.import_module("pandas")
        found = self._frame.copy(deep=False)
        for column in columns:
            # An array is added by position. A series would be matched by label, and an index may repeat labels.
            found[column.name] = pandas.array(list(column.values), dtype=_PANDAS_DTYPES.get(column.type, object))
        return found


class _Polars(_Library):
    @property
    def columns(self) -> list[str]:
        return list(self._frame.columns)

    def records(self, names: Sequence[str]) -> Iterator[Record]:
        if not names:
            return iter([{} for _ in range(self._frame.height)])
        found: Iterator[Record] = self._frame.select(list(names)).iter_rows(named=True)
        return found

    def with_columns(self, columns: Sequence[NewColumn]) -> Any:
        polars = importlib.import_module("polars")
        dtypes = {
            CellType.TEXT: polars.String, CellType.INTEGER: polars.Int64, CellType.NUMBER: polars.Float64,
            CellType.BOOLEAN: polars.Boolean, CellType.DATE: polars.Date, CellType.MONEY: polars.Decimal(38, 12),
        }  # fmt: skip

        def series(column: NewColumn) -> Any:
            make = polars.Series
            return _fitting(
                lambda values: make(column.name, values, dtype=dtypes.get(column.type), strict=True), column
            )

        return self._frame.with_columns([series(column) for column in columns])


class _Arrow(_Library):
    def records(self, names: Sequence[str]) -> Iterator[Record]:
        if not names:
            yield from ({} for _ in range(self._frame.num_rows))
            return
        for batch in self._frame.select(list(names)).to_batches(max_chunksize=10_000):
            yield from batch.to_pylist()

    def with_columns(self, columns: Sequence[NewColumn]) -> Any:
        found = self._frame
        for column in columns:
            array = arrow_array(column)
            at = found.schema.get_field_index(column.name)
            found = found.append_column(column.name, array) if at < 0 else found.set_column(at, column.name, array)
        return found


def arrow_array(column: NewColumn) -> Any:
    """Return a column as an Arrow array. If the values have no common type, they become JSON text."""
    pyarrow: Any = importlib.import_module("pyarrow")
    types = {
        CellType.TEXT: pyarrow.string(), CellType.INTEGER: pyarrow.int64(), CellType.NUMBER: pyarrow.float64(),
        CellType.BOOLEAN: pyarrow.bool_(), CellType.DATE: pyarrow.date32(),
        CellType.MONEY: pyarrow.decimal128(38, 12),
    }  # fmt: skip
    return _fitting(lambda values: pyarrow.array(values, types.get(column.type)), column)


class _Dataset(_Library):
    def records(self, names: Sequence[str]) -> Iterator[Record]:
        if not names:
            return iter([{} for _ in range(len(self._frame))])
        # Without a format, rows hold plain Python values, whatever format the caller has set on the dataset.
        return (dict(row) for row in self._frame.with_format(None).select_columns(list(names)))

    def with_columns(self, columns: Sequence[NewColumn]) -> Any:
        datasets: Any = importlib.import_module("datasets")
        pyarrow: Any = importlib.import_module("pyarrow")
        found = self._frame
        for column in columns:
            if column.name in found.column_names:
                found = found.remove_columns(column.name)
            array = arrow_array(column)
            feature = datasets.Features.from_arrow_schema(pyarrow.schema([(column.name, array.type)]))[column.name]
            found = found.add_column(column.name, array.to_pylist(), feature=feature)
        return found


_KINDS: Mapping[tuple[str, str], Callable[[Any], Frame]] = {
    ("pandas", "DataFrame"): _Pandas,
    ("polars", "DataFrame"): _Polars,
    ("pyarrow", "Table"): _Arrow,
    ("datasets", "Dataset"): _Dataset,
}


def _fitting(make: Callable[[list[Any]], Any], column: NewColumn) -> Any:
    """Make a typed column. If the values have no common type, they become JSON text."""
    values = list(column.values)
    try:
        return make(values)
    except (TypeError, ValueError, OverflowError):
        return make([None if value is None else as_json(value) for value in values])


def as_json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=_any_value).decode()


def _any_value(value: Any) -> Any:
    try:
        return json_value(value)
    except TypeError:
        return str(value)  # a paid answer must be shown in any case


def json_value(value: Any) -> Any:
    """Convert another library's value for JSON: missing values to None, numbers to Python's.

    Raises TypeError for a value whose `str()` would only show its memory address.
    """
    if hasattr(value, "model_dump") and not isinstance(value, type):  # pydantic, as in OpenAI's client
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return dict(value)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return value.tolist()
    if isinstance(value, type) or getattr(type(value), "__str__", None) is getattr(object, "__str__"):  # noqa: B009
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} has no text".removeprefix("builtins."))
    return str(value)
