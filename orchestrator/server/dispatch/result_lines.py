"""The lines of result files: an answer's unchanged bytes, or an error in OpenAI's form."""

from __future__ import annotations

import os
from itertools import count

import msgspec

from orchestrator.core import batch_api
from orchestrator.core.batch_api import ErrorObject
from orchestrator.core.error_body import read_error
from orchestrator.core.jsonl import single_line
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.results import Line, LongLine
from orchestrator.server.memory_limits import SMALL
from orchestrator.server.records import BatchOptions

IN_DOUBT = "It was sent before and got no answer, so it may be billed anyway."
_encode = msgspec.json.encode


# An id is a random part for the process and a number. Asking the kernel for each id would cost more than all else in
# the line.
_PREFIX = os.urandom(8).hex().encode()
_NEWLINE, _RETURN = b"\n\r"
"""Newline and carriage return as numbers. Searching bytes for a bytes object is slower: Python first raises and drops
an error.
"""
_HEAD, _REQUEST_ID = b'{"id":"batch_req_' + _PREFIX, b',"request_id":"' + _PREFIX
_numbers = count()


def answer_line(custom_id: msgspec.Raw | bytes, status: int, body: bytes, orch: batch_api.Provenance | None) -> Line:
    """Return a result line around an answer's unchanged bytes; `custom_id` is JSON."""
    # In JSON, newlines occur only between tokens, so spaces can replace them.
    flat = body.replace(b"\n", b" ").replace(b"\r", b" ") if _NEWLINE in body or _RETURN in body else body
    number = b"%08x" % next(_numbers)
    pieces = (
        *(_HEAD, number, b'","custom_id":', custom_id, b',"response":{"status_code":%d' % status),
        *(_REQUEST_ID, number, b'","body":', flat.strip(), b'},"error":null', _extension(orch)),
    )
    if len(body) > SMALL:
        return LongLine(*(single_line(bytes(piece)) for piece in pieces))
    return single_line(b"".join(pieces))


def error_line(custom_id: msgspec.Raw | bytes, code: str, message: str, orch: batch_api.Provenance | None) -> bytes:
    """Return the result line of a row without an answer; `custom_id` is JSON."""
    return single_line(
        b'%b%08x","custom_id":%b,"response":null,"error":%b%b'
        % (_HEAD, next(_numbers), custom_id, _encode({"code": code, "message": message}), _extension(orch))
    )


def unfinished_line(
    custom_id: msgspec.Raw | bytes, code: str, message: str, seconds: float, doubts: int, options: BatchOptions
) -> bytes:
    """Return the result line of a row that has no answer when its batch ends. The row spent `seconds` at upstreams.

    `doubts` counts the row's unanswered sends to an upstream that bills each request.
    """
    orch = None
    if options.provenance and (seconds or doubts):
        orch = batch_api.Provenance("", 0, round(seconds, 6), max(1, doubts), doubts)
    return error_line(custom_id, code, f"{message} {IN_DOUBT}" if doubts else message, orch)


def _extension(orch: batch_api.Provenance | None) -> bytes:
    return b"}" if orch is None else b',"orch":' + _encode(orch) + b"}"


def error_body(reply: Reply) -> bytes:
    """Return an upstream's error body in OpenAI's form. Accepts any form."""
    words = read_error(reply.body)
    message = words.message or f"The upstream answered with status {reply.status} and no reason."
    code = words.code or ("context_length_exceeded" if words.is_context_too_long else None)
    return _encode({"error": ErrorObject(message, words.type or "invalid_request_error", words.param, code)})
