"""The calls of OpenAI's Batch API on a plain HTTP client.

The official SDK sends the same requests and raises the same errors, but importing it takes longer than a small job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx2
import msgspec

from orchestrator.backends import BatchOrder, call_limits, lenient
from orchestrator.backends.api import ApiAnswer, ApiRefusal, answer_of, create_fields
from orchestrator.backends.lenient_batches import remote_batch
from orchestrator.backends.received_files import blocks, sized

OWN_SILENT_SECONDS = 600.0
"""Longest silence of our own server, in seconds. It runs on this machine and may be busy for a long time."""
NO_KEY = "none-is-asked-for"
_JSON = {"Content-Type": "application/json"}
_TAIL = b"]}"


class HttpAPI:
    """OpenAI's calls, on an HTTP client that has the API's base URL, sends the key and names its `project`.

    `silent` is the longest silence of a transfer in seconds. None uses the client's own timeout.
    """

    def __init__(
        self, http: httpx2.Client, api_key: str, silent: float | None = None, project: str | None = None
    ) -> None:
        self.api_key = api_key
        self.project = project
        self._http = http
        self._transfer: Any = http.timeout if silent is None else call_limits.timeouts(silent)
        self._patient: Any = http.timeout if silent is None else call_limits.timeouts(call_limits.ASK_SECONDS)

    def close(self) -> None:
        self._http.close()

    def models(self) -> ApiAnswer:
        return self._get("models")

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._get("files", purpose="batch", **_page(limit, after))

    def file(self, file_id: str) -> ApiAnswer:
        return self._get(path_of("files", file_id))

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        fields = {"purpose": "batch"} | {f"expires_after[{key}]": str(value) for key, value in _expiry(kept).items()}
        files = {"file": (name, content)}
        return self._answer(self._http.post("files", data=fields, files=files, timeout=self._transfer))

    def delete_file(self, file_id: str) -> None:
        self._answer(self._http.delete(path_of("files", file_id)))

    def content(self, file_id: str) -> AbstractContextManager[Iterator[bytes]]:
        return self.whole(f"{path_of('files', file_id)}/content")

    def create(self, order: BatchOrder, window: str, kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        expires = {"output_expires_after": _expiry(kept)} if kept is not None else {}
        return self._post("batches", {**create_fields(order, window), **expires, **extra})

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._get("batches", **_page(limit, after))

    def batch(self, batch_id: str) -> ApiAnswer:
        return self._get(path_of("batches", batch_id))

    def cancel(self, batch_id: str) -> None:
        self._answer(self._http.post(f"{path_of('batches', batch_id)}/cancel"))

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        return self._answer(self._http.post(path, content=body, headers=_JSON, timeout=self._patient))

    def part(self, path: str, first: int, most: int) -> bytes:
        part = {"Range": f"bytes={first}-{first + most - 1}"}
        return self._answer(self._http.get(path, headers=part)).content

    def whole(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        return self._streamed(self._http, path)

    @contextmanager
    def _streamed(self, client: httpx2.Client, path: str, **call: Any) -> Iterator[Iterator[bytes]]:
        with client.stream("GET", path, timeout=self._transfer, **call) as response:
            if not response.is_success:
                response.read()
                raise self._refusal(response)
            yield response.iter_bytes()

    def _get(self, path: str, **query: str) -> ApiAnswer:
        return self._answer(self._http.get(path, params=query))

    def _post(self, path: str, body: Mapping[str, Any]) -> ApiAnswer:
        return self._answer(self._http.post(path, json=body))

    def _send(self, path: str, rows: BinaryIO, **fields: Any) -> ApiAnswer:
        """Post an object in pieces: first `fields`, then `requests` with the elements in the file `rows`."""
        head, size = msgspec.json.encode({**fields, "requests": []})[:-2], sized(rows)
        headers = {**_JSON, "Content-Length": str(len(head) + size + len(_TAIL))}
        content = chain([head], blocks(rows), [_TAIL])
        return self._answer(self._http.post(path, content=content, headers=headers, timeout=self._transfer))

    def _answer(self, response: httpx2.Response) -> ApiAnswer:
        if not response.is_success:
            raise self._refusal(response)
        return ApiAnswer(response.content, response.headers)

    def _cancel(self, path: str, batch_id: str, statuses: Collection[int]) -> None:
        """Cancel a batch by a POST. A refusal with one of these statuses is ignored if the batch is over."""
        try:
            self._answer(self._http.post(path))
        except ApiRefusal as refusal:
            over = refusal.status in statuses and remote_batch(self.batch(batch_id).json(), batch_id).status.is_final
            if not over:
                raise

    def _refusal(self, response: httpx2.Response) -> ApiRefusal:
        try:
            told = lenient.decode(response.text.encode())
        except ValueError:
            told = None
        status, error = self._reason(response.status_code, told)
        # Without an error object, the whole answer may be the message.
        return ApiRefusal(status, response.headers, response.request.url.path, error or response.text.strip())

    def _reason(self, status: int, body: object) -> tuple[int, object]:
        """Return an error's HTTP status, and OpenAI's error object from the body."""
        found = lenient.mapping(body)
        return status, found.get("error", found)


def over_unix_socket(socket: Path) -> HttpAPI:
    """Return a client of the server that listens on a Unix socket."""
    return HttpAPI(unix_client(socket, "http://orch/v1", OWN_SILENT_SECONDS), NO_KEY)


def unix_client(socket: Path, base_url: str, timeout: float) -> httpx2.Client:
    """Return an HTTP client over a Unix socket, without TLS."""
    transport = httpx2.HTTPTransport(uds=str(socket), verify=call_limits.certificates("http"))
    return httpx2.Client(base_url=base_url, transport=transport, timeout=timeout)


def converted(answer: ApiAnswer, convert: Callable[[Any], object]) -> ApiAnswer:
    """Return an answer with its JSON converted. Raises ValueError if the answer is not JSON."""
    return answer_of(convert(answer.json()), answer.headers, answer.next_page)


def path_of(kind: str, name: str) -> str:
    """Return the path of an object. `name` is escaped, so that it stays a single path segment."""
    return f"{kind}/{quote(name, safe='')}"


def _page(limit: int, after: str | None) -> dict[str, str]:
    return {"limit": str(limit)} | ({} if after is None else {"after": after})


def _expiry(seconds: int | None) -> dict[str, Any]:
    return {} if seconds is None else {"anchor": "created_at", "seconds": seconds}
