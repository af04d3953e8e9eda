"""One connection to an upstream, for one request at a time: an asyncio protocol, parsed by llhttp.

A caller must know if a request may have reached the upstream, so each kind of failure has its own class.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Sequence
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.server.dispatch.payload import UNCOUNTED, Payload
from orchestrator.server.memory_limits import SMALL, RoomShare

MAX_HEAD_BYTES = 256 * 1024
MOST_DIGITS = 18
"""Maximum digits of a stated length. Python is slow to parse thousands of digits, and then refuses them."""
JOINED_BYTES = 64 * 1024
"""Maximum bytes of a body that is joined to its head and sent in one piece. Copying a longer body would cost more."""
PATIENT_SECONDS = 30.0
"""Minimum seconds to receive the rest of an answer once its room is granted."""
NOTHING = Payload(b"")


class ExchangeError(Exception):
    """Raised if a request got no answer. The message says why, and does not quote the request."""


class NotConnectedError(ExchangeError):
    """Raised if there was no connection, so the request was not sent."""


class ConnectTimeoutError(NotConnectedError):
    """Raised if no connection was made within the time limit."""


class ConnectionCutError(ExchangeError):
    """Raised if the connection ended before the answer was complete. The request may have been carried out."""


class NotHTTPError(ExchangeError):
    """Raised if the response is not HTTP/1.1, or has an encoding that was not requested."""


class NoAnswerError(ExchangeError):
    """Raised if the answer was not complete within the time limit."""


class TooLongError(ExchangeError):
    """Raised if the answer is longer than allowed. `status` is its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__("the answer is too long")
        self.status = status


class HttpAnswer(Struct, frozen=True):
    """A complete answer. Header names are lower case. If a header is repeated, the first value counts.

    `place` is the memory share of a large body. The receiver must give it back.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    place: RoomShare | None = None

    def header(self, name: str) -> str | None:
        """Return the text of a header by its lower-case name, or None."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


