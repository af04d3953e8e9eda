"""Requests to an upstream, whole or as raw bytes, for tests that look at the wire."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from tests.support.process import Upstream
from tests.support.requests import CHAT


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def content(self) -> str:
        """The text of a successful chat answer."""
        assert self.status == 200, self.body
        return str(self.json()["choices"][0]["message"]["content"])


def chat_body(text: str, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


@contextmanager
def connected(upstream: Upstream, timeout: float = 10.0) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=timeout)
    try:
        yield connection
    finally:
        connection.close()


def post(upstream: Upstream, body: bytes, path: str = CHAT, headers: dict[str, str] | None = None) -> Answer:
    return _ask(upstream, "POST", path, body, headers or {})


def get(upstream: Upstream, path: str) -> Answer:
    return _ask(upstream, "GET", path, None, {})


def _ask(upstream: Upstream, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    with connected(upstream) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def raw_post(body: bytes, path: str = CHAT) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body


def send_raw(upstream: Upstream, *bodies: bytes) -> socket.socket:
    """A connection on which all of `bodies` have been sent at once; nothing is read yet."""
    raw = socket.create_connection(("127.0.0.1", upstream.port), timeout=10)
    raw.sendall(b"".join(map(raw_post, bodies)))
    return raw


def read_answer(stream: BinaryIO) -> Answer:
    """The next answer on a kept connection; `stream` is its one makefile("rb"), which may have read ahead."""
    status = int(stream.readline().split()[1])
    headers = {}
    while line := stream.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return Answer(status, headers, stream.read(int(headers["content-length"])))


def received_until_closed(upstream: Upstream, body: bytes) -> bytes:
    with send_raw(upstream, body) as raw:
        chunks = []
        while chunk := raw.recv(65536):
            chunks.append(chunk)
        return b"".join(chunks)
