"""A pool of HTTP/1.1 connections that are kept open and reused.

This is the server's hot path. For each row, a general client costs more than all other work (docs/decisions/0007).
The pool has no redirects, cookies, proxies or retries, because they must not apply here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from orchestrator.core import unreachable
from orchestrator.server.dispatch.http1_connection import (
    NOTHING,
    ConnectionCutError,
    ConnectTimeoutError,
    ExchangeError,
    HttpAnswer,
    NoAnswerError,
    NotConnectedError,
    NotHTTPError,
    TooLongError,
    UpstreamConnection,
)
from orchestrator.server.dispatch.payload import Payload

__all__ = (
    "ConnectTimeoutError", "ConnectionCutError", "ConnectionPool", "ExchangeError", "HttpAnswer", "NoAnswerError",
    "NotConnectedError", "NotHTTPError", "TooLongError",
)  # fmt: skip

IDLE_SECONDS = 4.0
"""Seconds after which an idle connection is not reused. uvicorn, and so vLLM, closes idle connections after five
seconds.
"""
ADDRESS_SECONDS = 60.0
"""Seconds for which the resolved addresses of a host name are reused."""
LATEST_LOOK = 1.0
"""Maximum seconds between two checks for overdue requests."""


class ConnectionPool:
    """Connections to one server, for one event loop. `timeout` is for a whole request, in seconds.

    `url` is the server's root, `http` or `https`. HTTPS uses the system's trusted certificates.
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
        self._idle: list[UpstreamConnection] = []
        self._busy: set[UpstreamConnection] = set()
        self._addresses: Sequence[str] = ()
        self._addresses_until = float("-inf")
        self._look: asyncio.TimerHandle | None = None

    def post(self, path: str, body: bytes | Payload) -> Coroutine[Any, Any, HttpAnswer]:
        """POST a body and wait for the whole answer. Return the answer, whatever its status. Raises ExchangeError."""
        payload = Payload(body) if isinstance(body, bytes) else body
        head = b"%s%d\r\n\r\n" % (self._heads.get(path) or self._head(path), len(payload.content))
        return self._exchange(head, payload)

    async def get(self, path: str) -> HttpAnswer:
        """GET a page. Return the answer, whatever its status. Raises ExchangeError."""
        loop = asyncio.get_running_loop()
        head = f"GET {self._target(path)} HTTP/1.1\r\n".encode() + self._lines + b"\r\n"
        if (kept := self._idle_one(loop.time())) is not None:
            # The server may just be closing a kept connection; repeating a GET does no harm.
            with contextlib.suppress(ConnectionCutError):
                return await self._exchange(head, NOTHING, kept)
        return await self._exchange(head, NOTHING, await self._connect(loop))

    async def _exchange(
        self, head: bytes, payload: Payload, connection: UpstreamConnection | None = None
    ) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        if connection is None:
            connection = self._idle_one(loop.time()) or await self._connect(loop)
        waiter: asyncio.Future[HttpAnswer] = loop.create_future()
        connection.deadline, connection.is_late = loop.time() + self._timeout, False
        self._busy.add(connection)
        connection.send(waiter, head, payload)
        if self._look is None:
            self._look_later(loop)
        try:
            answer = await waiter
        except BaseException:
            connection.give_up()  # anything that still arrives on it was not requested
            connection.abandon()
            has_answer = waiter.done() and not waiter.cancelled() and waiter.exception() is None
            if has_answer and (place := waiter.result().place) is not None:
                place.give_back()
            raise
        finally:
            self._busy.discard(connection)
        if connection.is_open:
            connection.idle_since = loop.time()
            self._idle.append(connection)
        return answer

    async def close(self) -> None:
        """Close every connection. Requests in flight end with ConnectionCutError."""
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

    def _idle_one(self, now: float) -> UpstreamConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                if now - connection.idle_since < IDLE_SECONDS:
                    return connection
                connection.give_up()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> UpstreamConnection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._connect_to_any(loop)
        except TimeoutError:
            raise ConnectTimeoutError(f"no connection within {self._connect_timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            self._addresses_until = float("-inf")  # another host may have the name by now
            raise NotConnectedError(unreachable.reason(error)) from error

    async def _connect_to_any(self, loop: asyncio.AbstractEventLoop) -> UpstreamConnection:
        if loop.time() >= self._addresses_until:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
            self._addresses_until = loop.time() + ADDRESS_SECONDS
        failed: OSError = OSError("the name has no address")
        for address in self._addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self._max_body),
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
        """End overdue requests, using one timer for all of them. A timer per request would slow down every row.

        A request ends only at the second check that finds it overdue. After a pause of this process (SIGSTOP, a
        sleeping machine), timers fire before sockets are read. An answer that has arrived is billed, so it must be
        read.
        """
        now = loop.time()
        for connection in [one for one in self._busy if one.deadline <= now]:
            if connection.waits_for_room:
                continue  # this process itself is not reading
            if connection.is_late:
                connection.give_up(NoAnswerError(f"no answer within {self._timeout:g} s"))
            connection.is_late = True
        self._look = None
        if self._busy:
            self._look_later(loop)
