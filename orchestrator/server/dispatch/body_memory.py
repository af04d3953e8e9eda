"""Memory room for row bodies in flight: admission of rows, and release of their room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.server.dispatch.in_flight import Work
from orchestrator.server.dispatch.payload import Content, Payload
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.memory_limits import Room, RoomRefusal, Rooms, RoomShare

UNCOUNTED_ROW = 4096
"""Rows up to this size, in bytes, reserve no memory room. They use less memory than the request around them."""


class BodyMemory:
    """The memory rooms of a server, for use by the dispatcher."""

    def __init__(self, rooms: Rooms, on_room: Callable[[], None]) -> None:
        """`on_room` is called when rows may start. A refused row may fit now, or a waiting answer frees its slot for
        other rows.
        """
        self._rooms, self._on_room = rooms, on_room
        rooms.small.on_free = rooms.large.on_free = on_room

    def admit(self, work: Work, full: list[Room]) -> bool:
        """Reserve room for a row's body. Return False if there is no room, or if an earlier row of this turn waits
        for the same room.

        `full` are the rooms that rows of this turn wait for.
        """
        room = self._rooms.for_body(work.size)
        if room in full:
            return False
        if (refusal := room.hold(work.source.tenant, work.size)) is None:
            work.held = room
            return True
        if refusal is RoomRefusal.ROOM:
            full.append(room)
        return False

    def release(self, work: Work) -> None:
        """Free the room of a row's body. A second call changes nothing."""
        room, work.held = work.held, None
        if room is not None:
            room.free(work.source.tenant, min(work.size, room.most))

    def ask(self, tenant: str, size: int, upstream: Upstream) -> asyncio.Future[RoomShare]:
        """Ask for room for an upstream's answer. Other tenants may use the answer's slot while it waits."""
        granted = self._rooms.for_body(size).ask(tenant, size)
        if not granted.done():
            upstream.unread[tenant] += 1
            granted.add_done_callback(lambda _: upstream.reads(tenant))
            self._on_room()
        return granted


class RowPayload(Payload):
    """A row's body to send. Its room is freed once the body is sent; the answer asks for its own room."""

    __slots__ = ("_memory", "_upstream", "_work")

    def __init__(self, content: Content, memory: BodyMemory, work: Work, upstream: Upstream) -> None:
        self.content, self._memory, self._work, self._upstream = content, memory, work, upstream

    def sent(self) -> None:
        if self._work.held is not None:
            self._memory.release(self._work)

    def ask(self, size: int) -> asyncio.Future[RoomShare]:
        return self._memory.ask(self._work.source.tenant, size, self._upstream)
