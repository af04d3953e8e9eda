"""Reads result files as JSON lines, and repairs faults of providers and gateways. Pure.

Valid and unreadable lines stay unchanged. Memory use is bounded by the longest line.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from orchestrator.backends import lenient
from orchestrator.backends.received_files import split_lines
from orchestrator.core import batch_api
from orchestrator.core.json_decoders import json_decoder

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_BETWEEN = re.compile(r"[\s,]*")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')
GZIP_BITS = zlib.MAX_WBITS | 16
PIECE = 256 * 1024
DEEPEST = 100
_decode_result = json_decoder(batch_api.ResultLine).decode


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends, skipping blank ones. Handles gzip, a byte order mark and a JSON array."""
    pieces = _unpacked(chunks)
    head = b""
    while len(head.strip(_BLANK)) <= len(_BOM) and (piece := next(pieces, None)) is not None:
        head += piece
    rest = chain([head.removeprefix(_BOM)], pieces)
    if head.removeprefix(_BOM).lstrip(_BLANK).startswith(b"["):
        yield from _elements(rest)
        return
    for line in split_lines(rest):
        if plain := line.strip(_BLANK):
            yield plain if _is_json(plain) else _repaired(plain)


def result_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a result file's lines in OpenAI's shape, with text ids and numeric statuses.

    A line that holds no row stays unchanged.
    """
    for line in lines(chunks):
        try:
            _decode_result(line)
            yield line
        except batch_api.JSON_ERRORS:
            yield _as_result(line)


def _as_result(line: bytes) -> bytes:
    told = lenient.decode_object(line)
    if told is None:
        return line
    response, error = told.get("response"), told.get("error")
    if isinstance(response, dict):
        status = lenient.count(response.get("status_code"))
        response = {
            "status_code": status or 0,
            "request_id": lenient.name(response.get("request_id")),
            "body": response.get("body"),
        }
    elif response is not None:
        response, error = None, error or response
    custom_id = told.get("custom_id")
    if isinstance(custom_id, list) and len(custom_id) == 1:
        custom_id = custom_id[0]
    if isinstance(custom_id, float) and custom_id.is_integer():
        custom_id = int(custom_id)
    is_named = isinstance(custom_id, str | int) and not isinstance(custom_id, bool)
    row = {
        "id": lenient.name(told.get("id")),
        "custom_id": str(custom_id) if is_named else None,
        "response": response,
        "error": error,
    }
    return json.dumps(_plain(row), ensure_ascii=False).encode()


def _unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    found, head = iter(chunks), b""
    while len(head) < len(_GZIP) and (chunk := next(found, None)) is not None:
        head += chunk
    if not head.startswith(_GZIP):
        yield head
        yield from found
        return
    unpack = zlib.decompressobj(wbits=GZIP_BITS)
    for data in chain([head], found):
        while data:
            if unpack.eof:
                unpack = zlib.decompressobj(wbits=GZIP_BITS)  # a file may consist of several gzip members
            try:
                yield unpack.decompress(data, PIECE)
            except zlib.error as error:
                raise ValueError(f"its gzip data cannot be decompressed: {error}") from None
            data = unpack.unconsumed_tail or unpack.unused_data
    if not unpack.eof:
        raise ValueError("its gzip data is cut off")


def _is_json(line: bytes) -> bool:
    try:
        # The decoder does not check values that it skips: a lone surrogate shows only if text is decoded.
        msgspec.json.decode(line, type=Any if _HALF.search(line) else msgspec.Raw)
        line.decode()
    except batch_api.JSON_ERRORS:
        return False
    return True


def _repaired(line: bytes) -> bytes:
    """Replace NaN and deep nesting by null, and escape control characters.

    A line that is still unreadable stays unchanged.
    """
    for content in (line, _shallow(line)):
        try:
            return json.dumps(_plain(lenient.decode(content)), ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
    return line


def _shallow(line: bytes) -> bytes:
    kept, depth, start = bytearray(), 0, 0
    for found in _TOKEN.finditer(line):
        token = found[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST + 1:
                kept += line[start : found.start()] + b"null"
        elif token in (b"]", b"}"):
            if depth == DEEPEST + 1:
                start = found.end()
            depth -= 1
    return bytes(kept) + line[start:]


def _plain(value: object) -> object:
    """Replace characters that cannot be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    return value


def _elements(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the elements of a JSON array. An unreadable remainder becomes the last line."""
    decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
    text, place, is_open = "", 0, False
    for piece in map(codecs.getincrementaldecoder("utf-8")("replace").decode, chunks):
        text, place = text[place:] + piece, 0
        if not is_open:
            text, is_open = text.lstrip()[1:], True
        while True:
            place = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing as well
            try:
                found, place = decoder.raw_decode(text, place)
            except (ValueError, RecursionError):
                break
            yield json.dumps(_plain(found), ensure_ascii=False).encode()
        if len(text) - place > batch_api.MAX_LINE_BYTES:
            break
    if left := text[place:].strip().strip("]").strip():
        yield left.encode("utf-8", "replace")
