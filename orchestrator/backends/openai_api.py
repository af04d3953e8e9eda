"""The calls of OpenAI's Batch API, whoever makes them: the SDK for a provider, a small client for our own server.

Answers are bytes, read elsewhere. A call raises `ApiRefusal` for an answer that is an error, an `httpx2.HTTPError`
where there is no answer, and ValueError, TypeError or AttributeError for one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import httpx2

from orchestrator.backends import lenient
from orchestrator.core.refused_fields import ProviderError

Headers = httpx2.Headers


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An answer as it came."""

    content: bytes
    headers: Headers

    def json(self) -> Any:
        """Raises ValueError for what is not JSON."""
        return lenient.decode(self.content)


class ApiRefusal(Exception):
    """An answer that is an error: its status, its headers, the path that was asked for, and the error object.

    `said` is the object's message, empty where the answer has no such object.
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
        """What it says, in the words that providers share; the whole answer where it has no message."""
        code, param = (None if value is None else lenient.text(value) for value in (self.code, self.param))
        message = self.said or (lenient.text(self.body) if self.body else None)
        return ProviderError(self.status, code, self.kind, param, message)


class BatchAPI(Protocol):
    """The calls. `kept` is how many seconds a file is kept, None for as long as the server does."""

    @property
    def api_key(self) -> str: ...

    @property
    def project(self) -> str | None:
        """The project that the key is used for, None where calls do not name one."""

    def close(self) -> None: ...

    def models(self) -> ApiAnswer: ...

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        """A page of the files that batches are made of."""

    def file(self, file_id: str) -> ApiAnswer: ...

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer: ...

    def delete_file(self, file_id: str) -> None: ...

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        """A file's bytes, in pieces."""

    def create(self, fields: Mapping[str, Any], kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        """A batch of these fields; `extra` are fields that are not OpenAI's."""

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer: ...

    def batch(self, batch_id: str) -> ApiAnswer: ...

    def cancel(self, batch_id: str) -> None: ...

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        """The answer of a synchronous endpoint to a request's body."""

    def part(self, path: str, first: int, most: int) -> bytes:
        """At most so many bytes of what is at a path, from `first` on."""

    def whole(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """What is at a path, in pieces."""
