"""What a job file says, as a type: documents, tasks, models, deadline, budget, and where the rows go.

`json_schema()` is what `docs/reference/job.schema.json` publishes for editors.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from orchestrator.core.model import MAX_TOKENS
from orchestrator.settings.aliases import Ladder
from orchestrator.settings.deadlines import deadline_at

MAX_BUDGET = 9_000_000
"""US dollars; picodollars of more than that do not fit a database's integers."""


MAX_COUNT = 2**53


AUTO: Literal["auto"] = "auto"


DEFAULT_MAX_TOKENS = 512


_Bound = Annotated[
    Annotated[Annotated[int, Field(ge=1, le=MAX_TOKENS)], Tag("int")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if value == AUTO else "int"),
]


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=40)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


class Pictures(_Strict):
    """How pages go to a model as pictures."""

    resolution: int = Field(150, ge=36, le=600, description="dots per inch of rendered pages")
    longest_side: int = Field(1568, ge=64, le=8000, description="pixels; larger pictures are scaled down")
    pages: int = Field(20, ge=1, le=100, description="most pictures of a document; one with more is reported")
    grayscale: bool = Field(False, description="without colors: fewer bytes, as many tokens")
    max_bytes: int = Field(10_000_000, ge=10_000, le=MAX_COUNT, description="of all pictures of a document, packed")


_Render = Literal["auto", "text", "image", "both"]


class DocumentSource(_Strict):
    """One entry of `documents:`: a folder of files, or one file; tables give a document per row."""

    name: str | None = Field(None, min_length=1, description="what tasks call it in `sources`; default: its path")
    path: str = Field(
        "", description="folder or file, relative to the job file's folder, or an address such as s3://…"
    )
    query: str | None = Field(None, min_length=1, description="SQL whose rows are a table; instead of `path`")
    url_env: str | None = Field(None, description="the variable that holds the address of the query's database")
    include: tuple[str, ...] = Field((), description="globs relative to path; default: every supported file")
    exclude: tuple[str, ...] = Field((), description="globs to leave out")
    text_column: str | None = Field(None, description="tables: the column that holds the text")
    id_column: str | None = Field(None, description="column that names a row; default: its number")
    encoding: str | None = Field(None, description="encoding of text files; default: found by itself")
    follow_links: bool = Field(False, description="also links that lead out of the folder; to be trusted by you")
    sample: int | None = Field(None, ge=1, le=MAX_COUNT, description="a stable sample of so many documents")
    max_bytes: int = Field(50_000_000, ge=1, le=MAX_COUNT, description="a larger document is reported, not read")
    render: _Render = Field(
        "text", description="PDF pages and pictures: auto sends pages without usable text as pictures"
    )
    pictures: Pictures = Pictures()

    @field_validator("include", "exclude", mode="before", json_schema_input_type=str | tuple[str, ...])
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

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
        """What tasks call it."""
        return self.name or self.path


class Long(_Strict):
    """How a document that is too long for one request is asked about: in parts, and then about their answers."""

    part_tokens: int = Field(
        6000, ge=100, le=MAX_TOKENS, description="most tokens of a part; a longer document has several"
    )
    overlap_tokens: int = Field(
        200,
        ge=0,
        le=MAX_TOKENS,
        description="how much of the part before each part repeats; at most half of part_tokens",
    )
    reduce: str = Field(
        min_length=1, description="Jinja2; the parts' answers are put before it unless it uses {{ answers }}"
    )
    reduce_model: str | None = Field(None, description="alias; default: the task's")
    reduce_tokens: int = Field(
        32_000,
        ge=1,
        le=MAX_TOKENS,
        description="most tokens of the request with the answers; beyond them the document fails",
    )

    @model_validator(mode="after")
    def _overlap_is_the_lesser_part(self) -> Long:
        if 2 * self.overlap_tokens > self.part_tokens:
            raise ValueError("`overlap_tokens` may be half of `part_tokens` at most")
        return self


