"""Vertex AI's request lines, and its results as OpenAI's lines. The echoed request identifies a result's row. Pure.

Source: Google's guide to batch inference from Cloud Storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from orchestrator.backends import lenient, line_digest, openai_shape
from orchestrator.backends.chat_rows import decode_line, sent_rows
from orchestrator.backends.echoes import Echoes, request_digest
from orchestrator.backends.gemini.answers import result_row
from orchestrator.backends.vertex.requests import translate
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import InputError

_PHRASES = {status.phrase.lower(): status.value for status in HTTPStatus}
Json = dict[str, Any]


def request_lines(source: Iterable[bytes]) -> Iterator[bytes]:
    """Yield Vertex's request line for each row that can be translated.

    Raises InputError for a line that is not a request.
    """
    for _, request in sent_rows(source, translate):
        yield msgspec.json.encode({"request": request}) + b"\n"


def sent_line(line: bytes) -> tuple[str, bytes]:
    """Return a line's custom_id, if any, and its request's digest. Accepts our own lines and Vertex's request
    lines.
    """
    told = lenient.decode_object(line) or {}
    if "request" in told:
        return "", request_digest(told["request"])
    try:
        row = decode_line(line)
        return row.custom_id, request_digest(translate(row.body))
    except (InputError, *JSON_ERRORS):
        return "", line_digest(line)


def matched(lines: Iterable[bytes], echoes: Echoes) -> Iterator[bytes]:
    """Yield result lines in OpenAI's shape. A line that is not JSON stays unchanged.

    Among rows with equal requests, answers are assigned before failures. So a failure goes to a row without an
    answer. A line whose echo matches no row has the request's digest instead of a custom_id.
    """
    failed: list[tuple[bytes, Json]] = []
    for line in lines:
        told = lenient.decode_object(line)
        if told is None:
            yield line
            continue
        answer = _answer(lenient.mapping(told.get("response")))
        row = result_row(None, answer, _error(told.get("status")))
        sent = echoes.find(told.get("request"))
        if sent is None:
            yield _named(row, f"of no row: request {request_digest(told.get('request')).hex()}")
        elif answer is None and echoes.rows(sent) > 1:
            failed.append((sent, row))
        else:
            yield _named(row, echoes.take(sent))
    for sent, row in failed:
        yield _named(row, echoes.take(sent))


def _answer(response: Mapping[str, Any]) -> Json | None:
    """Return the answer without the version in the model's name, such as `@default`."""
    model = response.get("modelVersion")
    plain = {"modelVersion": model.partition("@")[0]} if isinstance(model, str) else {}
    return {**response, **plain} or None


def _named(row: Json, custom_id: str) -> bytes:
    return openai_shape.line(row | {"custom_id": custom_id})


def _error(status: object) -> Mapping[str, Any] | None:
    """Return the error in a row's status, such as `Bad Request: {"error": …}`; None if the status has no error."""
    said = lenient.text(status, 100_000).strip()
    if not said:
        return None
    told = lenient.mapping((lenient.decode_object(said[max(0, said.find("{")) :].encode()) or {}).get("error"))
    return told or {"code": _PHRASES.get(said.partition(":")[0].lower(), 0), "message": said[: lenient.LONGEST]}
