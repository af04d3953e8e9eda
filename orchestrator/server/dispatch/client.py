"""One HTTP request for one row: the only module that knows the client library of the hot path.

pyreqwest (Rust) costs about half the CPU of aiohttp for a request; everything else that speaks to an upstream, a few
requests a second, uses aiohttp (see docs/decisions/0007).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import msgspec
from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import (
    BodyDecodeError,
    DecodeError,
    DetailedPyreqwestError,
    PyreqwestError,
    RequestTimeoutError,
)
from pyreqwest.response import Response

from orchestrator.clock import now
from orchestrator.server.dispatch.pace import LONGEST_TEXT, Standings, read_standings
from orchestrator.server.dispatch.retry import End
from orchestrator.wire import NO_JSON, is_too_deep

CONNECT_SECONDS = 5.0
MAX_RETRY_AFTER = 120.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""An answer above it is given up, as many are out at once. (Of one row, half of it: its result is one line.)"""
Header = Callable[[str], str | None]
"""An answer's header by its name in lower case."""
_NOT_CONNECTED = "client error (Connect)"
"""How the library says, in an error's causes, that the request never left."""


@dataclass(frozen=True, slots=True)
class Reply:
    """How one attempt ended; `body` is the answer's, `detail` is for people and holds nothing of the prompt.

    `standings` is what it says of the upstream's rates, None where it was not asked for or says nothing.
    """

    end: End
    status: int = 0
    body: bytes = b""
    detail: str = ""
    retry_after: float | None = None
    standings: Standings | None = None


class Client:
    """Posts JSON. Connections are kept; redirects are not followed; proxies come from nowhere.

    `reads_rates`: what answers say of the upstream's rates is read.
    """

    def __init__(self, headers: dict[str, str], timeout: float, *, reads_rates: bool = False) -> None:
        self._timeout = timeout
        self._reads_rates = reads_rates
        self._client = (
            ClientBuilder()
            .default_headers({"content-type": "application/json", **headers})
            .timeout(timedelta(seconds=timeout))
            .connect_timeout(timedelta(seconds=CONNECT_SECONDS))
            # A redirect could lead a local row to a host that nobody declared, and so could a proxy.
            .follow_redirects(False)
            .no_proxy()
            .build()
        )
        self._post = self._client.post

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def post(self, url: str, body: bytes) -> Reply:
        """One attempt. Never raises for what a server can do; cancellation passes through."""
        try:
            async with self._post(url).body_bytes(body).build_streamed() as response:
                answer = await _read(response)
            return self._reply(response, answer)
        except RequestTimeoutError as error:
            if _never_left(error):
                return Reply(End.UNREACHABLE, detail=f"no connection within {CONNECT_SECONDS:g} s")
            return Reply(End.TIMED_OUT, detail=f"no answer within {self._timeout:g} s")
        except BodyDecodeError as error:
            return Reply(End.CUT, detail=_say(error))
        except DecodeError as error:
            return Reply(End.GARBLED, detail=f"not HTTP: {_say(error)}")
        except PyreqwestError as error:
            return Reply(End.UNREACHABLE if _never_left(error) else End.CUT, detail=_say(error))
        except Exception as error:  # noqa: BLE001  (whatever the library trips over is this row's outcome)
            return Reply(End.GARBLED, detail=f"{type(error).__name__}: {error}")

    def _reply(self, response: Response, answer: bytes | None) -> Reply:
        if answer is None:
            detail = f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes"
            return Reply(End.TOO_LONG, response.status, detail=detail)
        if response.status < 300 and is_object(answer):
            reply = Reply(End.ANSWERED, response.status, answer)
        else:
            reply = _unlike(response.status, partial(_header, response), answer)
        if not self._reads_rates:
            return reply
        return replace(reply, standings=read_standings(partial(_header, response), now()))


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:  # bytes that are no text
        return None


async def _read(response: Response) -> bytes | None:
    """The body; None where it is too long, and then the connection is not used again."""
    parts, size, reader = [], 0, response.body_reader
    while (part := await reader.read_chunk()) is not None:
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            return None
        parts.append(part.to_bytes())
    return b"".join(parts)


def is_object(body: bytes) -> bool:
    """Whether a body is a JSON object in UTF-8, nested no deeper than what is read again later may be."""
    try:
        if not body.isascii():
            body.decode()  # the JSON decoder does not look into strings that it skips
        _decode_object(body)
    except NO_JSON:
        return False
    return not is_too_deep(body)


class _Object(msgspec.Struct):
    """Any JSON object: fields that are not named here are checked and skipped."""


_decode_object = msgspec.json.Decoder(_Object).decode


def _unlike(status: int, header: Header, body: bytes) -> Reply:
    """The reply for anything but a good answer."""
    if not is_object(body):
        if status < 300:
            kind = header("content-type") or "of no type"
            detail = f"the answer ({kind}, {len(body)} bytes) is no JSON object"
            return Reply(End.GARBLED, status, detail=detail)
        body = b""
    return Reply(End.ANSWERED, status, body, retry_after=retry_after(header))


def retry_after(header: Header) -> float | None:
    """Seconds, as `retry-after-ms` or `Retry-After` (seconds, or a date) says it; at most MAX_RETRY_AFTER.

    None where neither header says it in a form that can be read. Never raises.
    """
    milliseconds = _number(header("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER)
    text = header("retry-after")
    seconds = _number(text)
    if seconds is None and text is not None and len(text) <= LONGEST_TEXT:
        try:
            then = parsedate_to_datetime(text)
            then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
            seconds = max(0.0, (then - now()).total_seconds())
        except (ValueError, OverflowError):  # no date, or one beyond the calendar
            return None
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number <= math.inf else None


def _causes(error: PyreqwestError) -> list[str]:
    details: Any = error.details if isinstance(error, DetailedPyreqwestError) else None
    return [cause["message"] for cause in (details or {}).get("causes") or ()]


def _never_left(error: PyreqwestError) -> bool:
    return _NOT_CONNECTED in _causes(error)


def _say(error: PyreqwestError) -> str:
    """The innermost cause: the outer ones repeat the URL."""
    causes = _causes(error)
    return causes[-1] if causes else type(error).__name__
