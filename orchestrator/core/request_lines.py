"""Reads lines of batch input files, with the checks that all endpoints share. A body's bytes stay unchanged."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from io import BufferedReader
from itertools import accumulate
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from orchestrator.core.batch_api import ENDPOINTS, JSON_ERRORS, MAX_DEPTH, MAX_LINE_BYTES, NO_BODY, LineError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.sanitize import shortened

B = TypeVar("B")


class RequestLine(msgspec.Struct, frozen=True):
    """An unchecked line of a batch input file. `check_line` reports fields that are missing or have a wrong type."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = NO_BODY


class _BodyHead(msgspec.Struct, frozen=True):
    model: Any = None
    stream: Any = None
    messages: msgspec.Raw = NO_BODY


class CheckedLine(msgspec.Struct, frozen=True):
    """A request line that passed every check."""

    custom_id: str
    url: str
    model: str | None
    body: msgspec.Raw


class WrittenLine(msgspec.Struct, Generic[B]):
    """A request line as a build writes it."""

    custom_id: str
    method: str
    url: str
    body: B


written_line = json_decoder(WrittenLine[dict[str, Any]]).decode
raw_line = json_decoder(WrittenLine[dict[str, msgspec.Raw]]).decode
"""Decodes a `WrittenLine`; the values in its body stay raw bytes."""
_decode_line = json_decoder(RequestLine).decode
_decode_head = json_decoder(_BodyHead).decode
FEW_BRACKETS = 20
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{")
_NO_STEPS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_TO_STEPS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
_FEW_STEPS = 256
_BLOCK = 256 * 1024
# An unterminated string is also one token, so that no byte is scanned twice.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)|[][{}]', re.DOTALL)
_TEXT_VALUE = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_BOM = b"\xef\xbb\xbf"
LONGEST_SHOWN = 200
LONGEST_MODEL = 1000
"""Maximum characters of a model's name, which is kept with the batch in memory and in the database."""
_WHITE_SPACE = b" \t\r\n"
_BLANK = (b"{}", b"null", b"[]", b'""')


def _missing(param: str) -> LineError:
    return LineError("missing_required_parameter", f"Missing required parameter: '{param}'.", param)


def is_too_deep(raw: bytes, most: int = MAX_DEPTH) -> bool:
    """True if JSON nests more than `most` lists and objects; works without recursion.

    Nearly all JSON has fewer brackets than `most`, so counting them suffices: 0.5 µs for a row of 1 kB. Other JSON is
    read in blocks, so that even 30 MB of brackets block other threads for only a few milliseconds at a time.
    """
    if len(raw) <= 2 * most or _has_few_brackets(raw) or not _has_more_brackets(raw, most):
        return False
    depth = 0
    for steps in _steps(raw):
        for start in range(0, len(steps), _FEW_STEPS):
            few = steps[start : start + _FEW_STEPS]
            opened = few.count(1)
            if depth + opened > most and max(accumulate(memoryview(few).cast("b"), initial=depth)) > most:
                return True
            depth += 2 * opened - len(few)
    return False


def _steps(raw: bytes) -> Iterator[bytes]:
    """Yield the brackets outside strings, block by block: byte 1 for an opening bracket, 255 (-1) for a closing
    bracket.
    """
    start, in_string = 0, False
    while start < len(raw):
        block = raw[start : start + _BLOCK]
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block = raw[start : start + _BLOCK + 1]  # an escape is never split
        start += len(block)
        parts = block.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[in_string::2]).translate(_TO_STEPS, _NO_STEPS)
        in_string ^= len(parts) % 2 == 0


def _has_few_brackets(raw: bytes) -> bool:
    """True if a long text has fewer than FEW_BRACKETS opening brackets. Searching for the next bracket is the
    cheapest test.
    """
    if len(raw) < 2048:
        return False
    find, left = raw.find, FEW_BRACKETS
    for bracket in (b"{", b"["):
        place = find(bracket)
        while place >= 0:
            left -= 1
            if not left:
                return False
            place = find(bracket, place + 1)
    return True


def _has_more_brackets(raw: bytes, most: int) -> bool:
    found = 0
    for start in range(0, len(raw), _BLOCK):
        found += len(raw[start : start + _BLOCK].translate(None, _NO_BRACKETS))
        if found > most:
            return True
    return False


def find_custom_id(raw: bytes) -> msgspec.Raw | None:
    """Return a line's custom_id as JSON, even if no decoder can read the line; None if the line has no custom_id."""
    depth = 0
    for token in _TOKENS.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        elif depth == 1 and token[0] == b'"custom_id"' and (found := _TEXT_VALUE.match(raw, token.end())):
            with contextlib.suppress(*JSON_ERRORS):
                found[1].decode()
                msgspec.json.decode(found[1], type=str)
                return msgspec.Raw(found[1])
    return None


TOO_DEEP = LineError("invalid_json_line", f"This line nests lists and objects more than {MAX_DEPTH} deep.")


