"""The calls of OpenRouter's batches, answered in OpenAI's shape.

Sources: openrouter 1.3.84 (batch.py, components/batchsubmitbody.py, batchobject.py, batchlistitem.py), its guide and
quickstart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, BinaryIO

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer
from orchestrator.backends.lenient_batches import status_of
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.core.error_body import openai_error

_WINDOW = "24h"
RESULTS = "results:"
"""Prefix of a result id; the batch's id follows. The results are part of the batch object."""
_STATUSES = {
    "authentication": 401, "payment_required": 402, "permission_denied": 403, "not_found": 404, "timeout": 408,
    "precondition_failed": 412, "payload_too_large": 413, "unprocessable": 422, "rate_limit_exceeded": 429,
    "server": 500, "provider_unavailable": 502, "unmapped": 502, "provider_overloaded": 503, "invalid_request": 400,
}  # fmt: skip
"""HTTP statuses for OpenRouter's general error types. Any other type is the error code of a refused request."""
_ALIKE = ("id", "status", "created_at", "request_counts", "model", "endpoint")


class OpenRouterAPI(HttpAPI):
    """The calls, on an HTTP client that has OpenRouter's base URL and sends the key."""

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        told = self._get(path_of("batches", file_id.removeprefix(RESULTS))).json()
        results = lenient.mapping(told).get("results")
        if not isinstance(results, list):
            raise ValueError("the answer has no results")
        yield (result_line(one) + b"\n" for one in results)

    def submit(self, order: BatchOrder, rows: BinaryIO) -> ApiAnswer:
        """Create a batch. In the request body, all other fields must come before `requests`."""
        fields = {"endpoint": order.endpoint, "model": order.model, "completion_window": _WINDOW}
        return converted(self._send("batches", rows, **fields), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return converted(super().batches(limit, after), lambda told: lenient.with_entries(told, batch_of))

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(super().batch(batch_id), batch_of)

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return status, openai_error(body)


def without_model(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without its model, which is a field of the batch."""
    return {name: value for name, value in body.items() if name != "model"}


def batch_of(told: object) -> object:
    """Return a batch in OpenAI's shape. A value that is not an object stays unchanged."""
    found = lenient.mapping(told)
    if not found:
        return told
    batch: dict[str, Any] = {name: found[name] for name in _ALIKE if name in found}
    status = status_of(found.get("status"))
    if status is None or not status.is_final:
        return batch
    batch[f"{status}_at"] = found.get("finalized_at")
    if status == "failed":
        batch["errors"] = found.get("error")
    # Lists omit results. A failed batch's object has results if rows ran.
    if status != "failed" or found.get("results"):
        batch["output_file_id"] = f"{RESULTS}{found.get('id')}"
    return batch


def result_line(told: object) -> bytes:
    """Return a result as a line in OpenAI's shape. OpenRouter's errors have a type instead of a status and a code."""
    found = lenient.mapping(told)
    if error := lenient.mapping(found.get("error")):
        kind = lenient.text(error.get("error_type"))
        reason = {**error, "code": None if kind in _STATUSES else kind or None}
        status = _STATUSES.get(kind, HTTPStatus.BAD_REQUEST if kind else HTTPStatus.BAD_GATEWAY)
        told = {**found, "error": None, "response": {"status_code": status, "body": {"error": reason}}}
    return json.dumps(told).encode()
