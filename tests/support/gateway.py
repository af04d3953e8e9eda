"""A gateway in front of an engine: its models page answers always, its rows fail while the engine is away."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.canned import MODELS

AWAY = b'{"error":{"message":"litellm.InternalServerError: Connection error.","type":null,"code":"500"}}'
ANSWER = {"object": "chat.completion", "model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


class Gateway:
    """`is_away` says that its engine is; `poison` are rows that no engine can do. `sent` counts requests by row."""

    def __init__(self) -> None:
        self.is_away = False
        self.status = 500
        self.poison: frozenset[str] = frozenset()
        self.sent: Counter[str] = Counter()
        self.answered: set[str] = set()
        self.lock = threading.Lock()
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answer(self, row: str) -> tuple[int, bytes]:
        """The status and body for a row."""
        with self.lock:
            self.sent[row] += 1
            if self.is_away or row in self.poison:
                return self.status, AWAY
            self.answered.add(row)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": row}}
        return 200, json.dumps({**ANSWER, "choices": [choice]}).encode()


@contextmanager
def gateway() -> Iterator[Gateway]:
    found = Gateway()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(*((200, MODELS) if self.path == "/v1/models" else (404, b"{}")))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self._answer(*found.answer(str(body.get("user"))))

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Tests read what they need from the gateway."""

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
