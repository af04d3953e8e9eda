"""The calls of Mistral's files and batch jobs, answered in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, BinaryIO

from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient, metadata_of
from orchestrator.backends.api import ApiAnswer
from orchestrator.backends.body_lines import body_lines
from orchestrator.backends.mistral.jobs import batch_of
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.received_files import translated
from orchestrator.core.error_body import openai_error
from orchestrator.settings.backends import window_seconds

_JOBS = "batch/jobs"
_HOUR = 3600
_INPUTS = "batch_request"
"""Type of an input file. Result files have the same purpose, so the purpose alone does not identify input files."""
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class MistralAPI(HttpAPI):
    """The calls, on an HTTP client that has Mistral's base URL and sends the key."""

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("files", limit, after, lambda found: found, purpose="batch", sample_type=_INPUTS)

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        with translated(content, body_lines(content)) as file:
            return super().upload(name, file, None)

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        job = {
            "input_files": [order.input_file_id],
            "endpoint": order.endpoint,
            "model": order.model,
            "metadata": dict(metadata_of(order)),
            "timeout_hours": window_seconds(window) // _HOUR,
        }
        return converted(self._post(_JOBS, job), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        # Mistral's list never says that it is complete: an empty page ends the list.
        return self._page(_JOBS, limit, after, lambda told: lenient.with_entries(told, batch_of), order_by="-created")

    def batch(self, batch_id: str) -> ApiAnswer:
        return converted(self._get(path_of(_JOBS, batch_id)), batch_of)

    def cancel(self, batch_id: str) -> None:
        # No source says how a cancel is refused.
        self._cancel(f"{path_of(_JOBS, batch_id)}/cancel", batch_id, _REFUSED)

    def _page(
        self, path: str, limit: int, after: str | None, convert: Callable[[object], object], **query: str
    ) -> ApiAnswer:
        """Return a page of a list. `after` is the page's number from 0, as text."""
        number = int(after or 0)
        answer = converted(self._get(path, page=str(number), page_size=str(limit), **query), convert)
        return replace(answer, next_page=str(number + 1))

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        return status, openai_error(body)
