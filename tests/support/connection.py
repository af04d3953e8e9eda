"""One client connection of the upstream: requests in, answers out, in the order they came."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec

from tests.support.answers import error
from tests.support.http1 import BadRequest, Request, response, take_request

if TYPE_CHECKING:
    from tests.support.server import Exchange, Server

# A client that sends far ahead of its answers is not read until they are given.
READ_AHEAD = 4 * 1024 * 1024


class Connection(asyncio.Protocol):
    """One request at a time; what arrives meanwhile waits in the buffer, so pipelining keeps its order."""

    def __init__(self, server: Server) -> None:
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.exchange: Exchange | None = None
        self._server = server
        self._buffer = bytearray()
        self._request: Request | None = None
        self._advancing = False
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()
        if self._request is not None and len(self._buffer) > READ_AHEAD and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.exchange is not None:
            self._server.engine.abort(self.exchange)
            self.exchange = None

    def _advance(self) -> None:
        # An answer given at once comes back here through `answered`: the loop goes on, it does not nest.
        if self._advancing:
            return
        self._advancing = True
        while self._request is None and self._buffer and not self.transport.is_closing():
            try:
                self._request = take_request(self._buffer)
            except BadRequest as wrong:
                self._refuse(wrong)
                break
            if self._request is None:
                break
            self._server.receive(self, self._request)
        self._advancing = False

    def _refuse(self, wrong: BadRequest) -> None:
        body = msgspec.json.encode(error(wrong.status, wrong.message))
        self.transport.write(response(body, wrong.status, headers={"connection": "close"}))
        self.transport.close()

    def answer(self, whole: bytes) -> None:
        self.transport.write(whole)
        self.answered()

    def answered(self) -> None:
        """The current request is over, however it ended on the wire."""
        request, self._request, self.exchange = self._request, None, None
        if request is not None and not request.keep_alive:
            self.transport.close()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        self._advance()
