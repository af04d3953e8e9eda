"""A request's body in transit to an upstream, and the memory room for the body and its answer."""

from __future__ import annotations

from asyncio import Future

from orchestrator.server.memory_limits import RoomShare

Content = bytes | memoryview
"""A request's body. A long body may be a slice of the line that it was read from."""
UNCOUNTED = 64 * 1024
"""Maximum bytes of an answer that takes no room. It arrives in one piece, and the next step drops it."""


class Payload:
    """A body held until it is sent. Neither the body nor its answer takes memory room."""

    __slots__ = ("content",)

    def __init__(self, content: Content) -> None:
        self.content = content

    def take(self) -> Content:
        content, self.content = self.content, b""
        return content

    def sent(self) -> None:
        """Record that the whole body has left this process. A second call changes nothing."""

    def ask(self, size: int) -> Future[RoomShare] | None:
        """Ask for room for an answer of `size` bytes. Return None if answers need no room."""
        return None
