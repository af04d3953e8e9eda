"""Calls a synchronous endpoint with one row: interprets the answer, and builds the result line."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from orchestrator.backends import lenient
from orchestrator.core import batch_api
from orchestrator.core.answers import read_answer
from orchestrator.core.error_body import read_error_value
from orchestrator.core.errors import OrchError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.refusal_words import status_meant
from orchestrator.core.refused_fields import ProviderError
from orchestrator.core.request_lines import RequestLine
from orchestrator.policy.preflight import DirectAnswer

LONGEST_MESSAGE = 500
_LOST = frozenset({408, 502, 504})
"""Gateway statuses after which the server may still have answered, although the gateway received no answer."""
_PREFIX = "models/"
_decode = json_decoder(RequestLine).decode


def request_of(line: bytes) -> bytes:
    """Return the request body in a line. Raises ValueError if the line is invalid."""
    try:
        return bytes(_decode(line).body)
    except batch_api.JSON_ERRORS as error:
        raise ValueError(f"is not a request: {error}") from error


def answered(content: bytes, secret: str) -> DirectAnswer:
    """Interpret an answer with status 200. A body that is not a JSON object may be a cut answer that is billed.

    A refusal in the body counts as a refusal. The `secret` never appears in the message.
    """
    found = lenient.decode_object(content)
    if found is None:
        told = ProviderError(200, message="its answer is not a JSON object")
        return DirectAnswer(200, error=told, may_be_billed=True)
    body = json.dumps(found).encode()
    refusal = _refusal_in(body)
    return DirectAnswer(200, body) if refusal is None else refused(refusal, secret)


def _refusal_in(body: bytes) -> ProviderError | None:
    try:
        error = read_answer(body).error
    except batch_api.JSON_ERRORS:
        return None
    words = read_error_value(error)
    status = None if error is None else status_meant(words)
    return None if status is None else ProviderError(status, words.code, words.type, words.param, words.message)


def refused(error: ProviderError, secret: str) -> DirectAnswer:
    """Interpret an answer with an error status. The `secret` never appears in the message."""
    said = lenient.plain((error.message or f"status {error.status}").replace(secret, "[key]"))[:LONGEST_MESSAGE]
    told = ProviderError(error.status, error.code, error.kind, error.param, said)
    return DirectAnswer(error.status, error=told, may_be_billed=error.status in _LOST)


def unanswered(error: OrchError, *, may_be_billed: bool) -> DirectAnswer:
    """Return the DirectAnswer for a call that got no response."""
    return DirectAnswer(None, error=ProviderError(message=error.message), may_be_billed=may_be_billed)


def in_list(listed: Iterable[str], model: str) -> bool | None:
    """True if the list contains this model; None for an empty list, which proves nothing."""
    names = {name.removeprefix(_PREFIX) for name in listed}
    return model.removeprefix(_PREFIX) in names if names else None


def result_line(custom_id: str, answer: DirectAnswer) -> bytes:
    """Return the row's result in the format of a batch's result file."""
    response = {"status_code": answer.status, "request_id": None, "body": msgspec.Raw(answer.body or b"null")}
    return msgspec.json.encode({"custom_id": custom_id, "response": response, "error": None}) + b"\n"
