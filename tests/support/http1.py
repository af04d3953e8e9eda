"""As much HTTP/1.1 as an upstream needs: parse one request from a buffer, build one response."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

MAX_HEAD = 64 * 1024


class BadRequest(Exception):
    """What arrived is not HTTP as it is spoken here; the connection ends after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Request(NamedTuple):
    method: str
    path: str
    head: bytes
    head_lower: bytes
    body: bytes
    keep_alive: bool


def header(head: bytes, head_lower: bytes, name: bytes) -> bytes | None:
    """The value of the header `name` (lower case), or None."""
    start = head_lower.find(b"\r\n" + name + b":")
    if start < 0:
        return None
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


def take_request(buffer: bytearray) -> Request | None:
    """Remove the first complete request from `buffer`; None while it is incomplete."""
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        if len(buffer) > MAX_HEAD:
            raise BadRequest(431, "request head too large")
        return None
    head = bytes(buffer[:head_end])
    lower = head.lower()
    line = head[: head.find(b"\r\n")] if b"\r\n" in head else head
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        raise BadRequest(400, "not an HTTP/1.1 request line")
    if b"\r\ntransfer-encoding:" in lower:
        raise BadRequest(411, "chunked request bodies are not read here")
    end = head_end + 4 + _content_length(head, lower)
    if len(buffer) < end:
        return None
    body = bytes(buffer[head_end + 4 : end])
    del buffer[:end]
    path = parts[1].split(b"?", 1)[0].decode("latin-1")
    keep_alive = parts[2] != b"HTTP/1.0" and b"\r\nconnection: close" not in lower
    return Request(parts[0].decode("latin-1"), path, head, lower, body, keep_alive)


def _content_length(head: bytes, lower: bytes) -> int:
    value = header(head, lower, b"content-length")
    if value is None:
        return 0
    if not value.isdigit():
        raise BadRequest(400, "content-length is not a number")
    return int(value)


_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\nserver: uvicorn\r\n".encode() for s in HTTPStatus}


def response(
    body: bytes,
    status: int = 200,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
    length: int | None = None,
) -> bytes:
    """A whole response; `length` is the Content-Length to claim where it is not the true one."""
    line = _LINES.get(status) or b"HTTP/1.1 %d Unknown\r\nserver: uvicorn\r\n" % status
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) if headers else ""
    claimed = len(body) if length is None else length
    return b"%scontent-type: %s\r\n%scontent-length: %d\r\n\r\n%s" % (
        line,
        content_type.encode(),
        extra.encode("latin-1"),
        claimed,
        body,
    )