class Task(_Strict):
    """One question asked of every document."""

    id: Name
    sources: tuple[str, ...] | None = Field(
        None, min_length=1, description="names or paths of the `documents` it is asked of; default: all"
    )
    prompt: str = Field(min_length=1, description="Jinja2; the document is put before it unless it uses {{ text }}")
    system: str | None = Field(None, description="Jinja2; goes before everything else")
    model: str = Field(description="an alias declared under `models`, here or in orch.toml")
    max_tokens: _Bound = Field(
        DEFAULT_MAX_TOKENS, description="upper bound of the answer, in tokens; `auto`: learned from earlier answers"
    )
    max_document_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="longer documents are cut, and it is recorded"
    )
    long: Long | None = Field(None, description="ask long documents in parts, and make one answer of theirs")
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: tuple[str, ...] | None = None
    output_schema: dict[str, Any] | None = Field(
        None, alias="schema", description="JSON Schema that the answer must fit"
    )
    extra: dict[str, Any] = Field(default_factory=dict, description="further fields of the request body, as they are")
    retries: int = Field(
        0, ge=0, le=3, description="how often a model is shown what was wrong with its answer, and asked again"
    )
    cache: bool = Field(True, description="whether an answer to the very same request, of any job, will do")

    @field_validator("sources", mode="before", json_schema_input_type=str | tuple[str, ...] | None)
    @classmethod
    def _one_source_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def aliases(self) -> dict[tuple[str, ...], str]:
        """The aliases of the models that the task asks, by the field that names them."""
        more = None if self.long is None else self.long.reduce_model
        return {("model",): self.model} | ({} if more is None else {("long", "reduce_model"): more})

    @field_validator("output_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            from jsonschema import Draft202012Validator, SchemaError

            try:
                Draft202012Validator.check_schema(value)
            except SchemaError as error:
                place = ".".join(map(str, error.path))
                raise ValueError(f"is not a JSON Schema: {place + ': ' if place else ''}{error.message}") from None
            _check_references(value)
        return value

    @field_validator("extra")
    @classmethod
    def _extra_is_extra(cls, value: dict[str, Any]) -> dict[str, Any]:
        taken = {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "response_format"}
        for name in value:
            if name in taken or name == "stream":
                raise ValueError(f"`{name}` may not stand here: it has a field of its own or is set by orch")
            if name.startswith("guided_"):
                raise ValueError(
                    f"`{name}` was removed from vLLM, which ignores it in silence; "
                    "use `schema`, or `structured_outputs` here"
                )
        return value


def _check_references(schema: dict[str, Any]) -> None:
    """Raises ValueError for a `$ref` that leads nowhere in the schema itself: nothing is fetched for an answer."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    def walk(resolver: Any, part: Any) -> None:
        if isinstance(part, list):
            for inner in part:
                walk(resolver, inner)
        elif isinstance(part, dict):
            if isinstance(part.get("$id"), str):
                resolver = resolver.in_subresource(DRAFT202012.create_resource(part))
            reference = part.get("$ref")
            if isinstance(reference, str):
                try:
                    resolver.lookup(reference)
                except Unresolvable:
                    raise ValueError(f"is not a JSON Schema: nothing is at {reference!r}") from None
            for name, inner in part.items():
                if name not in ("const", "enum", "default", "examples"):
                    walk(resolver, inner)

    resource = DRAFT202012.create_resource(schema)
    walk(Registry().with_resource("", resource).resolver_with_root(resource), schema)


class Clean(_Strict):
    """What is taken out of documents before they are asked about."""

    whitespace: bool = Field(False, description="runs of blanks and of empty lines, invisible characters")
    boilerplate: bool = Field(False, description="headers and footers that repeat on most pages of a document")

    @property
    def is_on(self) -> bool:
        """Whether anything is."""
        return self.whitespace or self.boilerplate


class Allow(_Strict):
    """Where the rows may go."""

    backends: tuple[str, ...] | None = Field(None, description="names of backends; default: all")
    location: Literal["any", "local"] = Field("any", description="`local`: never leaves for a hosted backend")


class Output(_Strict):
    """Where the merged rows are written when the job ends (`orch fetch` gives them at any time).

    `path` and `format`, or `table` and the address of its database.
    """

    path: str | None = Field(
        None, min_length=1, description="file, relative to the job file's folder, or an address such as s3://…"
    )
    format: Literal["jsonl", "csv", "parquet", "batch"] = "jsonl"
    partition: Literal["night"] | None = Field(None, description="path is a folder with a folder for each night")
    overwrite: bool | None = Field(None, description="whether a file may be overwritten that orch did not write")
    table: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=63, description="SQL table that gets a row per row"
    )
    url: str | None = Field(None, description="the table's database: sqlite:///FILE or postgresql://…; no password")
    url_env: str | None = Field(None, description="the variable that holds the address, where it has a password")

    @field_validator("path", "url")
    @classmethod
    def _tells_no_secret(cls, value: str | None) -> str | None:
        # The job file is kept with the job, and is passed around.
        if value is not None and re.search(r"://[^/]*:[^/]*@|://.*password=", value):
            raise ValueError("may hold no password: `url_env` names the variable of a table's, a storage has its own")
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
        if self.table is not None and self.overwrite is not None:
            raise ValueError("`overwrite` is for a `path`: a job replaces its own rows in a table and no others")
        if self.path is not None and addresses.count(None) != 2:
            raise ValueError("`url` and `url_env` are for a `table`")
        return self


class Canary(_Strict):
    """A few rows go first; where they come back badly, the job ends before the others are sent."""

    rows: int = Field(20, ge=1, le=1000, description="how many go first, spread over tasks and document lengths")
    max_failed: float = Field(0.25, ge=0, le=1, description="the share of them that may fail")
    max_cost: float = Field(2.0, gt=0, description="what they may cost, times the forecast")


_Documents = str | DocumentSource | Annotated[tuple[DocumentSource, ...], Field(min_length=1)]


class JobSpec(_Strict):
    """A whole job file."""

    name: Name
    render: _Render | None = Field(None, description="`render` of every source that has none of its own")
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
        None, ge=0, le=MAX_BUDGET, description="US dollars an hour late; the deadline then has its price"
    )
    after: str | None = Field(
        None, min_length=1, description="name or id of a job that has to finish well before this one begins"
    )
    on_late: Literal["finish", "expire"] = Field("finish", description="rows that a missed deadline leaves behind")
    clean: Clean = Field(default_factory=Clean, description="off unless asked for")
    allow: Allow = Field(default_factory=Allow)
    canary: Canary | None = Field(None, description="a few rows go first; off unless asked for")
    gold: str | None = Field(
        None, min_length=1, description="JSONL file of known answers, relative to the job file's folder"
    )
    quality_threshold: float | None = Field(
        None, gt=0, le=1, description="the share of known fields that answers must have, or `output` is not delivered"
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
        # A `gold` that is not text has an error of its own.
        if value is not None and info.data.get("gold", "") is None:
            raise ValueError("needs `gold`, the file of known answers")
        return value

    def tasks_of(self, source: DocumentSource) -> tuple[Task, ...]:
        """The tasks that are asked of a source's documents."""
        return tuple(task for task in self.tasks if task.sources is None or source.called in task.sources)

    def sources_of(self, task: Task) -> tuple[DocumentSource, ...]:
        """The sources of whose documents a task is asked."""
        return tuple(source for source in self.documents if task.sources is None or source.called in task.sources)

    @field_validator("tasks")
    @classmethod
    def _task_ids_differ(cls, value: tuple[Task, ...]) -> tuple[Task, ...]:
        seen: set[str] = set()
        for task in value:
            if task.id in seen:
                raise ValueError(f"two tasks have the id {task.id!r}")
            seen.add(task.id)
        return value


@cache
def json_schema() -> dict[str, Any]:
    """The JSON Schema of the job file, for editors."""
    schema = JobSpec.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "orch job file"}