def check_line(raw: bytes, endpoint: str | None = None) -> CheckedLine | LineError:
    """Check a request line as the Batch API does. `endpoint` is the batch's endpoint, None if lines may have
    different endpoints.

    Checks that need other lines (a repeated custom_id, differing models) are left to the caller.
    """
    if len(raw) > MAX_LINE_BYTES:
        return LineError("invalid_json_line", f"This line is longer than {MAX_LINE_BYTES:,} bytes.")
    try:
        line = _decode_line(raw)
        if not raw.isascii():
            raw.decode()  # the JSON decoder does not check strings that it skips
    except RecursionError:
        return TOO_DEEP
    except JSON_ERRORS:
        return LineError("invalid_json_line", "This line is not parseable as valid JSON.")
    if is_too_deep(raw):
        return TOO_DEEP
    if fault := _check_frame(line, endpoint):
        return fault
    try:
        head = _decode_head(line.body)
    except JSON_ERRORS:
        return LineError("invalid_request", "The body must be a JSON object.", "body")
    if fault := _check_body(head, line.url):
        return fault
    return CheckedLine(line.custom_id, line.url, head.model, line.body)


def _check_frame(line: RequestLine, endpoint: str | None) -> LineError | None:
    for param, value in (("custom_id", line.custom_id), ("method", line.method), ("url", line.url)):
        if value is None or value == "":
            return _missing(param)
        if not isinstance(value, str):
            return LineError("invalid_request", f"'{param}' must be a string.", param)
    if _is_blank(line.body):
        return _missing("body")
    if line.method != "POST":
        return LineError("invalid_request", "The method must be 'POST'.", "method")
    if endpoint is None and line.url not in ENDPOINTS:
        return LineError("invalid_url", f"The URL must be one of {', '.join(ENDPOINTS)}.", "url")
    if endpoint is not None and line.url not in (endpoint, short_url(endpoint)):
        return LineError("invalid_url", "The URL provided for this request does not match the batch endpoint.", "url")
    return None


def short_url(endpoint: str) -> str:
    """Return an endpoint in Azure's spelling for batches: `/chat/completions`."""
    return endpoint.removeprefix("/v1")


def _is_blank(value: msgspec.Raw) -> bool:
    return memoryview(value).nbytes < 100 and b"".join(bytes(value).split()) in _BLANK


def _check_body(head: _BodyHead, url: str) -> LineError | None:
    if head.model is None or head.model == "":
        return LineError("invalid_request", "Model parameter is required.", "body.model")
    if not isinstance(head.model, str):
        return LineError("invalid_request", "Model must be a string.", "body.model")
    if len(head.model) > LONGEST_MODEL:
        return LineError("invalid_request", f"Model is longer than {LONGEST_MODEL} characters.", "body.model")
    if head.stream:
        # OpenAI's message begins this way for chat completions; its messages for other endpoints are unknown.
        prefix = "Chat Completions: " if url == "/v1/chat/completions" else ""
        return LineError(
            "streaming_unsupported", f"{prefix}Streaming is not supported in the Batch API.", "body.stream"
        )
    if url == "/v1/chat/completions" and _is_blank(head.messages):
        return LineError("invalid_request", "Messages parameter is required.", "body.messages")
    return None


def lines(file: BinaryIO, longest: int = MAX_LINE_BYTES) -> Iterator[tuple[int, int, bytes]]:
    """Yield `(number, offset, line)` of each line that is not blank, without BOM and line ending. Numbers start at 1.

    Only "\\n" ends a line, and a blank line has only JSON's whitespace. A line longer than `longest` is cut a few
    bytes after that limit; `check_line` still refuses it.
    """
    offset = 0
    number = 0
    readline, most = file.readline, len(_BOM) + longest + 2
    while part := readline(most):
        number += 1
        start, raw = offset, part
        offset += len(part)
        while not part.endswith(b"\n") and (part := readline(1 << 20)):
            offset += len(part)
        if number == 1 and raw.startswith(_BOM):
            raw, start = raw.removeprefix(_BOM), start + len(_BOM)
        raw = raw.rstrip(b"\r\n")
        if raw and (raw[0] > 32 or raw.strip(_WHITE_SPACE)):
            yield number, start, raw
        elif isinstance(file, BufferedReader):
            # A file that consists of line ends can have hundreds of millions of them.
            while blank := _blank_lines(file.peek()):
                offset += len(file.read(len(blank)))
                number += blank.count(b"\n")


def _blank_lines(data: bytes) -> bytes:
    white = data[: len(data) - len(data.lstrip(_WHITE_SPACE))]
    return white[: white.rfind(b"\n") + 1]


def id_key(custom_id: str) -> int:
    """Return a 64-bit key for a custom_id, valid only in this process.

    Keys take little memory and practically never collide.
    """
    return hash(custom_id) & 0xFFFF_FFFF_FFFF_FFFF


def shown(name: str) -> str:
    """Return a name, shortened for use in errors. Otherwise every error would store and send a name of up to 30
    MB.
    """
    return name if len(name) <= LONGEST_SHOWN else shortened(name[: LONGEST_SHOWN + 1], LONGEST_SHOWN)


def duplicate_error(custom_id: str) -> LineError:
    """Return the error entry for a repeated custom_id."""
    return LineError(
        "duplicate_custom_id",
        f"The custom_id '{shown(custom_id)}' for this request is a duplicate of another request. "
        "The custom_id parameter must be unique for each request in a batch.",
        "custom_id",
    )
