"""Request lines with only an id and a body, for providers that state method and address elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from orchestrator.backends import line_digest
from orchestrator.backends.received_files import request_lines
from orchestrator.core import batch_api
from orchestrator.core.json_decoders import json_decoder

Spelling = Callable[[msgspec.Raw], bytes]
"""A function that returns the JSON to send for a row's id or body."""


class _Line(msgspec.Struct, frozen=True):
    custom_id: msgspec.Raw
    body: msgspec.Raw


class _Addressed(_Line, frozen=True):
    url: str


_decode_addressed = json_decoder(_Addressed).decode
decode_line = json_decoder(_Line).decode


def body_lines(
    lines: Iterable[bytes], id_of: Spelling = bytes, blanks: bytes = b"", *, body_of: Spelling = bytes
) -> Iterator[bytes]:
    """Yield our lines without method and address. Raises InputError for an invalid line.

    The spaces in `blanks` are inserted into the first line.
    """
    for found in request_lines(lines, decode_line):
        yield b'{"custom_id":%b,%b"body":%b}\n' % (id_of(found.custom_id), blanks, body_of(found.body))
        blanks = b""


def addressed_lines(lines: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Yield our lines with addresses that begin with `path` instead of /v1. Raises InputError."""
    for found in request_lines(lines, _decode_addressed):
        url = msgspec.json.encode(path + found.url.removeprefix("/v1"))
        yield b'{"custom_id":%b,"method":"POST","url":%b,"body":%b}\n' % (found.custom_id, url, found.body)


def sent_line(line: bytes, body_of: Spelling = bytes) -> tuple[str, bytes]:
    """Return a line's custom_id and its request's digest. Both are the same with and without method and address."""
    try:
        found = decode_line(line)
        return msgspec.json.decode(found.custom_id, type=str), line_digest(body_of(found.body))
    except batch_api.JSON_ERRORS:
        return "", line_digest(line)
