"""HTTP/1.1 over kept connections: one asyncio protocol and a pool, parsed by llhttp (`httptools`).

The hot path of the server. A general client costs a row more than everything else together (docs/decisions/0007), and
most of what it knows must not happen here: no redirects, no cookies, no proxies, no retries. What a caller must know
exactly is whether a request may have reached the other side, so each failure has a class of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from orchestrator.server.dispatch import unreachable

IDLE_SECONDS = 4.0
"""A connection that idled longer is not used again: uvicorn, and vLLM with it, closes one after five."""
ADDRESS_SECONDS = 60.0
"""For how long the addresses of a name are taken to be the same."""
MAX_HEAD_BYTES = 256 * 1024
MOST_DIGITS = 18
"""Of a length; Python takes long to read thousands of digits, and refuses more."""
JOINED_BYTES = 64 * 1024
"""A body up to this length goes out in one piece with the head; a longer one is not copied for it."""
LATEST_LOOK = 1.0
"""At the latest so many seconds behind its time a request is given up."""


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
    """A whole answer. Header names are lower case; of a header that comes twice the first counts."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The text of a header by its name in lower case, None where there is none."""
        wanted = name.encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)


class _Connection(asyncio.Protocol):
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
        self.is_open = False
        self.deadline = 0.0
        self.is_late = False
        self.idle_since = 0.0

    def send(self, waiter: asyncio.Future[HttpAnswer], head: bytes, body: bytes) -> None:
        """Send a request; the waiter gets its answer, or an ExchangeError."""
        self._waiter = waiter
        self._headers, self._body = [], []
        self._size = self._head_size = 0
        self._in_body = self._until_close = False
        if len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def give_up(self, error: ExchangeError | None = None) -> None:
        """Close the connection at once; the request that is out on it, if any, ends with the error."""
        self.is_open = False
        self._transport.abort()
        if error is not None:
            self._fail(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

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
        elif b"transfer-encoding" not in named and status not in (204, 304):
            self._until_close = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._max_body:
            self._body.append(body)
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

    def _complete(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        parts, status = self._body, self._parser.get_status_code()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            waiter.set_result(_plain(HttpAnswer(status, self._headers, body), self._max_body))
        except ExchangeError as error:
            waiter.set_exception(error)

    def _fail(self, error: ExchangeError) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class ConnectionPool:
    """Connections to one server. Use it on one event loop; `timeout` seconds are those of a whole request.

    `url` is the server's root, `http` or `https`; certificates are those that the system trusts.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], *, timeout: float, connect_timeout: float, max_body: int
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "an upstream's address is checked when settings are read"
        self._host, self._tls = parts.hostname, ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        lines = {"host": parts.netloc.rpartition("@")[2], "content-type": "application/json", **headers}
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")
        self._timeout, self._connect_timeout = timeout, min(connect_timeout, timeout)
        self._max_body = max_body
        self._heads: dict[str, bytes] = {}
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._addresses: Sequence[str] = ()
        self._addresses_until = float("-inf")
        self._look: asyncio.TimerHandle | None = None

    async def post(self, path: str, body: bytes) -> HttpAnswer:
        """POST a body and wait for the whole answer, whatever its status. Raises ExchangeError."""
        loop = asyncio.get_running_loop()
        head = b"%s%d\r\n\r\n" % (self._heads.get(path) or self._head(path), len(body))
        return await self._exchange(loop, self._idle_one(loop.time()) or await self._connect(loop), head, body)

    async def get(self, path: str) -> HttpAnswer:
        """GET a page, whatever its status. Raises ExchangeError."""
        loop = asyncio.get_running_loop()
        head = f"GET {self._target(path)} HTTP/1.1\r\n".encode() + self._lines + b"\r\n"
        if (kept := self._idle_one(loop.time())) is not None:
            # The server may be closing a kept connection just now; to ask for a page twice does no harm.
            with contextlib.suppress(ConnectionCutError):
                return await self._exchange(loop, kept, head, b"")
        return await self._exchange(loop, await self._connect(loop), head, b"")

    async def _exchange(
        self, loop: asyncio.AbstractEventLoop, connection: _Connection, head: bytes, body: bytes
    ) -> HttpAnswer:
        waiter: asyncio.Future[HttpAnswer] = loop.create_future()
        connection.deadline, connection.is_late = loop.time() + self._timeout, False
        self._busy.add(connection)
        connection.send(waiter, head, body)
        if self._look is None:
            self._look_later(loop)
        try:
            answer = await waiter
        except BaseException:
            connection.give_up()  # whatever else may come on it, nobody asked for it
            raise
        finally:
            self._busy.discard(connection)
        if connection.is_open:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        return answer

    async def close(self) -> None:
        """Close every connection; requests that are out end with ConnectionCutError."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for connection in (*self._idle, *self._busy):
            connection.give_up(ConnectionCutError("the client was closed"))
        self._idle.clear()

    def _head(self, path: str) -> bytes:
        head = f"POST {self._target(path)} HTTP/1.1\r\n".encode() + self._lines + b"content-length: "
        self._heads[path] = head
        return head

    def _target(self, path: str) -> str:
        target = self._prefix + path
        if not target.isascii() or not target.isprintable() or " " in target:
            raise NotConnectedError("the path is not one that HTTP can carry")
        return target

    def _idle_one(self, now: float) -> _Connection | None:
        """The connection that was used last; those that idled for long are closed on the way."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                if now - connection.idle_since < IDLE_SECONDS:
                    return connection
                connection.give_up()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._connect_to_any(loop)
        except TimeoutError:
            raise ConnectTimeoutError(f"no connection within {self._connect_timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            self._addresses_until = float("-inf")  # another one may have the name by now
            raise NotConnectedError(unreachable.reason(error)) from None

    async def _connect_to_any(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        """A connection to the first of the name's addresses that takes one. Raises OSError, the last one's."""
        if loop.time() >= self._addresses_until:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
            self._addresses_until = loop.time() + ADDRESS_SECONDS
        failed: OSError = OSError("the name has no address")
        for address in self._addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._max_body),
                    address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
                return connection
            except OSError as error:
                failed = error
        raise failed

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look = loop.call_later(min(LATEST_LOOK, self._timeout / 4), self._give_up_late, loop)

    def _give_up_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the requests whose time is over. One timer for all of them: one each would cost a row its share.

        A request ends at the second look that finds it late. After a pause of this process (SIGSTOP, a machine that
        slept) timers come before sockets are read, and answers that have arrived are billed.
        """
        now = loop.time()
        for connection in [one for one in self._busy if one.deadline <= now]:
            if connection.is_late:
                connection.give_up(NoAnswerError(f"no answer within {self._timeout:g} s"))
            connection.is_late = True
        self._look = None
        if self._busy:
            self._look_later(loop)


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
    return HttpAnswer(answer.status, answer.headers, body)


def _cause(error: HttpParserError) -> str:
    """What the parser tripped over; an error in one of our callbacks hides the real one."""
    return str(error.__context__ or error)
