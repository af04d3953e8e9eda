"""One row at a provider's synchronous endpoint: what an answer says, and the result line that it makes."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from orchestrator.backends import lenient
from orchestrator.core import wire
from orchestrator.core.errors import OrchError
from orchestrator.core.refused_fields import ProviderError
from orchestrator.core.request_lines import RequestLine
from orchestrator.policy.preflight import DirectAnswer

LONGEST_MESSAGE = 500
_LOST = frozenset({408, 502, 504})
"""Statuses of a gateway that has no answer from the server behind it, which may have answered."""
_PREFIX = "models/"
_decode = msgspec.json.Decoder(RequestLine).decode


def request_of(line: bytes) -> bytes:
    """The body of a request line. Raises ValueError."""
    try:
        return bytes(_decode(line).body)
    except wire.JSON_ERRORS as error:
        raise ValueError(f"is not a request: {error}") from error


def answered(content: bytes) -> DirectAnswer:
    """A status of 200. What is not a JSON object may be an answer that was cut, and billed."""
    try:
        body = json.dumps(lenient.decode(content)).encode()
    except ValueError:
        return DirectAnswer(200, error=ProviderError(200, message="its answer is not JSON"), may_be_billed=True)
    return DirectAnswer(200, body)


def refused(error: ProviderError, secret: str) -> DirectAnswer:
    """A status that is an error. The `secret` never stands in a message."""
    said = lenient.plain((error.message or f"status {error.status}").replace(secret, "[key]"))[:LONGEST_MESSAGE]
    told = ProviderError(error.status, error.code, error.kind, error.param, said)
    return DirectAnswer(error.status, error=told, may_be_billed=error.status in _LOST)


def unanswered(error: OrchError, *, may_be_billed: bool) -> DirectAnswer:
    """A call without an answer."""
    return DirectAnswer(None, error=ProviderError(message=error.message), may_be_billed=may_be_billed)


def in_list(listed: Iterable[str], model: str) -> bool | None:
    """True if a list of models has this one; None for an empty list, which proves nothing."""
    names = {name.removeprefix(_PREFIX) for name in listed}
    return model.removeprefix(_PREFIX) in names if names else None


def result_line(custom_id: str, answer: DirectAnswer) -> bytes:
    """The line that the row has in a batch's result file."""
    response = {"status_code": answer.status, "request_id": None, "body": msgspec.Raw(answer.body or b"null")}
    return msgspec.json.encode({"custom_id": custom_id, "response": response, "error": None}) + b"\n"
