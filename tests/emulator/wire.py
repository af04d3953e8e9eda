"""The connection itself: HTTP as uvicorn speaks it, and a way to cut it."""

from __future__ import annotations

import asyncio
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

    async def breaks(self, how: Literal["cut", "hang"] | None) -> bool:
        """Do that to it, and say whether it is broken: a hanging call says nothing until the client has left."""
        match how:
            case None:
                return False
            case "cut":
                await self.cut()
            case "hang":
                await self._lost.wait()
        return True
