"""The connection itself: HTTP as uvicorn speaks it, and a way to cut it."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Literal

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState


class Wire(H11Protocol):
    """Each request finds its own as `scope["state"]["wire"]`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "wire": self}, _loop)
        self._lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost.set()

    async def cut(self) -> None:
        """Send what has been written, then close; returns when it is closed."""
        self.transport.close()
        await self._lost.wait()

    async def reset(self) -> None:
        """Close it as a peer that has died: what was under way is thrown away."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
        await self._lost.wait()

    def write(self, data: bytes) -> None:
        """Bytes past all HTTP."""
        self.transport.write(data)

    async def drip(self, data: bytes, pause: float) -> None:
        """A byte at a time, with so many real seconds between them, for as long as somebody listens."""
        for number in range(len(data)):
            if self._lost.is_set():
                return
            self.write(data[number : number + 1])
            await asyncio.sleep(pause)

    async def breaks(self, how: Literal["cut", "hang", "reset"] | None) -> bool:
        """Do that to it, and say whether it is broken: a hanging call says nothing until the client has left."""
        match how:
            case None:
                return False
            case "cut":
                await self.cut()
            case "reset":
                await self.reset()
            case "hang":
                await self._lost.wait()
        return True