class UpstreamConnection(asyncio.Protocol):
    """One connection, which serves one request at a time."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._head_size = 0
        self._in_body = False
        self._until_close = False
        self._is_encoded = False
        self._payload = NOTHING
        self._counted = UNCOUNTED
        self._place: RoomShare | None = None
        self._asked: asyncio.Future[RoomShare] | None = None
        self.is_open = False
        self.deadline = 0.0
        self.is_late = False
        self.idle_since = 0.0

    @property
    def waits_for_room(self) -> bool:
        """True while reading is paused because there is no room for the answer."""
        return self._asked is not None

    def send(self, waiter: asyncio.Future[HttpAnswer], head: bytes, payload: Payload) -> None:
        """Send a request. `waiter` gets the answer or an ExchangeError."""
        self._waiter, self._payload = waiter, payload
        self._counted = UNCOUNTED
        body = payload.take()
        self._headers = []
        self._size = self._head_size = 0
        self._in_body = self._until_close = False
        if isinstance(body, bytes) and len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        if not self._transport.get_write_buffer_size():
            payload.sent()

    def give_up(self, error: ExchangeError | None = None) -> None:
        """Close the connection at once. Its request, if any, ends with `error`."""
        self.is_open = False
        self._transport.abort()
        if error is not None:
            self._fail(error)

    def abandon(self) -> None:
        """Drop the waiter: the answer is no longer wanted."""
        self._waiter = None
        self._release()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast("asyncio.Transport", transport), True
        # A body uses memory until all of it has left; `resume_writing` reports that only with a low-water mark of 0.
        self._transport.set_write_buffer_limits(high=JOINED_BYTES, low=0)

    def resume_writing(self) -> None:
        self._payload.sent()

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.give_up()  # not requested
            return
        if not self._in_body:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.give_up(NotHTTPError("the server wants another protocol"))
        except HttpParserError as error:
            cause = _cause(error)
            self.give_up(ConnectionCutError(cause) if self._in_body else NotHTTPError(f"not HTTP: {cause}"))
        if not self._in_body and self._head_size > MAX_HEAD_BYTES:
            self.give_up(NotHTTPError("the head of the answer is too long"))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._until_close and error is None:
            self._complete()
        elif error is not None:
            self._fail(ConnectionCutError(str(error) or type(error).__name__))
        else:
            self._fail(ConnectionCutError("the connection was closed before the answer was complete"))

    # --- callbacks of the parser

    def on_message_begin(self) -> None:
        if self._waiter is None:
            self.give_up()  # more than one answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._in_body = True
        named = dict(self._headers)
        self._is_encoded = b"content-encoding" in named
        if length := named.get(b"content-length"):
            size = int(length) if len(length) <= MOST_DIGITS else sys.maxsize
            if size > self._max_body:
                self.give_up(TooLongError(status))
            elif size > UNCOUNTED and not self._is_encoded:
                self._need(size)
        elif b"transfer-encoding" not in named and status not in (204, 304):
            self._until_close = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._body.append(body)
            if self._size > self._counted:
                # The total size is unknown: reserve a small amount first, then the maximum.
                self._need(SMALL if self._size <= SMALL else self._max_body)
        else:
            self.give_up(TooLongError(self._parser.get_status_code()))

    def on_message_complete(self) -> None:
        if not self._in_body:
            self._headers = []  # an interim answer (100, 103); the real one follows
            return
        if not self._parser.should_keep_alive():
            self.is_open = False
            self._transport.close()
        self._complete()

    def _need(self, size: int) -> None:
        """Reserve room for an answer of `size` bytes. Pause reading until there is room."""
        self._counted = size
        # An answer that waits for a large amount may hold a small amount, never the other way round: no deadlock.
        if self._asked is not None or (asked := self._payload.ask(size)) is None:
            return
        if asked.done():
            self._has_room(asked)
        else:
            self._asked = asked
            self._transport.pause_reading()
            asked.add_done_callback(self._has_room)

    def _has_room(self, asked: asyncio.Future[RoomShare]) -> None:
        was_waiting, self._asked = self._asked is asked, None
        if not asked.cancelled():
            self._give_back()
            self._place = asked.result()
        if was_waiting and self.is_open:
            until = asyncio.get_running_loop().time() + PATIENT_SECONDS
            self.deadline, self.is_late = max(self.deadline, until), False
            self._transport.resume_reading()

    def _give_back(self) -> None:
        if self._place is not None:
            self._place.give_back()
            self._place = None

    def _release(self) -> None:
        self._body, self._payload = [], NOTHING
        if (asked := self._asked) is not None:
            self._asked = None
            asked.remove_done_callback(self._has_room)
            if not asked.cancel() and not asked.cancelled():
                asked.result().give_back()
            if self.is_open:
                self._transport.resume_reading()
        if self._place is not None:
            self._give_back()

    def _complete(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body = []
            if (place := self._place) is not None:
                place.give_back(keep=len(body))
            answer = HttpAnswer(self._parser.get_status_code(), self._headers, body, place)
            if self._is_encoded:
                try:
                    answer = _decompressed(answer, self._max_body)
                except ExchangeError as error:
                    self._fail(error)
                    return
            self._place = None
            waiter.set_result(answer)
        self.abandon()

    def _fail(self, error: ExchangeError) -> None:
        waiter, self._waiter = self._waiter, None
        self._release()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


def _decompressed(answer: HttpAnswer, most: int) -> HttpAnswer:
    encoding = (answer.header("content-encoding") or "").lower()
    if encoding == "identity":
        return answer
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise NotHTTPError("the answer is compressed in a way that was not asked for")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # recognizes gzip or zlib by the header
    try:
        body = unpacker.decompress(answer.body, most + 1)
    except zlib.error as error:
        raise NotHTTPError(f"the answer cannot be unpacked: {error}") from None
    if len(body) > most:
        raise TooLongError(answer.status)
    if not unpacker.eof:
        raise ConnectionCutError("the compressed answer is incomplete")
    return replace(answer, body=body)


def _cause(error: HttpParserError) -> str:
    """Return the message of the error raised in our own callback, or the parser's message if there is none."""
    return str(error.__context__ or error)
