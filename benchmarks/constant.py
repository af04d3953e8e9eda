"""An endpoint that costs next to nothing: the same answer to every POST, so that what is measured is the client.

    python -m benchmarks.constant [--slots 256 --seconds 0.5] [--gauges] [--content TEXT]

prints {"port": ...} and serves until its stdin ends. With slots it is an engine of fixed capacity: a request holds a
slot for so many seconds, and others wait for one in the order they came. With gauges, /metrics tells of both as
vLLM does; without, there is no such page.

GET /seen tells what it saw by its own clock (CLOCK_MONOTONIC, the same in all processes of a machine), GET /begin
the same, and begins anew.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import deque
from typing import Any

CONTENT = "The parties agree to the terms set out above. " * 14
MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "created": 0}]}).encode()
GAUGES = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %.1f
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} %.1f
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} %.4f
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
"""
FULL_KV = 0.5
"""What of the KV cache is in use when every slot is: never what holds a client back here."""


def _response(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


def _completion(content: str) -> bytes:
    message = {"role": "assistant", "content": content}
    answer = {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 60, "completion_tokens": 140, "total_tokens": 200},
    }
    return _response(json.dumps(answer).encode())


_MODELS, _NOTHING = _response(MODELS), _response(b"{}", b"404 Not Found")


class Endpoint:
    """What the connections share: the slots, who waits for one, and the clock."""

    def __init__(self, slots: int | None, seconds: float, has_gauges: bool, content: str) -> None:
        self.answer = _completion(content)
        self._slots = slots
        self._seconds = seconds
        self._has_gauges = has_gauges
        self._loop = asyncio.get_running_loop()
        self._running = 0
        self._waiting: deque[_Connection] = deque()
        self._begin()

    def _begin(self) -> None:
        self._received = self._answered = self._most_running = self._most_waiting = 0
        self._first = self._last = self._full_at = 0.0

    def take(self, connection: _Connection) -> None:
        """A request came in."""
        if not self._received:
            self._first = time.monotonic()
        self._received += 1
        if self._slots is None:
            self._answer(connection)
        elif self._running < self._slots:
            self._start(connection)
        else:
            self._waiting.append(connection)
            self._most_waiting = max(self._most_waiting, len(self._waiting))

    def leave(self, connection: _Connection) -> None:
        """A client went away: what it waited for is not done."""
        if connection in self._waiting:
            self._waiting.remove(connection)

    def page(self, path: bytes) -> bytes:
        """The answer to a GET."""
        if path == b"/v1/models":
            return _MODELS
        if path == b"/metrics" and self._has_gauges:
            busy = self._running / (self._slots or 1)
            text = GAUGES % (self._running, len(self._waiting), FULL_KV * busy)
            return _response(text.encode(), kind=b"text/plain; version=0.0.4")
        if path in (b"/seen", b"/begin"):
            seen = _response(json.dumps(self._seen()).encode())
            if path == b"/begin":
                self._begin()
            return seen
        return _NOTHING

    def _start(self, connection: _Connection) -> None:
        self._running += 1
        if self._running > self._most_running:
            self._most_running = self._running
            if self._running == self._slots:
                self._full_at = time.monotonic()
        self._loop.call_later(self._seconds, self._done, connection)

    def _done(self, connection: _Connection) -> None:
        self._running -= 1
        self._answer(connection)
        if self._waiting:
            self._start(self._waiting.popleft())

    def _answer(self, connection: _Connection) -> None:
        connection.send(self.answer)
        self._answered += 1
        self._last = time.monotonic()

    def _seen(self) -> dict[str, Any]:
        return {
            "received": self._received,
            "answered": self._answered,
            "first_at": self._first or None,
            "last_at": self._last or None,
            "full_at": self._full_at or None,
            "most_running": self._most_running,
            "most_waiting": self._most_waiting,
        }


class _Connection(asyncio.BufferedProtocol):
    """Requests in, answers out; a request may come in pieces, and several may come at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._buffer = bytearray(1 << 16)
        self._held = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._endpoint.leave(self)

    def send(self, data: bytes) -> None:
        """Write, unless the client is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._held == len(self._buffer):
            self._buffer = self._buffer + bytes(len(self._buffer))
        return memoryview(self._buffer)[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        self._held += nbytes
        begin = 0
        while (end := self._buffer.find(b"\r\n\r\n", begin, self._held)) >= 0:
            head = bytes(self._buffer[begin:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if end + 4 + length > self._held:
                break
            if head.startswith(b"post"):
                self._endpoint.take(self)
            else:
                self.send(self._endpoint.page(head.split(b" ", 2)[1]))
            begin = end + 4 + length
        if begin:
            rest = self._held - begin
            self._buffer[:rest] = self._buffer[begin : self._held]
            self._held = rest


async def _serve(slots: int | None, seconds: float, has_gauges: bool, content: str) -> None:
    loop = asyncio.get_running_loop()
    endpoint = Endpoint(slots, seconds, has_gauges, content)
    server = await loop.create_server(lambda: _Connection(endpoint), "127.0.0.1", 0, backlog=4096)
    loop.add_reader(0, lambda: None if os.read(0, 4096) else os._exit(0))
    sys.stdout.write(json.dumps({"port": server.sockets[0].getsockname()[1]}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    """Serve until stdin ends."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.constant")
    arguments.add_argument("--slots", type=int, help="requests that run side by side; default: any number, at once")
    arguments.add_argument("--seconds", type=float, default=0.5, help="how long a request holds its slot (0.5)")
    arguments.add_argument("--gauges", action="store_true", help="have vLLM's gauges on /metrics")
    arguments.add_argument("--content", default=CONTENT, help="the text of each answer")
    chosen = arguments.parse_args()
    asyncio.run(_serve(chosen.slots, chosen.seconds, chosen.gauges, chosen.content))


if __name__ == "__main__":
    main()
