"""The calls of xAI's batches, answered in OpenAI's shape. xAI's files already have OpenAI's shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from http import HTTPStatus
from typing import Any

from msgspec.structs import replace

from orchestrator.backends import BatchOrder, lenient
from orchestrator.backends.api import ApiAnswer, answer_of
from orchestrator.backends.batch_names import display_name
from orchestrator.backends.openai_http import HttpAPI, converted, path_of
from orchestrator.backends.xai.batches import RESULTS, batch_of, list_of, next_page, result_line
from orchestrator.core.clock import now
from orchestrator.core.error_body import openai_error, read_error_value
from orchestrator.core.retry_after import date_of

_Convert = Callable[[object, datetime], object]
_PAGE = 100
_OVER = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class XaiAPI(HttpAPI):
    """The calls, on an HTTP client that has xAI's base URL and sends the key."""

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("files", "data", limit, after, lambda found, _: found)

    def file(self, file_id: str) -> ApiAnswer:
        if file_id.startswith(RESULTS):
            return answer_of({"id": "results"})
        return super().file(file_id)

    def delete_file(self, file_id: str) -> None:
        if not file_id.startswith(RESULTS):
            super().delete_file(file_id)

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        if file_id.startswith(RESULTS):
            return nullcontext(self._results(f"{path_of('batches', file_id.removeprefix(RESULTS))}/results"))
        return super().content(file_id)

    def _results(self, path: str) -> Iterator[bytes]:
        page: dict[str, str] = {}
        seen = set[str | None]()
        while page.get("pagination_token") not in seen:
            seen.add(page.get("pagination_token"))
            told = self._get(path, limit=str(_PAGE), **page).json()
            for one in lenient.entries(told, "results", is_first=False):
                yield result_line(one) + b"\n"
            if (after := next_page(told)) is None:
                return
            page = {"pagination_token": after}

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        batch = {"name": display_name(order), "input_file_id": order.input_file_id}
        return _converted(self._post("batches", batch), batch_of)

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._page("batches", "batches", limit, after, batch_of)

    def batch(self, batch_id: str) -> ApiAnswer:
        return _converted(self._get(path_of("batches", batch_id)), batch_of)

    def cancel(self, batch_id: str) -> None:
        # No source says how a cancel is refused.
        self._cancel(f"{path_of('batches', batch_id)}:cancel", batch_id, _OVER)

    def _page(self, path: str, name: str, limit: int, after: str | None, convert: _Convert) -> ApiAnswer:
        token = {} if after is None else {"pagination_token": after}
        answer = self._get(path, limit=str(limit), **token)
        page = _converted(answer, lambda told, at: list_of(told, name, lambda one: convert(one, at)))
        return replace(page, next_page=next_page(answer.json()))

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        # xAI answers 400, not 401, for a rejected key.
        is_key = read_error_value(body).says_bad_key
        return HTTPStatus.UNAUTHORIZED if is_key else status, openai_error(body)


def _converted(answer: ApiAnswer, convert: _Convert) -> ApiAnswer:
    at = date_of(answer.headers.get("date")) or now()
    return converted(answer, lambda told: convert(told, at))
