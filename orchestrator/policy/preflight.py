"""The preflight, a row sent before a batch: its need, and the meaning of its answer for the batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core import batch_api
from orchestrator.core.answers import read_answer
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.refused_fields import ProviderError, refused_field

FEW_ROWS = 20
"""A batch with at most this many rows is its own preflight."""
REFUSED = "preflight_refused"
"""The code of a refusal that states neither a code nor a type."""
_REQUEST_STATUSES = frozenset({400, 422})
_NOT_FOUND = 404
_KINDS = ("response_format", "text")
"""Fields told apart by kind as well as by name: a model may accept one kind and refuse another."""


class PreflightFinding(StrEnum):
    """Result of the preflight row."""

    ANSWERED = "answered"  # the provider accepts requests like this row
    REFUSED = "refused"  # it refuses a field, a schema or the model: it would refuse every row of the batch
    UNCLEAR = "unclear"  # it says nothing about the requests of a batch


class DirectAnswer(Struct, frozen=True):
    """A provider's synchronous answer to one row.

    `status` is the HTTP status, None without an answer. `body` is the answer as JSON, None if it is not JSON. `error`
    is a refusal, None for an answer. `may_be_billed` says that the row may cost money although its answer is missing.
    """

    status: int | None
    body: bytes | None = None
    error: ProviderError | None = None
    may_be_billed: bool = False

    @property
    def is_answer(self) -> bool:
        """True if the row was answered."""
        return self.status is not None and 200 <= self.status < 300 and self.body is not None


def fields_of(line: bytes) -> str:
    """Return the field names of a request line's body, with the kind of its schema: `max_tokens messages model`.

    Raises ValueError if `line` is not a request line.
    """
    return " ".join(sorted(_names(body_of(line))))


def body_of(line: bytes) -> Mapping[str, Any]:
    """Return the body of a request line. Raises ValueError."""
    try:
        found = _decode_line(line)
    except batch_api.JSON_ERRORS as error:
        raise ValueError(str(error)) from error
    return found.body


class _Line(msgspec.Struct):
    body: dict[str, Any]


_decode_line = json_decoder(_Line).decode


def _names(body: Mapping[str, Any]) -> list[str]:
    return [f"{name}:{_kind(value)}" if name in _KINDS else name for name, value in body.items()]


def _kind(value: Any) -> str:
    """Return the kind of a format: `json_object`, `json_schema`, or `json_schema!` if strict."""
    found = value.get("format", value) if isinstance(value, dict) else {}
    if not isinstance(found, dict):
        return "other"
    schema = found.get("json_schema", found)
    is_strict = isinstance(schema, dict) and schema.get("strict") is True
    return f"{found.get('type')}{'!' if is_strict else ''}"


def is_about_model(answer: DirectAnswer) -> bool:
    """True if a refusal may mean that the provider lacks the model. The provider's list of models then decides."""
    error = answer.error
    if answer.status != _NOT_FOUND or error is None:
        return False
    # An unknown path is a 404 too.
    return "model" in f"{error.code} {error.kind} {error.param} {error.message}".lower()


def _is_whole(body: bytes) -> bool:
    """True unless a body says that it is not an answer; such a body can have status 200."""
    try:
        return read_answer(body).is_answer
    except batch_api.JSON_ERRORS:
        return False


def judge(answer: DirectAnswer, sent: Mapping[str, Any], *, is_unlisted: bool) -> PreflightFinding:
    """Return the verdict on an answer to the body `sent`. `is_unlisted`: the provider does not list the model."""
    if answer.is_answer and answer.body is not None:
        return PreflightFinding.ANSWERED if _is_whole(answer.body) else PreflightFinding.UNCLEAR
    if answer.error is None:
        return PreflightFinding.UNCLEAR
    if is_about_model(answer):
        return PreflightFinding.REFUSED if is_unlisted else PreflightFinding.UNCLEAR
    names_field = answer.status in _REQUEST_STATUSES and refused_field(answer.error, sent) is not None
    return PreflightFinding.REFUSED if names_field else PreflightFinding.UNCLEAR
