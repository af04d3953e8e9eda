"""The preflight, a row sent before a batch: when it is needed, and what its answer means for the batch. Pure."""

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
"""Our code for a refusal that states neither a code nor a type."""
_REQUEST_STATUSES = frozenset({400, 422})
_NOT_FOUND = 404
_KINDS = ("response_format", "text")
"""Fields that are identified by kind as well as by name. A model may accept one kind and refuse another."""


class PreflightFinding(StrEnum):
    """Conclusion from the answer to a preflight row."""

    ANSWERED = "answered"  # the provider accepts requests like this row
    REFUSED = "refused"  # it refuses a field, a schema or the model: it would refuse every row of the batch
    UNCLEAR = "unclear"  # it says nothing about the requests of a batch


class DirectAnswer(Struct, frozen=True):
    """A provider's synchronous answer to one row.

    `status` is the HTTP status, or None without an answer. `body` is the answer if it is JSON, otherwise None.
    `error` is the provider's error, or None for an answer. `may_be_billed` says that the row may cost money although
    its answer is missing.
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
    """Return the field names of a request line's body: `max_tokens messages model`. Formats also show their kind.

    Raises ValueError if `line` is not a request line.
    """
    return " ".join(sorted(_names(body_of(line))))


def body_of(line: bytes) -> Mapping[str, Any]:
    """Return the body of a request line. Raises ValueError if `line` is not a request line."""
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
    """True if a refusal may mean that the provider lacks the model. The caller then checks the provider's list of
    models.
    """
    error = answer.error
    if answer.status != _NOT_FOUND or error is None:
        return False
    # An unknown path is a 404 too.
    return "model" in f"{error.code} {error.kind} {error.param} {error.message}".lower()


def _is_whole(body: bytes) -> bool:
    """True if a body is an answer. JSON that states an error is not an answer, even with status 200."""
    try:
        return read_answer(body).is_answer
    except batch_api.JSON_ERRORS:
        return False


def judge(answer: DirectAnswer, sent: Mapping[str, Any], *, is_unlisted: bool) -> PreflightFinding:
    """Return the finding from an answer to the body `sent`. `is_unlisted` is True if the provider does not list the
    model.
    """
    if answer.is_answer and answer.body is not None:
        return PreflightFinding.ANSWERED if _is_whole(answer.body) else PreflightFinding.UNCLEAR
    if answer.error is None:
        return PreflightFinding.UNCLEAR
    if is_about_model(answer):
        return PreflightFinding.REFUSED if is_unlisted else PreflightFinding.UNCLEAR
    names_field = answer.status in _REQUEST_STATUSES and refused_field(answer.error, sent) is not None
    return PreflightFinding.REFUSED if names_field else PreflightFinding.UNCLEAR
