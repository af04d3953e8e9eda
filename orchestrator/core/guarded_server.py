"""uvicorn with a guard of its connections: see `connections`.

config = guarded(app, Connections(most=1000, reserved=500), ...)     a uvicorn.Config
Server(config, connections).run()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.core.connections import Connection, Connections, now

KEY = "orch.connection"
"""Where a request's `scope["state"]` has its `Connection`."""
TICKS = 10
"""How often a second uvicorn's main loop turns."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 1\r\nconnection: close\r\n\r\n"

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Server(uvicorn.Server):
    """uvicorn's, which looks after its connections."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        patience = connections.patience
        shortest = min(1.0, patience.head / 4, patience.answer / 4)
        self._every = max(1, int(shortest * TICKS))
        self._connections = connections

    async def on_tick(self, counter: int) -> bool:
        if counter % self._every == 0:
            self._connections.sweep()
        return await super().on_tick(counter)


def guarded(app: Any, connections: Connections, **options: Any) -> uvicorn.Config:
    """A configuration of uvicorn that serves `app` to these connections; `options` are uvicorn's."""
    return uvicorn.Config(_Guarded(app), http=_protocol(connections), ws="none", **options)


def connection_of(scope: Any) -> Connection | None:
    """The connection that a request came on; None where nobody guards it."""
    found: Connection | None = scope.get("state", {}).get(KEY)
    return found


def _protocol(connections: Connections) -> type[asyncio.Protocol]:
    # h11, whatever else is installed: its limits on a head are the ones relied on here.
    base: Any = H11Protocol

    class Guarded(base):  # type: ignore[misc]
        """uvicorn's protocol, whose connection is known to the guard."""

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
    """An ASGI application whose requests are known to the guard of their connection."""

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
            send = _closing(send)
        try:
            await self._app(scope, _Body(connection, receive) if has_body else receive, _counted(connection, send))
        except asyncio.CancelledError:
            # The server ends and waits for nobody any more. A closed connection is what uvicorn takes without a word;
            # an exception it would log with its traceback, one for each client that said nothing more.
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
    """True if a request says its length in two ways: a proxy may have read it in the other one (RFC 9112, 6.3)."""
    return {b"transfer-encoding", b"content-length"} <= dict(headers).keys()


def _closing(send: Send) -> Send:
    """The connection ends with the answer: what follows in it may be part of a request that a proxy saw whole."""

    async def closing(message: Any) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"connection"]
            message = {**message, "headers": [*kept, (b"connection", b"close")]}
        await send(message)

    return closing


class _Body:
    """Receives a body that must keep coming. Raises HTTPException 408 where it does not."""

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
        # Only the time counts that the client lets us wait: what is done with its bytes meanwhile may take as long.
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


def _counted(connection: Connection, send: Send) -> Send:
    async def counted(message: Any) -> None:
        connection.written += len(message.get("body", b""))
        await send(message)

    return counted
