"""A server of the standard library in a thread of the test."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType, TracebackType
from typing import Any

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Answering(BaseHTTPRequestHandler):
    """What handlers of requests have in common. Nothing is logged: tests read what they need from elsewhere."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, content: bytes, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serve in threads until the end of the block; the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class InThread:
    """What a test talks to; `serve` begins, and the end of the block ends it."""

    def serve(self, server: socketserver.BaseServer) -> None:
        """Serve in a thread."""
        self._server = server
        self._over = threading.Event()
        """Set at the end: what holds back an answer lets go."""
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
