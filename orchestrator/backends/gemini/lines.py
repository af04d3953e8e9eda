"""Lines of an input file as Gemini takes them, and the rows that cannot be sent. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from orchestrator.backends.files import request_lines
from orchestrator.backends.gemini.requests import CHAT, translate
from orchestrator.core.errors import InputError

REFUSED = "unsupported_parameter"
"""The code of a row that was not sent because a field has no counterpart."""


class _Line(msgspec.Struct):
    custom_id: str
    body: dict[str, Any]
    url: str = CHAT


_decode_line = msgspec.json.Decoder(_Line).decode


def sent_lines(source: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each row that has a counterpart, by its key. Raises InputError for a line that is not a request."""
    for custom_id, request, _ in _rows(source):
        if request is not None:
            yield msgspec.json.encode({"key": custom_id, "request": request}) + b"\n"


def refused_lines(source: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the result line of each row that is not sent, with the field's name."""
    for custom_id, _, error in _rows(source):
        if error is None:
            continue
        message = f"{error.field}: {error.message}"
        told = {"message": message, "type": "invalid_request_error", "param": error.field, "code": REFUSED}
        response = {"status_code": 400, "request_id": None, "body": {"error": told}}
        yield json.dumps({"id": None, "custom_id": custom_id, "response": response, "error": None}).encode()


def _rows(source: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any] | None, InputError | None]]:
    for line in request_lines(source, _decode_line):
        try:
            if line.url != CHAT:
                raise InputError(f"only {CHAT} has a counterpart", field="url")
            yield line.custom_id, translate(line.body), None
        except InputError as error:
            yield line.custom_id, None, error
