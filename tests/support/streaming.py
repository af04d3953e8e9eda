"""A chat answer as vLLM streams it: Server-Sent Events in HTTP chunks, one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tests.support.faults import break_stream

HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
PIECE_CHARS = 4

encode = msgspec.json.Encoder().encode


def pieces_of(content: str) -> list[str]:
    return [content[start : start + PIECE_CHARS] for start in range(0, len(content), PIECE_CHARS)]


class Stream:
    """Sends the answer of one exchange: head and role as it takes its slot, then a piece each `pace` seconds.

    `finish` sends what is left at once, so without a pace that is everything.
    """

    def __init__(self, transport: asyncio.Transport, common: dict[str, Any], content: str, pace: float) -> None:
        self._transport = transport
        self._common = {**common, "object": "chat.completion.chunk"}
        self._pieces = pieces_of(content)
        self._pace = pace
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """How long the pieces take."""
        return self._pace * len(self._pieces)

    def begin(self) -> None:
        self._transport.write(HEAD + self._event({"role": "assistant", "content": ""}))
        if self._pace:
            self._timer = asyncio.get_running_loop().call_later(self._pace, self._next)

    def _next(self) -> None:
        if not self._pieces or self._transport.is_closing():
            return
        self._transport.write(self._event({"content": self._pieces.pop(0)}))
        self._timer = asyncio.get_running_loop().call_later(self._pace, self._next)

    def finish(self, finish_reason: str, usage: dict[str, Any] | None) -> None:
        """The rest; `usage` only where it was asked for."""
        self._stop()
        rest = [self._event({"content": piece}) for piece in self._pieces]
        rest.append(self._event({}, finish_reason))
        if usage is not None:
            rest.append(_chunk(b"data: " + encode({**self._common, "choices": [], "usage": usage}) + b"\n\n"))
        rest.append(_chunk(b"data: [DONE]\n\n"))
        self._transport.write(b"".join(rest) + END)

    def break_off(self, fault: str) -> None:
        """Half of it, then what the fault says; no end."""
        self._stop()
        half = [self._event({"content": piece}) for piece in self._pieces[: len(self._pieces) // 2]]
        self._transport.write(b"".join(half))
        break_stream(fault, self._transport)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _event(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _chunk(b"data: " + encode({**self._common, "choices": [choice]}) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
