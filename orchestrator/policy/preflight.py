"""The row that is asked before a batch: which rows need it, and what its answer means for the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from orchestrator.core import wire
from orchestrator.core.refused_fields import ProviderError, refused_field

FEW_ROWS = 20
"""A batch of so many rows is its own preflight."""
REFUSED = "preflight_refused"
"""The code of a refusal that names neither a code nor a type of its own."""
_REQUEST_STATUSES = frozenset({400, 422})
_NOT_FOUND = 404
_KINDS = ("response_format", "text")
"""Fields whose kind counts beside their name: a model may take the one kind and refuse the other."""


class PreflightFinding(StrEnum):
    """What the preflight row showed."""

    ANSWERED = "answered"  # the provider takes such requests
    REFUSED = "refused"  # it refuses a field, a schema or the model: it would refuse every row of the batch alike
    UNCLEAR = "unclear"  # it said nothing about the requests of a batch


@dataclass(frozen=True, slots=True)
class DirectAnswer:
    """What a provider's synchronous endpoint said of one row.

    `status` is HTTP's, None where no answer came. `body` is the answer as JSON, None where it is not JSON. `error` is
    what it refuses, None for an answer. `may_be_billed` says that the row may cost money though no answer is here.
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
    """The names of the body's fields of a request line, with the kind of its schema: `max_tokens messages model`.

    Raises ValueError for what is not a request line.
    """
    return " ".join(sorted(_names(body_of(line))))


def body_of(line: bytes) -> Mapping[str, Any]:
    """The body of a request line. Raises ValueError."""
    try:
        found = _decode_line(line)
    except wire.JSON_ERRORS as error:
        raise ValueError(str(error)) from error
    return found.body


class _Line(msgspec.Struct):
    body: dict[str, Any]


_decode_line = msgspec.json.Decoder(_Line).decode


def _names(body: Mapping[str, Any]) -> list[str]:
    return [f"{name}:{_kind(value)}" if name in _KINDS else name for name, value in body.items()]


def _kind(value: Any) -> str:
    """The kind of a format: `json_object`, `json_schema`, or `json_schema!` where it is strict."""
    found = value.get("format", value) if isinstance(value, dict) else {}
    if not isinstance(found, dict):
        return "other"
    schema = found.get("json_schema", found)
    is_strict = isinstance(schema, dict) and schema.get("strict") is True
    return f"{found.get('type')}{'!' if is_strict else ''}"


def is_about_model(answer: DirectAnswer) -> bool:
    """True if a refusal may mean that the provider has no such model, which its list of models then shows."""
    error = answer.error
    if answer.status != _NOT_FOUND or error is None:
        return False
    # A path that does not exist is a 404 as well.
    return "model" in f"{error.code} {error.kind} {error.param} {error.message}".lower()


def judge(answer: DirectAnswer, sent: Mapping[str, Any], *, is_unlisted: bool) -> PreflightFinding:
    """Return what an answer to the body `sent` shows; `is_unlisted`: the list of models there lacks its model."""
    if answer.is_answer:
        return PreflightFinding.ANSWERED
    if answer.error is None:
        return PreflightFinding.UNCLEAR
    if is_about_model(answer):
        return PreflightFinding.REFUSED if is_unlisted else PreflightFinding.UNCLEAR
    names_field = answer.status in _REQUEST_STATUSES and refused_field(answer.error, sent) is not None
    return PreflightFinding.REFUSED if names_field else PreflightFinding.UNCLEAR
