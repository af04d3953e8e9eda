"""The content of a job file as types: documents, tasks, models, deadline, budget and output.

`json_schema()` is published for editors as `docs/reference/job.schema.json`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from orchestrator.settings.deadlines import deadline_at
from orchestrator.settings.strict import Ladder, PlainPath, VariableName
from orchestrator.settings.task_spec import JobFilePart, Name, Task

MAX_BUDGET = 9_000_000
"""Maximum budget in US dollars. A larger amount, in picodollars, exceeds a database's integers."""
MAX_COUNT = 2**53


class Pictures(JobFilePart):
    """Settings for pages that orch sends to a model as pictures."""

    resolution: int = Field(150, ge=36, le=600, description="dots per inch of rendered pages")
    longest_side: int = Field(1568, ge=64, le=8000, description="pixels; larger pictures are scaled down")
    pages: int = Field(20, ge=1, le=100, description="maximum pictures of a document; one with more is reported")
    grayscale: bool = Field(False, description="without colors: fewer bytes, as many tokens")
    max_bytes: int = Field(10_000_000, ge=10_000, le=MAX_COUNT, description="maximum bytes of a document's pictures")


_Render = Literal["auto", "text", "image", "both", "ocr"]


_Encodings = str | tuple[str, ...]


class DocumentSource(JobFilePart):
    """An entry of `documents:`: a folder, a file or an SQL query. A table has a document in each row."""

    BARE: ClassVar[str] = "path"

    name: str | None = Field(None, min_length=1, description="name for `sources` of tasks; default: the path")
    path: str = Field(
        "", description="folder or file, relative to the job file's folder, or an address such as s3://…"
    )
    query: str | None = Field(None, min_length=1, description="SQL query that gives the table; in place of `path`")
    url_env: VariableName | None = Field(
        None, description="the variable that holds the address of the query's database"
    )
    include: tuple[str, ...] = Field((), description="globs relative to path; default: every supported file")
    exclude: tuple[str, ...] = Field((), description="globs of files that are not read")
    text_column: str | None = Field(None, description="tables: the column that holds the text")
    id_column: str | None = Field(None, description="tables: the column with a row's name; default: the row's number")
    encoding: str | dict[str, str] | None = Field(
        None,
        description="encoding of text files that are not UTF-8, or several to try in order; `auto`: the most likely "
        "one; {PATTERN: ENCODING}: by file name, where the first matching pattern counts",
    )
    follow_links: bool = Field(False, description="also follow links that lead out of the folder, if you trust them")
    sample: int | None = Field(None, ge=1, le=MAX_COUNT, description="a stable sample of this many documents")
    max_bytes: int = Field(50_000_000, ge=1, le=MAX_COUNT, description="bytes; a larger document is only reported")
    render: _Render = Field(
        "text", description="PDF pages and pictures: auto sends pages without usable text as pictures, ocr reads them"
    )
    pictures: Pictures = Pictures.model_construct()

    @field_validator("include", "exclude", mode="before", json_schema_input_type=str | tuple[str, ...])
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("encoding", mode="before", json_schema_input_type=_Encodings | dict[str, _Encodings] | None)
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {pattern: cls._in_order(one) for pattern, one in value.items()}
        is_list = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        return ", ".join(value) if is_list else value

    @model_validator(mode="after")
    def _is_one_source(self) -> DocumentSource:
        if self.query is None:
            if "path" not in self.model_fields_set:
                raise ValueError("name a `path`, or a `query` with its `url_env`")
            if self.url_env is not None:
                raise ValueError("`url_env` is for a `query`")
            return self
        if self.path or self.include or self.exclude:
            raise ValueError("a `query` has no `path`, `include` or `exclude`")
        if self.name is None or self.url_env is None or self.text_column is None:
            raise ValueError("a `query` needs `name`, `url_env` and `text_column`")
        return self

    @property
    def called(self) -> str:
        """Name by which tasks refer to the source."""
        return self.name or self.path


class Clean(JobFilePart):
    """Parts of documents to remove before tasks use the documents."""

    BARE: ClassVar[str] = "whitespace"

    whitespace: bool = Field(False, description="runs of spaces and of empty lines, invisible characters")
    boilerplate: bool = Field(False, description="headers and footers that repeat on most pages of a document")

    @property
    def is_on(self) -> bool:
        """True if anything is removed."""
        return self.whitespace or self.boilerplate


