"""Scripted faults, asked for in the text of a request: `[[fault:NAME(:argument)*]]`.

    status:CODE   an error of that status, in vLLM's body; `name=value` arguments become headers
    context       vLLM's 400 about the maximum context length
    html[:CODE]   an HTML page with that status (200)
    truncated     JSON cut in half, its Content-Length right
    short         Content-Length larger than what is sent, then the connection closes
    cut           the connection closes without an answer
    reset         the same, with RST
    garbage       bytes which are not HTTP
    hang          no answer, ever; the slot stays taken until the client leaves
    slow:MS       the answer comes MS later
    empty, length, notjson    a success whose content is empty, cut off, or not the JSON asked for
    die           the whole upstream exits

An answer that is streamed begins all the same: `hang` stops behind the head, and what breaks an answer off breaks it
off in its middle.

A last number says for how many tries of this body, `priority` aside, the fault holds (`cut:1`); without it: always.
Several directives follow one another: `[[fault:cut:1]][[fault:status:500:2]]` is one cut, then two 500s.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.http1 import response

MARK = "[[fault:"
_DIRECTIVE = re.compile(r"\[\[fault:([a-z]+)((?::[^\]:]+)*)\]\]")

# Answered at the door, as a gateway or the request validation does: no slot, no wait.
IMMEDIATE = frozenset({"status", "context", "html"})
ON_THE_WIRE = frozenset({"truncated", "short", "cut", "reset", "garbage", "die"})
IN_THE_ANSWER = frozenset({"hang", "slow", "empty", "length", "window", "full", "eos", "fenced", "notjson"})
_NAMES = IMMEDIATE | ON_THE_WIRE | IN_THE_ANSWER


@dataclass(frozen=True, slots=True)
class Fault:
    """`value` is the status or the milliseconds; `tries` None means always."""

    name: str
    value: int = 0
    tries: int | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}:{self.value}" if self.value else self.name


def faults_in(text: str) -> list[Fault]:
    """The directives of `text` in order; ValueError for one that cannot be read, lest a test passes by a typo."""
    found = _DIRECTIVE.findall(text)
    if len(found) != text.count(MARK):
        raise ValueError("unreadable fault directive")
    return [_fault(name, arguments) for name, arguments in found]


def _fault(name: str, arguments: str) -> Fault:
    words = arguments.split(":")[1:]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    numbers = [int(word) for word in words if "=" not in word]
    value = 0
    if name in ("status", "slow"):
        if not numbers:
            raise ValueError(f"fault {name} needs a number")
        value = numbers.pop(0)
    elif name == "html":
        value = numbers.pop(0) if numbers and numbers[0] >= 100 else 200
    if name not in _NAMES or len(numbers) > 1:
        raise ValueError(f"unknown fault {name}{arguments}")
    return Fault(name, value, numbers[0] if numbers else None, options)


def due(faults: Sequence[Fault], attempt: int) -> Fault | None:
    """The fault for the `attempt`-th (from 1) arrival of a body, or None when the script is over."""
    for fault in faults:
        if fault.tries is None or attempt <= fault.tries:
            return fault
        attempt -= fault.tries
    return None


def break_answer(name: str, transport: asyncio.Transport, body: bytes) -> None:
    """Do to the wire what the fault says, with `body` as the answer that should have been."""
    match name:
        case "truncated":
            transport.write(response(body[: len(body) // 2]))
        case "short":
            transport.write(response(body[: len(body) // 2], length=len(body)))
            transport.close()
        case "garbage":
            transport.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is not HTTP\r\n\r\n")
            transport.close()
        case "cut":
            transport.close()
        case "reset":
            _reset(transport)
        case "die":
            os._exit(1)


def break_stream(name: str, transport: asyncio.Transport) -> None:
    """End a stream that has begun as the fault says: it has no end that HTTP knows."""
    match name:
        case "die":
            os._exit(1)
        case "reset":
            _reset(transport)
        case _:
            transport.close()


def _reset(transport: asyncio.Transport) -> None:
    # Lingering for zero seconds turns the close into an RST.
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
