"""An upstream that gives every POST the same bytes: for answers that no scripted fault has."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class Canned:
    """What each POST gets: `status`, `headers` and `body`, but only 503 behind the first `good_for` of them.

    `bodies` are the requests that came, `asked` the paths of GETs. `pages` are status and content of what a GET gets,
    by its path; all else is a 404.
    """

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str], good_for: int) -> None:
        self.status, self.body, self.headers, self.good_for = status, body, headers, good_for
        self.bodies: list[bytes] = []
        self.asked: list[str] = []
        self.pages = {"/v1/models": (200, MODELS)}
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def canned(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, *, good_for: int = 1_000_000
) -> Iterator[Canned]:
    found = Canned(status, body, headers or {}, good_for)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.asked.append(self.path)
            self._answer(*found.pages.get(self.path, (404, b"{}")), {})

        def do_POST(self) -> None:
            found.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            if len(found.bodies) > found.good_for:
                self._answer(503, b'{"error":{"message":"full"}}', {"Retry-After": "60"})
            else:
                self._answer(found.status, found.body, found.headers)

        def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Tests read what they need from `bodies`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