class Allow(JobFilePart):
    """Backends and locations to which the rows may go."""

    BARE: ClassVar[str] = "location"

    backends: tuple[str, ...] | None = Field(None, description="names of backends; default: all")
    location: Literal["any", "local"] = Field("any", description="`local`: no row goes to a hosted backend")


OutputFormat = Literal["jsonl", "csv", "parquet", "xlsx", "batch"]
FORMATS: Mapping[str, OutputFormat] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".xlsx": "xlsx",
}  # fmt: skip
"""Formats by the ending of a file's name, in lower case."""
ENDINGS_HINT = f"name it {', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]}, or name the format"


def format_of(place: str) -> OutputFormat | None:
    """Return the format of a file or URL by the ending of its name, or None."""
    return FORMATS.get(PurePath(place).suffix.lower())


def has_unknown_ending(place: str) -> bool:
    """True if the name of a file or URL has an ending that is not a known format."""
    return bool(PurePath(place).suffix) and format_of(place) is None


class Output(JobFilePart):
    """Destination of the merged rows at the job's end. `orch fetch` writes these rows at any time.

    The destination is a `path` with its `format`, or a `table` with the address of its database.
    """

    BARE: ClassVar[str] = "path"

    path: PlainPath | None = Field(
        None, min_length=1, description="file, relative to the job file's folder, or an address such as s3://…"
    )
    format: OutputFormat = Field("jsonl", description="default: by the ending of `path`, else jsonl")
    shape: Literal["long", "wide"] | None = Field(
        None, description="a table row per document (wide), or per row (long, the default)"
    )
    columns: tuple[str, ...] | None = Field(
        None, min_length=1, description="the table's columns, in this order; default: all"
    )
    excel: bool | None = Field(None, description="CSV for spreadsheets: read as UTF-8, and no cell is a formula")
    partition: Literal["night"] | None = Field(None, description="path is a folder with a folder for each night")
    overwrite: bool | None = Field(None, description="whether a file that orch did not write may be overwritten")
    table: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        max_length=63,
        description="SQL table that gets a table row for each row",
    )
    url: str | None = Field(None, description="the table's database: sqlite:///FILE or postgresql://…; no password")
    url_env: VariableName | None = Field(None, description="the variable that holds an address with a password")

    @model_validator(mode="before")
    @classmethod
    def _has_the_format_of_its_ending(cls, given: Any) -> Any:
        path = given.get("path") if isinstance(given, dict) else None
        # A partitioned path is a folder of nights, so its name has no ending.
        if not isinstance(path, str) or given.get("format") is not None or given.get("partition") is not None:
            return given
        if path.endswith(("/", "\\")):
            raise ValueError(f"{path!r} is a folder: name a file in it, such as {path}answers.csv")
        if has_unknown_ending(path):
            raise ValueError(f"the ending of {path!r} names no format: {ENDINGS_HINT}")
        return {**given, "format": format_of(path) or "jsonl"}

    @field_validator("path", "url")
    @classmethod
    def _tells_no_secret(cls, value: str | None) -> str | None:
        # No passwords here: the job file is stored with the job, and users may share it.
        if value is not None and re.search(r"://[^/]*:[^/]*@|://.*password=", value):
            raise ValueError(
                "must not contain a password: `url_env` names the variable of a table's, a storage has its own"
            )
        return value

    @field_validator("url")
    @classmethod
    def _is_a_database(cls, value: str | None) -> str | None:
        if value is not None and not re.match(r"(sqlite:///|postgres(ql)?://).", value):
            raise ValueError("is not a database such as sqlite:///FILE or postgresql://HOST/NAME")
        return value

    @model_validator(mode="after")
    def _is_one_place(self) -> Output:
        addresses = [self.url, self.url_env]
        if (self.path is None) == (self.table is None):
            raise ValueError("name either a `path` or a `table`")
        if self.table is not None and (addresses.count(None) != 1 or self.format != "jsonl" or self.partition):
            raise ValueError("a `table` has either `url` or `url_env`, and no format or partition")
        if self.table is not None and (self.shape or self.columns):
            raise ValueError(
                "`shape` and `columns` are for a `path`: a `table` has all columns, and a table row for each row"
            )
        if self.format == "batch" and (self.shape or self.columns):
            raise ValueError("`shape` and `columns` are for tables: result lines of a batch have a form of their own")
        if self.excel is not None and self.format != "csv":
            raise ValueError("`excel` is for CSV")
        if self.table is not None and self.overwrite is not None:
            raise ValueError("`overwrite` is for a `path`: a job replaces its own rows in a table and no others")
        if self.path is not None and addresses.count(None) != 2:
            raise ValueError("`url` and `url_env` are for a `table`")
        return self


