"""A gateway in front of an engine: its models page answers always, its rows fail while the engine is away."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.canned import MODELS
from tests.support.inthread import Answering, serving

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

    class Handler(Answering):
        def do_GET(self) -> None:  # noqa: N802 - the library's name
            self.answer(*((200, MODELS) if self.path == "/v1/models" else (404, b"{}")))

        def do_POST(self) -> None:  # noqa: N802 - the library's name
            body = json.loads(self.read_body())
            self.answer(*found.answer(str(body.get("user"))))

    with serving(Handler) as found.port:
        yield found
