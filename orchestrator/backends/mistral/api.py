"""The calls of Mistral's files and batch jobs, answered in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import httpx2
from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient, metadata_of
from orchestrator.backends.mistral.jobs import batch_of, error_of, job_lines, list_of
from orchestrator.backends.openai.api import ApiAnswer, ApiRefusal
from orchestrator.backends.openai.http_api import HttpAPI, path_of
from orchestrator.backends.openai.read import remote_batch
from orchestrator.core.errors import JobFilesError
from orchestrator.settings.backends import window_seconds

_JOBS = "batch/jobs"
_HOUR = 3600
_INPUTS = "batch_request"
"""The kind of input files; Mistral lists its result files under the same purpose."""
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class MistralAPI(HttpAPI):
    """The calls on an HTTP client with Mistral's base URL, which sends the key."""

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("files", limit, after, lambda found: found, purpose="batch", sample_type=_INPUTS)

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        try:
            with TemporaryFile(dir=Path(content.name).parent) as translated:
                translated.writelines(job_lines(content))
                translated.seek(0)
                return super().upload(name, translated, None)
        except OSError as error:
            message = f"cannot translate {content.name}: {error.strerror}"
            raise JobFilesError(message, hint="free disk space, then run it again") from error

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        job = {
            "input_files": [order.input_file_id],
            "endpoint": order.endpoint,
            "model": order.model,
            "metadata": dict(metadata_of(order)),
            "timeout_hours": window_seconds(window) // _HOUR,
        }
        return _converted(self._post(_JOBS, job), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page(_JOBS, limit, after, list_of, order_by="-created")

    def batch(self, batch_id: str) -> ApiAnswer:
        return _converted(self._get(path_of(_JOBS, batch_id)), batch_of)

    def cancel(self, batch_id: str) -> None:
        try:
            self._answer(self._http.post(f"{path_of(_JOBS, batch_id)}/cancel"))
        except ApiRefusal as refusal:
            # No source says how the end of a job is refused.
            if refusal.status not in _REFUSED or not self._is_over(batch_id):
                raise

    def _is_over(self, batch_id: str) -> bool:
        return remote_batch(self.batch(batch_id).json(), batch_id).status.is_final

    def _page(
        self, path: str, limit: int, after: str | None, convert: Callable[[object], object], **query: str
    ) -> ApiAnswer:
        """Return a page of a list; `after` is its number from 0, as text."""
        number = int(after or 0)
        answer = _converted(self._get(path, page=str(number), page_size=str(limit), **query), convert)
        return replace(answer, next_page=str(number + 1))

    def _refusal(self, response: httpx2.Response) -> ApiRefusal:
        try:
            told = lenient.decode(response.text.encode())
        except ValueError:
            told = None
        return ApiRefusal(response.status_code, response.headers, response.request.url.path, error_of(told))


def _converted(answer: ApiAnswer, convert: Callable[[object], object]) -> ApiAnswer:
    """Return an answer in another shape. Raises ValueError if it is not JSON."""
    return replace(answer, content=json.dumps(convert(answer.json())).encode())
