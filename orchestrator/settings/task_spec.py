"""The tasks of a job file: their questions, kinds, and the limits of their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from orchestrator.core.model import MAX_TOKENS
from orchestrator.core.quote_marks import QUOTES, unmarked
from orchestrator.core.row_codes import NONCE, problem_with
from orchestrator.settings.corrections import LONGEST_NAME, NAME
from orchestrator.settings.strict import Strict

AUTO: Literal["auto"] = "auto"
DEFAULT_MAX_TOKENS = 512
MAX_LABELS = 500
"""Maximum labels of a task. Providers accept up to 1,000 values in the enums of a schema."""
MAX_DIMENSIONS = 16_000
"""Maximum length of a vector; pgvector has the same limit."""

_Bound = Annotated[
    Annotated[Annotated[int, Field(ge=1, le=MAX_TOKENS)], Tag("int")] | Annotated[Literal["auto"], Tag("auto")],
    Discriminator(lambda value: "auto" if value == AUTO else "int"),
]
Name = Annotated[str, Field(pattern=NAME, max_length=LONGEST_NAME)]
TaskKind = Literal["chat", "classify", "embedding"]
Endpoint = Literal["chat", "responses"]
_PROMPTS: Mapping[Any, str] = {"classify": "Which label fits the document best?", "embedding": "{{ text }}"}
"""Default prompts, by kind of task."""
_TEMPLATE_MARKS = ("{{", "{%", "{#")


class JobFilePart(Strict):
    """Base class of the parts of a job file. A field can be set by its name or by its alias."""

    model_config = ConfigDict(populate_by_name=True)


class Long(JobFilePart):
    """Settings for documents too long for one request: how to split them, and how to combine the parts' answers."""

    part_tokens: int = Field(
        6000, ge=100, le=MAX_TOKENS, description="maximum tokens of a part; a longer document is split"
    )
    overlap_tokens: int = Field(
        200,
        ge=0,
        le=MAX_TOKENS,
        description="tokens of the previous part that each part repeats; at most half of part_tokens",
    )
    reduce: str = Field(min_length=1, description="Jinja2; follows the parts' answers unless it uses {{ answers }}")
    reduce_model: str | None = Field(None, description="alias; default: the task's")
    reduce_tokens: int = Field(
        32_000,
        ge=1,
        le=MAX_TOKENS,
        description="maximum tokens of the request with the parts' answers; a larger one fails the document",
    )

    @model_validator(mode="after")
    def _overlap_is_the_lesser_part(self) -> Long:
        if 2 * self.overlap_tokens > self.part_tokens:
            raise ValueError("`overlap_tokens` may be at most half of `part_tokens`")
        return self


def _for_editors(schema: dict[str, Any]) -> None:
    """Make the JSON Schema for editors require `prompt` only for a chat, and `labels` only for a classification."""
    schema["required"].remove("prompt")
    schema["if"] = {"properties": {"kind": {"enum": ["classify", "embedding"]}}, "required": ["kind"]}
    schema["then"] = {
        "if": {"properties": {"kind": {"const": "classify"}}},
        "then": {"required": ["labels"]},
    }
    schema["else"] = {"required": ["prompt"]}


