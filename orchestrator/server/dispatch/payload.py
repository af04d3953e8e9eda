"""A request's body on its way to an upstream, and the memory room for it and its answer."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Protocol

from orchestrator.server.memory_limits import RoomShare

UNCOUNTED = 64 * 1024
"""An answer up to this length takes no place: it arrives in one piece, and the next step drops it."""


class Ask(Protocol):
    """Asks for a place for an answer of `size` bytes."""

    def __call__(self, size: int) -> Future[RoomShare]: ...


class Payload:
    """A body held until it is sent. `ask` reserves a place for its answer; without it, answers need no place."""

    __slots__ = ("_content", "_on_sent", "ask")

    def __init__(self, content: bytes, on_sent: Callable[[], None] | None = None, ask: Ask | None = None) -> None:
        self._content = content
        self._on_sent = on_sent
        self.ask = ask

    def __len__(self) -> int:
        return len(self._content)

    def take(self) -> bytes:
        """Return the body, and stop holding it."""
        content, self._content = self._content, b""
        return content

    def sent(self) -> None:
        """Note that the whole body has left this process; a second call changes nothing."""
        on_sent, self._on_sent = self._on_sent, None
        if on_sent is not None:
            on_sent()
