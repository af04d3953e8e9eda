"""Many engines behind one address book: `python -m benchmarks.engines --engines 1000 --slots 8 --seconds 8`.

All of them in one process, each on a port of its own, with vLLM's gauges. A request holds a slot for about so many
seconds (half of them to half as many more), and those beyond the slots wait in line. Writes `{"ports": [...]}` once
all listen; a line on stdin is answered with one on stdout: the slot seconds that were used since the line before, of
those there were, and what is out now. It ends with its stdin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import deque

BODY = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
).encode()  # fmt: skip
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'


def answer(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


ANSWER, MODELS_ANSWER, NOT_FOUND = answer(BODY), answer(MODELS), answer(b"{}", "404 Not Found")


class Engine:
    """`slots` requests at once, the others in line."""

    def __init__(self, slots: int, seconds: float) -> None:
        self.slots, self.seconds = slots, seconds
        self.running = 0
        self.line: deque[Connection] = deque()
        self.used = 0.0
        self._at = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        self.used += self.running * (now - self._at)
        self._at = now

    def take(self, connection: Connection) -> None:
        if self.running >= self.slots:
            self.line.append(connection)
            return
        self.tick()
        self.running += 1
        seconds = self.seconds * random.uniform(0.5, 1.5)
        asyncio.get_running_loop().call_later(seconds, self._done, connection)

    def _done(self, connection: Connection) -> None:
        connection.send(ANSWER)
        self.tick()
        self.running -= 1
        if self.line:
            self.take(self.line.popleft())

    def metrics(self) -> bytes:
        page = f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {len(self.line)}\n"
        page += f"vllm:kv_cache_usage_perc {self.running / self.slots / 2}\nvllm:num_preemptions_total 0\n"
        return answer(page.encode(), kind="text/plain")


class Connection(asyncio.Protocol):
    """Requests one behind the other, none before the answer to the last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"POST"):
            at = head.lower().index(b"content-length:") + 15
            if len(body) < int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else None]):
                return
            self._engine.take(self)
        elif head.startswith(b"GET /metrics"):
            self.send(self._engine.metrics())
        else:
            self.send(MODELS_ANSWER if head.startswith(b"GET /v1/models") else NOT_FOUND)
        self._rest = b""


async def serve(count: int, slots: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    engines = [Engine(slots, seconds) for _ in range(count)]
    servers = [
        await loop.create_server(lambda engine=engine: Connection(engine), "127.0.0.1", 0, backlog=64)
        for engine in engines
    ]
    sys.stdout.write(json.dumps({"ports": [server.sockets[0].getsockname()[1] for server in servers]}) + "\n")
    sys.stdout.flush()
    at = time.monotonic()
    while await asyncio.to_thread(sys.stdin.readline):
        for engine in engines:
            engine.tick()
        now = time.monotonic()
        told = {
            "used": sum(engine.used for engine in engines), "there": count * slots * (now - at),
            "running": sum(engine.running for engine in engines), "waiting": sum(len(one.line) for one in engines),
        }  # fmt: skip
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        at = now
        for engine in engines:
            engine.used = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(given.engines, given.slots, given.seconds))


if __name__ == "__main__":
    main()
