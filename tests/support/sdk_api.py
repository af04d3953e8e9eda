"""OpenAI's Batch API through the official SDK, which our own client is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol

import httpx2
import openai
from openai import HttpxBinaryResponseContent

from orchestrator.backends import BatchOrder
from orchestrator.backends.api import ApiAnswer, ApiRefusal, create_fields

_JSON: Any = {"headers": {"Content-Type": "application/json"}}


class _Raw(Protocol):
    @property
    def http_response(self) -> httpx2.Response: ...


class SdkAPI:
    """The calls on an `openai` client that does not retry."""

    def __init__(self, client: openai.OpenAI) -> None:
        self._client = client

    @property
    def api_key(self) -> str:
        return self._client.api_key

    @property
    def project(self) -> str | None:
        return self._client.project

    def close(self) -> None:
        self._client.close()

    def models(self) -> ApiAnswer:
        with _told():
            return _answer(self._client.models.with_raw_response.list())

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        with _told():
            files = self._client.files.with_raw_response
            return _answer(files.list(purpose="batch", limit=limit, after=after or openai.omit))

    def file(self, file_id: str) -> ApiAnswer:
        with _told():
            return _answer(self._client.files.with_raw_response.retrieve(file_id))

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        with _told():
            files = self._client.files.with_raw_response
            return _answer(files.create(file=(name, content), purpose="batch", expires_after=_kept(kept)))

    def delete_file(self, file_id: str) -> None:
        with _told():
            self._client.files.with_raw_response.delete(file_id)

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        with _told(), self._client.files.with_streaming_response.content(file_id) as response:
            yield response.iter_bytes()

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        fields = create_fields(order, window)
        with _told():
            batches = self._client.batches.with_raw_response
            return _answer(batches.create(**fields, output_expires_after=_kept(kept), extra_body=extra))

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        with _told():
            return _answer(self._client.batches.with_raw_response.list(limit=limit, after=after or openai.omit))

    def batch(self, batch_id: str) -> ApiAnswer:
        with _told():
            return _answer(self._client.batches.with_raw_response.retrieve(batch_id))

    def cancel(self, batch_id: str) -> None:
        with _told():
            self._client.batches.with_raw_response.cancel(batch_id)

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        # Not `chat.completions.create`: the body goes out exactly as in a batch.
        with _told():
            answer = self._client.post(path, content=body, cast_to=httpx2.Response, options=_JSON)
            return ApiAnswer(answer.content, answer.headers)

    def part(self, path: str, first: int, most: int) -> bytes:
        part = {"Range": f"bytes={first}-{first + most - 1}"}
        with _told():
            return self._client.get(path, cast_to=HttpxBinaryResponseContent, options={"headers": part}).content

    @contextmanager
    def whole(self, path: str) -> Iterator[Iterator[bytes]]:
        # A Stream only to keep the response open: the body is as large as the batch, and goes to disk in pieces.
        with (
            _told(),
            self._client.get(path, cast_to=bytes, stream=True, stream_cls=openai.Stream[bytes]) as stream,
        ):
            yield stream.response.iter_bytes()


@contextmanager
def _told() -> Iterator[None]:
    """Turn the SDK's errors into `ApiRefusal`, or into their causes."""
    try:
        yield
    except openai.APIStatusError as error:
        raise ApiRefusal(error.status_code, error.response.headers, error.request.url.path, error.body) from None
    except openai.OpenAIError as error:
        cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else None
        raise (cause if isinstance(cause, Exception) else httpx2.HTTPError(str(error))) from None


def _answer(raw: _Raw) -> ApiAnswer:
    return ApiAnswer(raw.http_response.content, raw.http_response.headers)


def _kept(seconds: int | None) -> Any:
    return openai.omit if seconds is None else {"anchor": "created_at", "seconds": seconds}
