"""One connection to an upstream and the request that is out on it: an asyncio protocol, parsed by llhttp.

What a caller must know exactly is whether a request may have reached the other side, so each failure has a class of
its own.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import NamedTuple, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from orchestrator.server.dispatch.payload import UNCOUNTED, Payload
from orchestrator.server.memory_limits import SMALL, RoomShare

MAX_HEAD_BYTES = 256 * 1024
MOST_DIGITS = 18
"""Of a length; Python takes long to read thousands of digits, and refuses more."""
JOINED_BYTES = 64 * 1024
"""A body up to this length goes out in one piece with the head; a longer one is not copied for it."""
PATIENT_SECONDS = 30.0
"""The least time for the rest of an answer that was not read for a while, as there was no room for it."""
NOTHING = Payload(b"")


class ExchangeError(Exception):
    """A request that got no answer; its text says why and holds nothing of the request."""


class NotConnectedError(ExchangeError):
    """There is no connection: nothing of the request has left."""


class ConnectTimeoutError(NotConnectedError):
    """There was no connection in time."""


class ConnectionCutError(ExchangeError):
    """The connection ended before the answer was whole: the request may have been carried out."""


class NotHTTPError(ExchangeError):
    """What came back is not HTTP/1.1, or is encoded in a way nobody asked for."""


class NoAnswerError(ExchangeError):
    """The answer was not whole in time."""


class TooLongError(ExchangeError):
    """The answer is longer than is accepted; `status` is its status."""

    def __init__(self, status: int) -> None:
        super().__init__("the answer is too long")
        self.status = status


class HttpAnswer(NamedTuple):
    """A whole answer. Header names are lower case; of a header that comes twice the first counts.

    `place` is the room that a large body takes: whoever gets the answer gives it back.
    """

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    place: RoomShare | None = None

    def header(self, name: str) -> str | None:
        """The text of a header by its name in lower case, None where there is none."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


class UpstreamConnection(asyncio.Protocol):
    """One connection and the one request that is out on it."""

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
        """True while nothing more of an answer is read, because there is no room for it."""
        return self._asked is not None

    def send(self, waiter: asyncio.Future[HttpAnswer], head: bytes, payload: Payload) -> None:
        """Send a request; the waiter gets its answer, or an ExchangeError."""
        self._waiter, self._payload = waiter, payload
        self._counted = UNCOUNTED
        body = payload.take()
        self._headers, self._body = [], []
        self._size = self._head_size = 0
        self._in_body = self._until_close = False
        if len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
            if not self._transport.get_write_buffer_size():
                payload.sent()

    def give_up(self, error: ExchangeError | None = None) -> None:
        """Close the connection at once; the request that is out on it, if any, ends with the error."""
        self.is_open = False
        self._transport.abort()
        if error is not None:
            self._fail(error)

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self._waiter = None
        self._dropped()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast("asyncio.Transport", transport), True
        # A body counts until all of it has left, which `resume_writing` says where a buffer must be empty for it.
        self._transport.set_write_buffer_limits(high=JOINED_BYTES, low=0)

    def resume_writing(self) -> None:
        self._payload.sent()

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.give_up()  # nobody asked
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

    # --- what the parser finds

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
        if length := named.get(b"content-length"):
            if len(length) > MOST_DIGITS or int(length) > self._max_body:
                self.give_up(TooLongError(status))
            elif int(length) > UNCOUNTED and b"content-encoding" not in named:
                self._need(int(length))
        elif b"transfer-encoding" not in named and status not in (204, 304):
            self._until_close = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._body.append(body)
            if self._size > self._counted:
                # Of how many bytes there will be, nothing is known: small ones first, then as many as there may be.
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
        """See that there is room for an answer of so many bytes; until there is, no more of it is read."""
        self._counted = size
        if self._payload.ask is None or self._asked is not None:
            return
        # Who waits for a large place may hold a small one, and never the other way round: nobody waits in a circle.
        asked = self._payload.ask(size)
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

    def _dropped(self) -> None:
        """Nothing more of the answer is held here, nor of the request."""
        self._body, self._payload = [], NOTHING
        if (asked := self._asked) is not None:
            self._asked = None
            asked.remove_done_callback(self._has_room)
            if not asked.cancel() and not asked.cancelled():
                asked.result().give_back()
            if self.is_open:
                self._transport.resume_reading()
        self._give_back()

    def _complete(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            self._dropped()
            return
        parts, status = self._body, self._parser.get_status_code()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        del parts
        self._body = []
        place, self._place = self._place, None
        try:
            if place is not None:
                place.give_back(keep=len(body))
            waiter.set_result(_plain(HttpAnswer(status, self._headers, body, place), self._max_body))
        except ExchangeError as error:
            self._place = place
            waiter.set_exception(error)
        self._dropped()

    def _fail(self, error: ExchangeError) -> None:
        waiter, self._waiter = self._waiter, None
        self._dropped()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


def _plain(answer: HttpAnswer, most: int) -> HttpAnswer:
    """An answer as it was before it was compressed. Raises NotHTTPError, TooLongError."""
    encoding = next((value.lower() for name, value in answer.headers if name == b"content-encoding"), b"identity")
    if encoding == b"identity":
        return answer
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise NotHTTPError("the answer is compressed in a way that was not asked for")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # by its header: gzip or zlib
    try:
        body = unpacker.decompress(answer.body, most + 1)
    except zlib.error as error:
        raise NotHTTPError(f"the answer cannot be unpacked: {error}") from None
    if len(body) > most:
        raise TooLongError(answer.status)
    if not unpacker.eof:
        raise ConnectionCutError("the compressed answer is incomplete")
    return answer._replace(body=body)


def _cause(error: HttpParserError) -> str:
    """What the parser tripped over; an error in one of our callbacks hides the real one."""
    return str(error.__context__ or error)
