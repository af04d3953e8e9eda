"""Answers whose bytes are not as they should be: pages, cuts, drips, wrong lengths, lines with other ends."""

from __future__ import annotations

import asyncio
import gzip
import http
from collections.abc import Callable, Mapping

import msgspec

from tests.emulator.errors import HTML_502
from tests.emulator.script import Fault
from tests.emulator.wire import Wire

PAGE = HTML_502.replace(b"502 Bad Gateway", b"200 All is well")
RAW = frozenset(("long_length", "short_length", "drip_head", "drip_body", "bare_status"))
"""Those that no HTTP library sends."""

_BYTES: dict[str, Callable[[Fault, bytes], bytes]] = {
    "empty_body": lambda fault, body: b"",
    "html_page": lambda fault, body: PAGE,
    "error_object": lambda fault, body: msgspec.json.encode({"error": {**fault.options, "type": "server_error"}}),
    "json_null": lambda fault, body: b"null",
    "half_json": lambda fault, body: body[: len(body) // 2],
    "short_body": lambda fault, body: _short(fault, body),
    "gzip": lambda fault, body: gzip.compress(body),
    "raw_gzip": lambda fault, body: gzip.compress(body),
    "bom": lambda fault, body: b"\xef\xbb\xbf" + body,
    "crlf": lambda fault, body: body.replace(b"\n", b"\r\n"),
    "blank_lines": lambda fault, body: b"\n \n" + body.replace(b"\n", b"\n\n") + b"\n",
    "json_array": lambda fault, body: b"[" + b",\n".join(body.splitlines()) + b"]",
}
_KINDS = {"html_page": "text/html", "plain_type": "text/plain"}


def _short(fault: Fault, body: bytes) -> bytes:
    part = body[: int(len(body) * fault.options["share"])]
    return part[: part.rfind(b"\n") + 1] if fault.options["whole_lines"] else part


def changed(fault: Fault, body: bytes) -> bytes:
    """The body under a fault; as it is where the fault is of something else."""
    change = _BYTES.get(fault.do)
    return body if change is None else change(fault, body)


def kind_of(fault: Fault, kind: str) -> str:
    """The content type under a fault."""
    return _KINDS.get(fault.do, kind)


async def send_raw(wire: Wire, fault: Fault, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Write an answer to the wire by hand, then close it."""
    told = dict(headers)
    length = len(body)
    if fault.do == "long_length":
        length += fault.options["by"]
    elif fault.do == "short_length":
        length = int(length * fault.options["share"])
    elif fault.do == "bare_status":
        status, body, length = fault.options["status"], b"", 0
        told = {name: value for name, value in told.items() if name != "content-type"} | fault.options["headers"]
    told |= {"content-length": str(length), "connection": "close"}
    phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ""
    first = f"HTTP/1.1 {status} {phrase}\r\n".encode("latin-1")
    head = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in told.items())
    if fault.do == "drip_head":
        wire.write(first + b"x-padding: ")
        await wire.drip(b"." * 10_000_000, fault.options["pause"])
        return
    wire.write(first + head + b"\r\n")
    if fault.do == "drip_body":
        # Never the last byte: an answer that is always about to come.
        await wire.drip(body[:-1] + b" " * 10_000_000, fault.options["pause"])
        return
    wire.write(body)
    await asyncio.sleep(0)
    await wire.cut()
