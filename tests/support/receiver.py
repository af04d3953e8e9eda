"""A receiver of webhooks: real HTTP, scripted answers, every delivery checked with the official SDK."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import openai

from tests.support.inthread import InThread
from tests.support.plain_http import for_openai

SECRET = "whsec_c2VjcmV0LW9mLXRoZS10ZXN0cy0wMTIzNDU2Nzg5"
PATH = "/hooks/a-token-in-the-path"


@dataclass(frozen=True)
class Delivery:
    """One POST: where to, what it held, and the status it was answered with."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    def event(self, secret: str = SECRET) -> Any:
        """The event as the SDK gives it; raises where the signature is wrong."""
        client = openai.OpenAI(api_key="none", webhook_secret=secret, http_client=for_openai())
        try:
            return client.webhooks.unwrap(self.body, self.headers)
        finally:
            client.close()


class Receiver(InThread):
    """`with Receiver() as receiver:` answers with the statuses of `script` in turn, then with 204.

    A None in the script means no answer while the receiver runs. `before_answer` is called with each delivery
    before it is answered.
    """

    def __init__(self, *script: int | None, port: int = 0) -> None:
        self.deliveries: list[Delivery] = []
        self.before_answer: Callable[[Delivery], None] | None = None
        self._script = deque(script)
        self._listening = ThreadingHTTPServer(("127.0.0.1", port), self._answering())
        self._listening.daemon_threads = True
        self.port: int = self._listening.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}{PATH}?token=secret-of-the-query"

    def __enter__(self) -> Self:
        self.serve(self._listening)
        return self

    def events(self, secret: str = SECRET) -> list[Any]:
        """The events that were taken."""
        return [delivery.event(secret) for delivery in self.deliveries if 200 <= delivery.status < 300]

    def _receive(self, path: str, headers: dict[str, str], body: bytes) -> int | None:
        status = self._script.popleft() if self._script else 204
        delivery = Delivery(path, headers, body, status or 0)
        if self.before_answer is not None:
            self.before_answer(delivery)
        self.deliveries.append(delivery)
        if status is None:
            self._over.wait()
        return status

    def _answering(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver._receive(self.path, dict(self.headers.items()), body)
                if status is None:
                    return
                self.send_response(status)
                if status in (301, 302, 307, 308):
                    self.send_header("location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        return Answering
