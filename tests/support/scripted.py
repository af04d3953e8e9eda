"""A provider whose every answer a test writes: for what no real one is known to say, and for lines that break."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.support.inthread import Answering, serving


@dataclass(frozen=True)
class Asked:
    """A request as it came; `headers` by names in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """`body` as bytes, or what is sent as JSON. `fault`: no answer ever, a cut instead of one, or a cut within it."""

    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    fault: Literal["hang", "cut", "short"] | None = None


@dataclass
class Scripted:
    """A running provider: where it is, and what it was asked."""

    base_url: str
    asked: list[Asked]

    def posts(self, path: str = "/v1/batches") -> list[Asked]:
        """The POSTs to one path."""
        return [asked for asked in self.asked if asked.method == "POST" and asked.path == path]


@contextmanager
def scripted(answer: Callable[[Asked], Answer]) -> Iterator[Scripted]:
    """A provider on a free port of loopback that answers each request as `answer` says."""
    asked: list[Asked] = []
    over = threading.Event()

    class Handler(Answering):
        wbufsize = -1  # head and body in one piece: in two, the second waits for the first one's acknowledgement

        def _any(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Asked(self.command, parts.path, query, headers, self._body(headers))
            asked.append(request)
            said = answer(request)
            if said.fault in ("hang", "cut"):
                if said.fault == "hang":
                    over.wait()
                self._cut()
                return
            content = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            self.send_response(said.status)
            for name, value in {"Content-Type": "application/json", **said.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) + (said.fault == "short")))
            self.end_headers()
            self.wfile.write(content)
            if said.fault == "short":
                self._cut()

        do_GET = do_POST = do_DELETE = _any  # noqa: N815 - the names are the library's

        def _body(self, headers: Mapping[str, str]) -> bytes:
            if headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(headers.get("content-length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def send_response(self, code: int, message: str | None = None) -> None:
            # Without a date of its own: an answer that has one says so.
            self.send_response_only(code, message)

        def _cut(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    with serving(Handler) as port:
        try:
            yield Scripted(f"http://127.0.0.1:{port}/v1", asked)
        finally:
            over.set()