class Canary(JobFilePart):
    """A few rows that go first. If too many fail or they cost too much, the job ends before it sends other rows."""

    BARE: ClassVar[str] = "rows"

    rows: int = Field(20, ge=1, le=1000, description="rows that go first, of all tasks and document lengths")
    max_failed: float = Field(0.25, ge=0, le=1, description="largest share of these rows that may fail")
    max_cost: float = Field(2.0, gt=0, description="maximum cost of these rows, as a multiple of the forecast")


_Documents = str | DocumentSource | Annotated[tuple[DocumentSource, ...], Field(min_length=1)]


class JobSpec(JobFilePart):
    """A whole job file."""

    name: Name
    render: _Render | None = Field(None, description="`render` of each source that does not set it")
    documents: tuple[DocumentSource, ...] = Field(min_length=1)
    tasks: tuple[Task, ...] = Field(min_length=1)
    models: dict[Name, Ladder] = Field(
        default_factory=dict,
        description="alias -> model name, or {backend: model name}, or a list of these from cheap to strong",
    )
    deadline: str | None = Field(None, description="`8h`, `90m`, `2d`, `06:00` (local time) or an ISO time")
    budget: Decimal | None = Field(None, ge=0, le=MAX_BUDGET, description="US dollars; a hard cap")
    target: float = Field(0.99, gt=0, lt=1, description="P(done by the deadline) that a plan must reach")
    late_cost: Decimal | None = Field(
        None, ge=0, le=MAX_BUDGET, description="US dollars for each hour after the deadline; replaces `target`"
    )
    after: str | None = Field(
        None, min_length=1, description="name or id of a job that must succeed before this one begins"
    )
    on_late: Literal["finish", "expire"] = Field("finish", description="fate of rows still open at the deadline")
    clean: Clean = Field(default_factory=Clean, description="default: nothing is removed")
    allow: Allow = Field(default_factory=Allow)
    canary: Canary | None = Field(None, description="a few rows go first; default: all go at once")
    preflight: bool = Field(
        True, description="ask one row first if a hosted model has never answered such requests; or `off`"
    )
    reask: Literal["model_changed"] | None = Field(
        None,
        description="ask rows again if their aliases no longer name the model that answered; default: keep answers",
    )
    gold: str | None = Field(
        None, min_length=1, description="JSONL file of known answers, relative to the job file's folder"
    )
    quality_threshold: float | None = Field(
        None, gt=0, le=1, description="least share of known fields to get right; below it, `output` is not delivered"
    )
    output: Output | None = None
    tags: dict[str, str] = Field(default_factory=dict, description="for cost reports")

    @field_validator("documents", mode="before", json_schema_input_type=_Documents)
    @classmethod
    def _one_source_or_many(cls, value: Any, info: ValidationInfo) -> Any:
        entries = [{"path": value}] if isinstance(value, str) else [value] if isinstance(value, dict) else value
        if (render := info.data.get("render")) is None or not isinstance(entries, (list, tuple)):
            return entries
        return [{"render": render, **one} if isinstance(one, dict) else one for one in entries]

    @field_validator("deadline")
    @classmethod
    def _is_a_deadline(cls, value: str | None) -> str | None:
        if value is not None:
            deadline_at(value, datetime.now(UTC))
        return value

    @field_validator("quality_threshold")
    @classmethod
    def _has_gold(cls, value: float | None, info: ValidationInfo) -> float | None:
        # A `gold` that is not text has its own error.
        if value is not None and info.data.get("gold", "") is None:
            raise ValueError("needs `gold`, the file of known answers")
        return value

    def tasks_of(self, source: DocumentSource) -> tuple[Task, ...]:
        """Return the tasks that are asked about a source's documents."""
        return tuple(task for task in self.tasks if task.sources is None or source.called in task.sources)

    def sources_of(self, task: Task) -> tuple[DocumentSource, ...]:
        """Return the sources whose documents a task is asked about."""
        return tuple(source for source in self.documents if task.sources is None or source.called in task.sources)


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the job file, for editors."""
    schema = JobSpec.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "orch job file"}
