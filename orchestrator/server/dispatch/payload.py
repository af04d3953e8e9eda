"""A request's body on its way to an upstream, and the memory room for the body and its answer."""

from __future__ import annotations

from asyncio import Future

from orchestrator.server.memory_limits import RoomShare

Content = bytes | memoryview
"""A request's body. A long body may be a part of the line that it was read from."""
UNCOUNTED = 64 * 1024
"""An answer up to this many bytes takes no room. It arrives in one piece, and the next step drops it."""


class Payload:
    """A body held until it is sent. Neither body nor answer takes room."""

    __slots__ = ("content",)

    def __init__(self, content: Content) -> None:
        self.content = content

    def take(self) -> Content:
        content, self.content = self.content, b""
        return content

    def sent(self) -> None:
        """Note that the whole body has left this process. A second call changes nothing."""

    def ask(self, size: int) -> Future[RoomShare] | None:
        """Ask for room for an answer of `size` bytes; None if answers need no room."""
        return None