class Task(JobFilePart):
    """A question to ask about every document, or a request for the document's vector.

    Values that the kind implies, such as an embedding's prompt or the schema of labels, are filled in on reading. So
    every task has a prompt, and a schema if its answers need a schema.
    """

    model_config = ConfigDict(json_schema_extra=_for_editors)

    id: Name
    kind: TaskKind = Field("chat", description="kind of answer: text or JSON, one of `labels`, or a vector")
    endpoint: Endpoint = Field("chat", description="`responses`: for models that have no chat completions")
    labels: dict[str, str] | None = Field(
        None, description="classify: the possible labels, as a list or as {LABEL: when it fits}"
    )
    logprobs: bool = Field(
        False, description="classify: ask for token probabilities, which give each answer a probability"
    )
    dimensions: int | None = Field(
        None, ge=1, le=MAX_DIMENSIONS, description="embedding: length of a vector, for models that let you choose it"
    )
    sources: tuple[str, ...] | None = Field(
        None, min_length=1, description="names or paths of the `documents` that the task is about; default: all"
    )
    prompt: str = Field(
        min_length=1,
        description="Jinja2; follows the document unless it uses {{ text }}. "
        "embedding: the text to embed, {{ text }} by default; classify: has a default",
    )
    system: str | None = Field(None, description="Jinja2; the system message")
    model: str = Field(description="an alias declared under `models`, here or in orch.toml")
    max_tokens: _Bound = Field(
        DEFAULT_MAX_TOKENS, description="upper bound of the answer, in tokens; `auto`: learned from earlier answers"
    )
    max_document_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="longer documents are cut, and the cut is recorded"
    )
    long: Long | None = Field(None, description="ask long documents in parts, and combine the answers into one")
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: tuple[str, ...] | None = None
    output_schema: dict[str, Any] | None = Field(
        None, alias="schema", description="JSON Schema that the answer must fit"
    )
    check: Literal["quotes", "nonce"] | None = Field(
        None,
        description="`quotes`: texts of the answer under `quote` or `quotes` must occur in the document, and those "
        "under a property with `x-quote: true`. `nonce`: the answer gives back a code of its row, so that an answer "
        "under another row's key is found",
    )
    extra: dict[str, Any] = Field(default_factory=dict, description="more fields of the request body, sent unchanged")
    retries: int = Field(
        0, ge=0, le=3, description="how often a row with a bad answer is asked again, with the fault of that answer"
    )
    repair: bool = Field(
        True, description="accept JSON in a fence, or after a sentence or thoughts, if it fits the schema"
    )
    cache: bool = Field(True, description="accept an answer to exactly the same request from any job")
    unsupported: Literal["refuse", "drop"] = Field(
        "refuse",
        description="if a model does not accept a setting of the task: `refuse` sends no row there, `drop` leaves "
        "the setting out",
    )

    @field_validator("sources", mode="before", json_schema_input_type=str | tuple[str, ...] | None)
    @classmethod
    def _one_source_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def aliases(self) -> dict[tuple[str, ...], str]:
        """Model aliases of the task, by the path of the field that names each alias."""
        more = None if self.long is None else self.long.reduce_model
        return {("model",): self.model} | ({} if more is None else {("long", "reduce_model"): more})

    @model_validator(mode="before")
    @classmethod
    def _kind_fills_in(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("kind")
        if isinstance(kind, str) and kind in _PROMPTS and value.get("prompt") is None:
            value = {**value, "prompt": _PROMPTS[kind]}
        if kind == "classify" and value.get("schema") is None and isinstance(value.get("labels"), list | dict):
            value = {**value, "schema": labels_schema(value["labels"])}
        return value

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_of_texts(cls, value: Endpoint, info: ValidationInfo) -> Endpoint:
        if value != "chat" and info.data.get("kind") == "embedding":
            raise ValueError("an embedding has an endpoint of its own: leave this out")
        return value

    @field_validator("labels", mode="before", json_schema_input_type=dict[str, str] | tuple[str, ...] | None)
    @classmethod
    def _labels_are_texts(cls, value: Any) -> Any:
        given = list(value) if isinstance(value, list | tuple | dict) else []
        if strange := [label for label in given if not isinstance(label, str)]:
            raise ValueError(f"labels must be text, which {strange[0]!r} is not: put it in quotes")
        if isinstance(value, list | tuple):
            if len(set(given)) < len(given):
                raise ValueError("holds a label twice")
            return dict.fromkeys(given, "")
        if isinstance(value, dict):
            return {label: "" if said is None else said for label, said in value.items()}
        return value

    @field_validator("labels")
    @classmethod
    def _labels_are_usable(cls, value: dict[str, str] | None, info: ValidationInfo) -> dict[str, str] | None:
        if value is None:
            return None
        _require_kind(info, "classify", is_set=True)
        if not 2 <= len(value) <= MAX_LABELS:
            raise ValueError(f"needs 2 to {MAX_LABELS} labels")
        for label, said in value.items():
            if not label.strip():
                raise ValueError("holds an empty label")
            if any(mark in text for text in (label, said) for mark in _TEMPLATE_MARKS):
                raise ValueError(f"{label!r} holds Jinja2, which labels may not")
        return value

    @field_validator("logprobs")
    @classmethod
    def _logprobs_are_of_labels(cls, value: bool, info: ValidationInfo) -> bool:
        _require_kind(info, "classify", is_set=value)
        return value

    @field_validator("dimensions")
    @classmethod
    def _dimensions_are_of_vectors(cls, value: int | None, info: ValidationInfo) -> int | None:
        _require_kind(info, "embedding", is_set=value is not None)
        return value

    @field_validator("max_tokens", "system", "long", "temperature", "top_p", "seed", "stop", "retries")
    @classmethod
    def _asks_for_an_answer(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        is_set = value != cls.model_fields[name].default
        if is_set and info.data.get("kind") == "embedding":
            raise ValueError("is only for tasks that are answered in text; an embedding is a vector")
        if is_set and name in ("seed", "stop") and info.data.get("endpoint") == "responses":
            raise ValueError("the endpoint `responses` has no such field")
        if is_set and name == "long" and info.data.get("kind") == "classify":
            raise ValueError("a label is not made from the labels of parts: set `max_document_tokens` instead")
        return value

    @model_validator(mode="after")
    def _has_labels(self) -> Task:
        if self.kind == "classify" and self.labels is None:
            raise ValueError("`kind: classify` needs `labels`")
        return self

    @field_validator("output_schema")
    @classmethod
    def _is_a_schema(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        kind, labels = info.data.get("kind"), info.data.get("labels")
        if value is not None and kind == "embedding":
            raise ValueError("is only for tasks that are answered in text; an embedding is a vector")
        if value is not None and kind == "classify" and labels and value != labels_schema(labels):
            raise ValueError("is made from `labels`: leave it out")
        if value is not None:
            from jsonschema import Draft202012Validator, SchemaError

            try:
                Draft202012Validator.check_schema(value)
            except SchemaError as error:
                place = ".".join(map(str, error.path))
                last = next((part for part in reversed(error.path) if isinstance(part, str)), "")
                hint = SCHEMA_SHAPES.get(last, "")
                message = error.message
                wrong = _wrong_type(error.instance) if last == "type" else None
                if wrong is not None:
                    message = f"{wrong!r} is not a type"
                    hint = hint or _type_hint(wrong)
                elif [*error.path][-2:-1] == ["properties"] and isinstance(error.instance, str):
                    word = error.instance.lower()
                    kind = JSON_TYPES.get(word, word)
                    meant = f"type: {kind}" if kind in _TYPES else "type: string, description: …"
                    message, hint = "is not a schema", f"; write  {{{meant}}}"
                told = f"{place + ': ' if place else ''}{message}{hint}"
                raise ValueError(f"is not a JSON Schema: {told}") from None
            _check_references(value)
            unmarked(value)
        return value

    @field_validator("check")
    @classmethod
    def _check_is_of_json(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value == NONCE and info.data.get("kind") == "embedding":
            raise ValueError("is only for tasks that are answered in text; an embedding is a vector")
        _require_kind(info, "chat", is_set=value == QUOTES)
        # An invalid schema is reported at its own field.
        if value is not None and "output_schema" in info.data:
            schema = info.data["output_schema"]
            if value == QUOTES and schema is None:
                raise ValueError("needs a `schema` that says where the quotes are")
            if value == NONCE and (problem := problem_with(schema)) is not None:
                raise ValueError(problem)
        return value

    @field_validator("extra")
    @classmethod
    def _extra_is_extra(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        is_chat = info.data.get("kind") != "embedding" and info.data.get("endpoint") == "chat"
        for name in value:
            if name.lower().replace("-", "_") in _SECRETS:
                raise ValueError(
                    f"`{name}`: no key belongs in a job file; `api_key_env` in orch.toml names its variable"
                )
            if name in _TAKEN or (name in _TAKEN_ELSEWHERE and not is_chat):
                raise ValueError(f"`{name}` is not allowed here: it has a field of its own or is set by orch")
            if name in _FORMS and info.data.get("check") == NONCE:
                raise ValueError(f"`{name}` sets the form of the answer, which `check: {NONCE}` adds a property to")
            if name.startswith("guided_"):
                raise ValueError(
                    f"`{name}` was removed from vLLM, which silently ignores it; "
                    "use `schema`, or `structured_outputs` here"
                )
        return value


_TAKEN = frozenset(
    ("model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "response_format", "stream")
)
"""Request body fields that orch sets, or that have a task field of their own."""
_FORMS = frozenset(("structured_outputs", "grammar", "json_schema", "regex", "ebnf"))
"""Request fields by which engines constrain an answer's form, in place of the task's schema."""
_SECRETS = frozenset(("api_key", "apikey", "x_api_key", "authorization", "password"))
_TAKEN_ELSEWHERE = frozenset(("input", "instructions", "max_output_tokens", "dimensions"))
"""Like `_TAKEN`, for endpoints other than chat completions."""


def labels_schema(labels: Any) -> dict[str, Any]:
    """Return the JSON Schema of an answer that is one of these labels."""
    return {
        "type": "object",
        "properties": {"label": {"type": "string", "enum": list(labels)}},
        "required": ["label"],
        "additionalProperties": False,
    }


SCHEMA_SHAPES = {
    "required": "; write a list of names, beside `properties`",
    "enum": "; write a list of values",
    "properties": "; write a mapping of names:  {NAME: {type: string}}",
    "items": "; write one schema:  {type: string}",
}
"""Hints for values of the wrong type, by JSON Schema keyword."""
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
JSON_TYPES = {
    "str": "string", "text": "string", "date": "string", "datetime": "string", "int": "integer", "float": "number",
    "decimal": "number", "bool": "boolean", "list": "array", "dict": "object", "map": "object", "none": "null",
}  # fmt: skip
"""JSON Schema types, by the names that other languages use."""


def _wrong_type(types: Any) -> str | None:
    names = types if isinstance(types, list) else [types]
    return next((name for name in names if isinstance(name, str) and name not in _TYPES), None)


def _type_hint(written: str) -> str:
    if (meant := JSON_TYPES.get(written.lower())) is not None:
        return f"; did you mean {meant!r}?"
    bare = written.removesuffix("?").removeprefix("Optional[").removesuffix("]")
    if written == "json_schema":
        return "; write the schema itself, without OpenAI's `json_schema` around it"
    if written == "enum":
        return "; leave `type` out and write  enum: [A, B]"
    if written == "any":
        return "; leave `type` out, so that any value fits"
    if written.endswith("?") or written.startswith("Optional["):
        return f"; write  type: [{JSON_TYPES.get(bare.lower(), bare)}, 'null']"
    if found := re.fullmatch(r"(?i)(?:list|array)[\[<](\w+)[\]>]|(\w+)\[\]", written):
        inner = (found[1] or found[2]).lower()
        return f"; write  type: array, items: {{type: {JSON_TYPES.get(inner, inner)}}}"
    if near := get_close_matches(written.lower(), _TYPES, 1):
        return f"; did you mean {near[0]!r}?"
    return f"; types are {', '.join(_TYPES)}"


def _require_kind(info: ValidationInfo, kind: TaskKind, *, is_set: bool) -> None:
    """Raise ValueError if a field is set that only tasks of `kind` have, and this task is of another kind."""
    if is_set and info.data.get("kind") not in (kind, None):
        raise ValueError(f"is for `kind: {kind}`: write  kind: {kind}  above it, or leave it out")


def _check_references(schema: dict[str, Any]) -> None:
    """Raise ValueError for a `$ref` that does not resolve inside the schema: orch never fetches a schema."""
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
                    raise ValueError(f"is not a JSON Schema: nothing is found at {reference!r}") from None
            for name, inner in part.items():
                if name not in ("const", "enum", "default", "examples"):
                    walk(resolver, inner)

    resource = DRAFT202012.create_resource(schema)
    walk(Registry().with_resource("", resource).resolver_with_root(resource), schema)
