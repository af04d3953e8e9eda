"""OpenAI's Batch API for our own server, without the SDK: importing the SDK takes longer than a small job."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx2

from orchestrator.backends import lenient
from orchestrator.backends.openai.api import ApiAnswer, ApiRefusal

SILENT_SECONDS = 600.0
"""The server is on this machine: it may be busy for long, and is not cut off."""


def over_unix_socket(socket: Path) -> OwnAPI:
    """Return a client of the server that listens on a Unix socket."""
    return OwnAPI(unix_client(socket, "http://orch/v1", SILENT_SECONDS))


def unix_client(socket: Path, base_url: str, timeout: float) -> httpx2.Client:
    """Return an HTTP client over a Unix socket, without TLS: reading the system's certificates takes 30 ms."""
    transport = httpx2.HTTPTransport(uds=str(socket), verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return httpx2.Client(base_url=base_url, transport=transport, timeout=timeout)


class OwnAPI:
    """The calls on an HTTP client with the API's base URL."""

    api_key = "none-is-asked-for"
    project = None

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def close(self) -> None:
        self._http.close()

    def models(self) -> ApiAnswer:
        return self._get("models")

    def files(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._get("files", purpose="batch", **_page(limit, after))

    def file(self, file_id: str) -> ApiAnswer:
        return self._get(_one("files", file_id))

    def upload(self, name: str, content: BinaryIO, kept: int | None) -> ApiAnswer:
        fields = {"purpose": "batch"} | {f"expires_after[{key}]": str(value) for key, value in _kept(kept).items()}
        return _answer(self._http.post("files", data=fields, files={"file": (name, content)}))

    def delete_file(self, file_id: str) -> None:
        _answer(self._http.delete(_one("files", file_id)))

    @contextmanager
    def content(self, file_id: str) -> Iterator[Iterator[bytes]]:
        with self.whole(f"{_one('files', file_id)}/content") as chunks:
            yield chunks

    def create(self, fields: Mapping[str, Any], kept: int | None, extra: Mapping[str, Any]) -> ApiAnswer:
        expires = {"output_expires_after": _kept(kept)} if kept is not None else {}
        return _answer(self._http.post("batches", json={**fields, **expires, **extra}))

    def batches(self, limit: int, after: str | None = None) -> ApiAnswer:
        return self._get("batches", **_page(limit, after))

    def batch(self, batch_id: str) -> ApiAnswer:
        return self._get(_one("batches", batch_id))

    def cancel(self, batch_id: str) -> None:
        _answer(self._http.post(f"{_one('batches', batch_id)}/cancel"))

    def ask(self, path: str, body: bytes) -> ApiAnswer:
        return _answer(self._http.post(path, content=body, headers={"Content-Type": "application/json"}))

    def part(self, path: str, first: int, most: int) -> bytes:
        return _answer(self._http.get(path, headers={"Range": f"bytes={first}-{first + most - 1}"})).content

    @contextmanager
    def whole(self, path: str) -> Iterator[Iterator[bytes]]:
        with self._http.stream("GET", path) as response:
            if not response.is_success:
                response.read()
                raise _refusal(response)
            yield response.iter_bytes()

    def _get(self, path: str, **query: str) -> ApiAnswer:
        return _answer(self._http.get(path, params=query))


def _answer(response: httpx2.Response) -> ApiAnswer:
    if not response.is_success:
        raise _refusal(response)
    return ApiAnswer(response.content, response.headers)


def _refusal(response: httpx2.Response) -> ApiRefusal:
    try:
        told = lenient.decode(response.text.encode())
    except ValueError:
        told = None
    found = lenient.mapping(told)
    return ApiRefusal(response.status_code, response.headers, response.request.url.path, found.get("error", found))


def _one(kind: str, name: str) -> str:
    """Return the path of an object. The server's name stays a single path segment, whatever it contains."""
    return f"{kind}/{quote(name, safe='')}"


def _page(limit: int, after: str | None) -> dict[str, str]:
    return {"limit": str(limit)} | ({} if after is None else {"after": after})


def _kept(seconds: int | None) -> dict[str, Any]:
    return {} if seconds is None else {"anchor": "created_at", "seconds": seconds}
