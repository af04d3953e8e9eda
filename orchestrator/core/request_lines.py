"""Lines of batch input files: read, and checked for what no endpoint takes. A body stays the bytes that it is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from orchestrator.core.wire import ENDPOINTS, JSON_ERRORS, MAX_DEPTH, MAX_LINE_BYTES, NO_BODY, LineError


class RequestLine(msgspec.Struct, frozen=True):
    """One line of a batch input file. Fields that are missing or of another type are found by `check_line`."""

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


_decode_line = msgspec.json.Decoder(RequestLine).decode
_decode_head = msgspec.json.Decoder(_BodyHead).decode
FEW_BRACKETS = 20
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{")
# A string that does not end is one token too, so that nothing is scanned twice.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)|[][{}]', re.DOTALL)
_TEXT_VALUE = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\r\n"
_BLANK = (b"{}", b"null", b"[]", b'""')


def _missing(param: str) -> LineError:
    return LineError("missing_required_parameter", f"Missing required parameter: '{param}'.", param)


def is_too_deep(raw: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether JSON nests more than `most` lists and objects in one another; found without recursion.

    Nearly all of it has fewer of them than that, which takes a look at its brackets alone: 0.5 µs at a row of 1 kB.
    """
    if len(raw) <= 2 * most or _has_few_brackets(raw) or len(raw.translate(None, _NO_BRACKETS)) <= most:
        return False
    depth = 0
    for token in _TOKENS.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
            if depth > most:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _has_few_brackets(raw: bytes) -> bool:
    """Whether it has hardly any list or object: of a long text, a search for the next one is what costs least."""
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


def find_custom_id(raw: bytes) -> msgspec.Raw | None:
    """The custom_id of a line as JSON, also where no decoder reads the line; None where it has none."""
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
    """Check one request line as the Batch API does; `endpoint` is the batch's, None where lines may differ.

    Not checked here: what needs the other lines (a custom_id given twice, models that differ).
    """
    if len(raw) > MAX_LINE_BYTES:
        return LineError("invalid_json_line", f"This line is longer than {MAX_LINE_BYTES:,} bytes.")
    try:
        line = _decode_line(raw)
        raw.decode()  # the JSON decoder does not look into strings that it skips
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
    """An endpoint as Azure spells it in batches: `/chat/completions`."""
    return endpoint.removeprefix("/v1")


def _is_blank(value: msgspec.Raw) -> bool:
    return memoryview(value).nbytes < 100 and b"".join(bytes(value).split()) in _BLANK


def _check_body(head: _BodyHead, url: str) -> LineError | None:
    if head.model is None or head.model == "":
        return LineError("invalid_request", "Model parameter is required.", "body.model")
    if not isinstance(head.model, str):
        return LineError("invalid_request", "Model must be a string.", "body.model")
    if head.stream:
        # OpenAI names its first endpoint so in this text; what it says at others is not known.
        prefix = "Chat Completions: " if url == "/v1/chat/completions" else ""
        return LineError(
            "streaming_unsupported", f"{prefix}Streaming is not supported in the Batch API.", "body.stream"
        )
    if url == "/v1/chat/completions" and _is_blank(head.messages):
        return LineError("invalid_request", "Messages parameter is required.", "body.messages")
    return None


def lines(file: BinaryIO, longest: int = MAX_LINE_BYTES) -> Iterator[tuple[int, int, bytes]]:
    """`(number from 1, offset, line)` of each line that is not blank; a BOM and line ends are left out.

    Only "\\n" ends a line, and a blank one has nothing but JSON's white space. Of a line above `longest` no more than
    that and a few bytes is held or given: enough for `check_line` to refuse it.
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


def id_key(custom_id: str) -> int:
    """64 bits that stand for a custom_id within this process: a fraction of its memory, no collision in practice."""
    return hash(custom_id) & 0xFFFF_FFFF_FFFF_FFFF


def duplicate_error(custom_id: str) -> LineError:
    """The entry for a custom_id that an earlier line has."""
    return LineError(
        "duplicate_custom_id",
        f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
        "The custom_id parameter must be unique for each request in a batch.",
        "custom_id",
    )
