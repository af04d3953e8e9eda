"""One HTTP request for one row, and its result in the terms of `retry`.

Requests that are passed through use aiohttp (see docs/decisions/0007).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from orchestrator.core.answers import TokenCounts, answer_tokens, plain_answer_tokens, read_answer
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.clock import now
from orchestrator.core.error_body import ErrorWords, read_error
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.refusal_words import status_meant
from orchestrator.core.request_lines import is_too_deep
from orchestrator.core.retry_after import retry_after
from orchestrator.server.dispatch import http1
from orchestrator.server.dispatch.payload import Payload
from orchestrator.server.dispatch.rate_limiter import LONGEST_TEXT, Standings, read_standings
from orchestrator.server.dispatch.retry import ANSWER, End
from orchestrator.server.memory_limits import SMALL, RoomShare

CONNECT_SECONDS = 5.0
MAX_RETRY_AFTER = 120.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum bytes of an answer, because many answers are in memory at once.

A row's answer may have half of this, because its result is one line.
"""
MAX_TEXT_BYTES = 65_536
"""Maximum bytes to keep of an error body that is not a JSON object."""
_GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
T = TypeVar("T")
_ENDS = {
    http1.NotConnectedError: End.UNREACHABLE,
    http1.ConnectTimeoutError: End.UNREACHABLE,
    http1.ConnectionCutError: End.CUT,
    http1.NotHTTPError: End.GARBLED,
    http1.NoAnswerError: End.TIMED_OUT,
    http1.TooLongError: End.TOO_LONG,
}


class Reply(msgspec.Struct, frozen=True):
    """The end of one attempt, with the answer's body. `detail` describes the end and never contains the prompt.

    `standings` are the rates that the answer states, or None if not read or not stated. `tokens` come from the body;
    None if not read yet. `place` is the memory share of a large body.
    """

    end: End
    status: int = 0
    body: bytes = b""
    detail: str = ""
    retry_after: float | None = None
    standings: Standings | None = None
    tokens: TokenCounts | None = None
    place: RoomShare | None = None

    def drop(self) -> None:
        """Free the body's memory, unless the body is still to be written as a result."""
        if self.place is not None and not self.place.is_handed_on:
            self.place.give_back()


class Client:
    """Posts JSON to one server. With `reads_rates`, it reads the rate limits that answers state."""

    def __init__(self, root: str, headers: dict[str, str], timeout: float, *, reads_rates: bool = False) -> None:
        self._reads_rates = reads_rates
        self._pool = http1.ConnectionPool(
            root, headers, timeout=timeout, connect_timeout=CONNECT_SECONDS, max_body=MAX_ANSWER_BYTES
        )

    async def close(self) -> None:
        await self._pool.close()

    async def post(self, path: str, body: bytes | Payload) -> Reply:
        """Make one attempt. Never raises an error, whatever the server does. Cancellation still passes through."""
        try:
            answer = await self._pool.post(path, body)
        except http1.TooLongError as error:
            detail = f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes"
            return Reply(End.TOO_LONG, error.status, detail=detail)
        except http1.ExchangeError as error:
            return Reply(_ENDS[type(error)], detail=str(error))
        except Exception as error:  # noqa: BLE001  (whatever goes wrong here is this row's outcome)
            return Reply(End.GARBLED, detail=f"{type(error).__name__}: {error}")
        try:
            is_long = len(answer.body) > SMALL  # a long check runs in a thread, so that other rows are served
            reply = await asyncio.to_thread(_reply, path, answer) if is_long else _reply(path, answer)
        except BaseException:
            if answer.place is not None:
                answer.place.give_back()
            raise
        if answer.place is not None:
            reply = replace(reply, place=answer.place)
        return replace(reply, standings=read_standings(answer.header, now())) if self._reads_rates else reply


def _reply(path: str, answer: http1.HttpAnswer) -> Reply:
    """Return the reply. A body that is not an answer becomes an error, or is retried.

    This applies only to endpoints that generate text. The status of a video, for example, may be `queued`.
    """
    if answer.status >= 300:
        return _unlike(answer)
    body = answer.body
    if not path.startswith(_GENERATING):
        tokens = _read(body, answer_tokens)
        return _unlike(answer) if tokens is None else Reply(End.ANSWERED, answer.status, body, tokens=tokens)
    if (tokens := _read(body, plain_answer_tokens)) is not None:
        return Reply(ANSWER, answer.status, body, tokens=tokens)
    if (head := _read(body, read_answer)) is None:
        return _unlike(answer)
    reply = Reply(End.ANSWERED, answer.status, body, tokens=head.tokens)
    words = read_error(body) if head.error else ErrorWords()
    if words.is_page:
        words = ErrorWords()  # an object that cannot be read in full: no server reports an error in this form
    if (status := status_meant(words)) is not None:
        return replace(reply, status=status, tokens=None)
    problem = words.message or head.not_an_answer
    return reply if problem is None else replace(reply, end=End.ABORTED, detail=problem, tokens=None)


def is_object(body: bytes) -> bool:
    """True if a body is a JSON object in UTF-8 that is not nested too deeply for later readers."""
    return _read(body, _decode_object) is not None


def _read(body: bytes, decode: Callable[[bytes], T]) -> T | None:
    try:
        if not body.isascii():
            body.decode()  # the JSON decoder does not check strings that it skips
        found = decode(body)
    except JSON_ERRORS:
        return None
    return None if is_too_deep(body) else found


class _Object(msgspec.Struct):
    """Any JSON object. Its fields are validated as JSON but not kept."""


_decode_object = json_decoder(_Object).decode


def _unlike(answer: http1.HttpAnswer) -> Reply:
    """Return the reply for an error, or for an answer that is not JSON."""
    status, body = answer.status, answer.body
    if not is_object(body):
        if status < 300:
            kind = (answer.header("content-type") or "of no type")[:LONGEST_TEXT]
            detail = f"the answer ({kind}, {len(body)} bytes) is not a JSON object"
            return Reply(End.GARBLED, status, detail=detail)
        body = body[:MAX_TEXT_BYTES]  # a page of text or HTML, which begins with the reason
    return Reply(End.ANSWERED, status, body, retry_after=retry_after(answer.header, now(), most=MAX_RETRY_AFTER))
