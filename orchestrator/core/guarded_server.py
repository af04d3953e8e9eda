"""uvicorn with limits on its connections (see `client_limits`).

config = guarded(app, Connections(most=1000, reserved=500), ...)     a uvicorn.Config
Server(config, connections).run()
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.core.client_limits import Connection, Connections, now

KEY = "orch.connection"
"""Key of a request's `Connection` in `scope["state"]`."""
TICKS = 10
"""Iterations of uvicorn's main loop per second."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n"

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Server(uvicorn.Server):
    """A uvicorn server that closes overdue connections. Any thread can stop it without delay."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        patience = connections.patience
        shortest = min(1.0, patience.head / 4, patience.answer / 4)
        self._every = max(1, int(shortest * TICKS))
        self._connections = connections
        self._leaving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def leave(self) -> None:
        """Stop the server after it has sent current answers."""
        self.should_exit = True
        with suppress(AttributeError, RuntimeError):  # the loop has not started, or has ended
            self.loop.call_soon_threadsafe(self._leaving.set)

    async def main_loop(self) -> None:
        turn = 0
        while not await self.on_tick(turn):
            turn = (turn + 1) % 864_000
            with suppress(TimeoutError):
                async with asyncio.timeout(1 / TICKS):
                    await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # idle connections close now; uvicorn would wait a tenth of a second for them
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()

    async def on_tick(self, counter: int) -> bool:
        if counter % self._every == 0:
            self._connections.sweep()
        return await super().on_tick(counter)


def guarded(app: Any, connections: Connections, **options: Any) -> uvicorn.Config:
    """Return a uvicorn configuration that serves `app` under the limits of `connections`; `options` are uvicorn's."""
    return uvicorn.Config(_Guarded(app), http=_protocol(connections), ws="none", **options)


def connection_of(scope: Any) -> Connection | None:
    """Return the connection of a request; None if the connection has no limits."""
    found: Connection | None = scope.get("state", {}).get(KEY)
    return found


def _protocol(connections: Connections) -> type[asyncio.Protocol]:
    # h11, even if other parsers are installed: orch relies on its limits for a request head.
    base: Any = H11Protocol

    class Guarded(base):  # type: ignore[misc]
        def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any = None) -> None:
            self._connection = Connection(connections)
            self._is_refused = False
            super().__init__(config, server_state, {**app_state, KEY: self._connection}, _loop)

        def connection_made(self, transport: asyncio.Transport) -> None:
            self._is_refused = not self._connection.opened(transport)
            if self._is_refused:
                transport.write(REFUSAL)
                transport.close()
            else:
                super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            if not self._is_refused:
                self._connection.heard()
                super().data_received(data)

        def connection_lost(self, error: Exception | None) -> None:
            if not self._is_refused:
                connections.remove(self._connection)
                super().connection_lost(error)

    return Guarded


class _Guarded:
    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        if connection is None:
            await self._app(scope, receive, send)
            return
        has_body = _has_body(scope["headers"])
        connection.begin(has_body)
        if _is_ambiguous(scope["headers"]):
            send = _close_after(send)
        try:
            await self._app(scope, _Body(connection, receive) if has_body else receive, _counting(connection, send))
        except asyncio.CancelledError:
            # The server stops without waiting for clients. uvicorn accepts a closed connection silently; an exception
            # would log a traceback for each silent client.
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                raise
            connection.abort()
            await asyncio.sleep(0)
        finally:
            connection.end()


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    given = dict(headers)
    return b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0"


def _is_ambiguous(headers: list[tuple[bytes, bytes]]) -> bool:
    """True if a request states its length in two headers: a proxy may have used the other header (RFC 9112, 6.3)."""
    return {b"transfer-encoding", b"content-length"} <= dict(headers).keys()


def _close_after(send: Send) -> Send:
    """Return a `send` that closes the connection after the answer.

    Later bytes may belong to a request that a proxy split differently.
    """

    async def closing(message: Any) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"connection"]
            message = {**message, "headers": [*kept, (b"connection", b"close")]}
        await send(message)

    return closing


class _Body:
    """A request body. Raises HTTPException 408 if the body arrives too slowly."""

    def __init__(self, connection: Connection, receive: Receive) -> None:
        self._connection = connection
        self._receive = receive
        self._is_whole = False
        self._waited = 0.0
        self._came = 0

    async def __call__(self) -> Any:
        if self._is_whole:
            return await self._receive()
        patience, began = self._connection.patience, now()
        try:
            async with asyncio.timeout(patience.body):
                message = await self._receive()
        except TimeoutError:
            raise self._too_slow() from None
        # Count only the time spent waiting for the client; processing its bytes may take as long as it needs.
        self._waited += now() - began
        self._came += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._is_whole = True
            self._connection.whole()
        elif self._waited >= patience.body:
            if self._came < self._waited * patience.least_rate:
                raise self._too_slow()
            self._waited, self._came = 0.0, 0
        return message

    def _too_slow(self) -> HTTPException:
        self._connection.too_slow()
        return HTTPException(408, "The body of the request did not come in time.", {"connection": "close"})


def _counting(connection: Connection, send: Send) -> Send:
    async def counted(message: Any) -> None:
        connection.written += len(message.get("body", b""))
        await send(message)

    return counted


STOP_SECONDS = 1
"""Seconds for which a stopping server waits for unfinished answers."""


@contextmanager
def threaded(app: Any, listener: socket.socket, connections: Connections, name: str) -> Iterator[None]:
    """Serve an ASGI application on a socket, in a thread called `name`. At the end of the block, stop and close the
    socket.
    """
    with closing(listener):
        config = guarded(
            app,
            connections,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        server = Server(config, connections)
        thread = threading.Thread(target=server.run, args=([listener],), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.leave()
            thread.join()
