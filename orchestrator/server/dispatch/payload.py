"""A request's body on its way to an upstream, and the room that it and its answer take in memory."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Protocol

from orchestrator.server.memory_limits import RoomShare

UNCOUNTED = 64 * 1024
"""An answer up to this length takes no place: it comes in one piece, and the next step drops it."""


class Ask(Protocol):
    """Asks for a place for so many bytes of an answer."""

    def __call__(self, size: int) -> Future[RoomShare]: ...


class Payload:
    """A body that is held until it has been sent. `ask` gives its answer a place; without it answers are free."""

    __slots__ = ("_content", "_on_sent", "ask")

    def __init__(self, content: bytes, on_sent: Callable[[], None] | None = None, ask: Ask | None = None) -> None:
        self._content = content
        self._on_sent = on_sent
        self.ask = ask

    def __len__(self) -> int:
        return len(self._content)

    def take(self) -> bytes:
        """The body, which is not held here any more."""
        content, self._content = self._content, b""
        return content

    def sent(self) -> None:
        """All of it has left this process; a second time changes nothing."""
        on_sent, self._on_sent = self._on_sent, None
        if on_sent is not None:
            on_sent()
