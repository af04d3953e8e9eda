"""The HTTP calls behind the operations of a Batch API. Every provider's class answers in OpenAI's shape.

Answers are bytes, parsed elsewhere. A call raises `ApiRefusal` for an error answer, `httpx2.HTTPError` without an
answer, and ValueError, TypeError or AttributeError for an unreadable answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

import httpx2
from msgspec import Struct

from orchestrator.backends import BatchOrder, lenient, metadata_of
from orchestrator.backends.batch_lists import ListAnswer
from orchestrator.core.refused_fields import ProviderError

Headers = httpx2.Headers


class ApiAnswer(Struct, frozen=True):
    """An unparsed answer. `next_page` is the token of a list's next page.

    If `next_page` is None, the last entry's id is the token.
    """

    content: bytes
    headers: Headers
    next_page: str | None = None

    def json(self) -> Any:
        """Parse the answer. Raises ValueError if it is not JSON."""
        return lenient.decode(self.content)

    def page(self) -> ListAnswer:
        """Parse the answer as a page of a list. Raises ValueError if it is not JSON."""
        return self.json(), self.next_page


def answer_of(told: object, headers: Headers | None = None, next_page: str | None = None) -> ApiAnswer:
    return ApiAnswer(json.dumps(told).encode(), headers or Headers(), next_page)


class ApiRefusal(Exception):
    """An error answer: its status, headers, request path and error object.

    `said` is the error object's message, or empty if the answer has no error object.
    """

    def __init__(self, status: int, headers: Headers, path: str, body: object) -> None:
        error = lenient.mapping(body)
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.path = path
        self.said = lenient.text(error.get("message")) if "message" in error else ""
        self.code = error.get("code")
        self.param = error.get("param")
        self.kind = str(error.get("type"))
        self.body = body

    def provider_error(self) -> ProviderError:
        """Return the error as a ProviderError. If the answer has no error message, its whole body is the message."""
        code, param = (None if value is None else lenient.text(value) for value in (self.code, self.param))
        message = self.said or (lenient.text(self.body) if self.body else None)
        return ProviderError(self.status, code, self.kind, param, message)


def create_fields(order: BatchOrder, window: str) -> dict[str, Any]:
    """Return the fields of a create call, under OpenAI's names."""
    return {
        "input_file_id": order.input_file_id,
        "endpoint": order.endpoint,
        "completion_window": window,
        "metadata": dict(metadata_of(order)),
    }


class BatchAPI(Protocol):
    """The calls of a Batch API. `kept` is a file's lifetime in seconds, or None for the server's default."""

    @property
    def api_key(self) -> str: ...

    @property
    def project(self) -> str | None:
        """Project of the key; None if calls do not name one."""

    def close(self) -> None: ...

    def models(self) -> ApiAnswer: ...

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        """Return a page of batch files."""

    def file(self, file_id: str) -> ApiAnswer: ...

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer: ...

    def delete_file(self, file_id: str) -> None: ...

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        """Open a file's content and yield its bytes in pieces."""

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        """Create a batch with this completion window, in the provider's spelling. `extra` holds fields that OpenAI
        lacks.
        """

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer: ...

    def batch(self, batch_id: str) -> ApiAnswer: ...

    def cancel(self, batch_id: str) -> None: ...

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        """Send a request body to a synchronous endpoint and return the answer."""

    def part(self, path: str, first: int, most: int) -> bytes:
        """Return at most `most` bytes of the content at a path, from byte `first` on."""

    def whole(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Open the content at a path and yield its bytes in pieces."""
