"""Limits on the memory of bodies that pass through, shared fairly between owners.

Bodies of rows, answers and synchronous requests are held whole. Before the server reads a body, it reserves the
body's bytes in a room, or waits for them. All rooms share one budget. Files are streamed in blocks, and blocks shrink
as more files are streamed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum

from orchestrator.core.errors import StorageError

MB = 1024 * 1024
SMALL = MB
"""Bodies up to this size have a room of their own, so that large bodies never hold them up."""
BODY_MEMORY = 192 * MB
SMALL_PART = 4
"""Divisor: the room of small bodies gets the budget divided by this."""
SHARE = 0.5
"""Share of a room's remaining bytes that one tenant may take, if keys are required. However many tenants hold their
share, some space is left for the next tenant.
"""
LARGE_FILE = 16 * MB
LARGE_CHECKS = 2
"""Maximum number of large input files checked at once. A tenant may use half of this number."""
WAIT_SECONDS = 30.0
BLOCKS = 64 * MB
M_MMAP_THRESHOLD = -3
LEAST_BLOCK, MOST_BLOCK = 64 * 1024, MB


class NoSpace(StorageError):
    """Too little free disk space would be left. The message has numbers and no path."""


class RoomFull(Exception):
    """A room stayed full for the whole waiting time."""


class RoomRefusal(StrEnum):
    """Reason why a room does not take a body now."""

    SHARE = "share"  # its owner has used its share: other owners may pass
    ROOM = "room"  # the room is full: nothing may pass


class RoomShare:
    """Bytes reserved in a room until they are given back."""

    def __init__(self, room: Room, owner: str, size: int) -> None:
        self._room = room
        self._owner = owner
        self._size = size
        self.is_handed_on = False
        """True if another part of the program gives the bytes back, once the content has been written."""

    def give_back(self, keep: int = 0) -> None:
        """Give back all but `keep` bytes. Has no effect if fewer are left."""
        if keep < self._size:
            freed, self._size = self._size - keep, keep
            self._room.free(self._owner, freed)


class Room:
    """Room for `most` bytes, first come, first served.

    An owner gets at most `share` of the bytes that other owners leave free. A body larger than its owner's share
    waits until that owner has no other body here. A body larger than the room waits until the room is empty.
    """

    def __init__(self, most: int, share: float = 1.0, wait: float | None = WAIT_SECONDS) -> None:
        self.most = most
        self._share = share
        self._wait = wait
        self._held: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[RoomShare]]] = deque()
        self.is_crowded = False
        """True while the first waiting body lacks space. No other body may pass it."""
        self.on_free: Callable[[], None] = lambda: None
        """Called when bytes are given back after `hold` has refused a body."""
        self._has_refused = False
        self.taken = 0

    def hold(self, owner: str, size: int) -> RoomRefusal | None:
        """Take `min(size, most)` bytes now, or return the reason for refusal. `free` gives the bytes back."""
        size = min(size, self.most)
        refusal = RoomRefusal.ROOM if self.is_crowded else self._take(owner, size)
        if refusal is not None:
            self._has_refused = True
        return refusal

    def ask(self, owner: str, size: int) -> asyncio.Future[RoomShare]:
        """Return a future for a share of this many bytes. Cancel it to stop waiting."""
        granted: asyncio.Future[RoomShare] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, min(size, self.most), granted))
        self._serve()
        if not granted.done():
            granted.add_done_callback(self._left)
        return granted

    async def take(self, owner: str, size: int) -> RoomShare:
        """Take `size` bytes once the room has space. Raises RoomFull if it stays full for the whole waiting time."""
        granted = self.ask(owner, size)
        try:
            async with asyncio.timeout(self._wait):
                return await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                granted.result().give_back()
            if isinstance(error, TimeoutError):
                raise RoomFull from None
            raise

    def free(self, owner: str, size: int) -> None:
        self.taken -= size
        left = self._held[owner] - size
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]
        if self._waiting:
            self._serve()
        if self._has_refused and not self.is_crowded:
            self._has_refused = False
            self.on_free()

    def _take(self, owner: str, size: int) -> RoomRefusal | None:
        held = self._held.get(owner, 0)
        if held and held + size > self._share * (self.most - self.taken + held):
            return RoomRefusal.SHARE
        if self.taken + size > self.most:
            return RoomRefusal.ROOM
        self.taken += size
        self._held[owner] = held + size
        return None

    def _left(self, granted: asyncio.Future[RoomShare]) -> None:
        if granted.cancelled():
            self._serve()
            self.on_free()

    def _serve(self) -> None:
        """Admit waiting bodies in order. Skip an owner at its share, but never a body that lacks space."""
        left: deque[tuple[str, int, asyncio.Future[RoomShare]]] = deque()
        full: set[str] = set()
        self.is_crowded = False
        while self._waiting and not self.is_crowded:
            owner, size, granted = self._waiting.popleft()
            if granted.done():
                continue
            refusal = RoomRefusal.SHARE if owner in full else self._take(owner, size)
            if refusal is None:
                granted.set_result(RoomShare(self, owner, size))
                continue
            left.append((owner, size, granted))
            full.add(owner)
            self.is_crowded = refusal is RoomRefusal.ROOM
        self._waiting = left + self._waiting


def return_large_bodies() -> None:
    """Let the C library return the memory of each large body at once.

    By default, glibc returns only blocks above a threshold, which rises with the largest block freed so far, up to 32
    MB. This call fixes the threshold at `SMALL`. Other C libraries lack this setting, or do not need it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, SMALL)


class Blocks:
    """Block size of streamed files. It shrinks as more files are streamed at once."""

    def __init__(self) -> None:
        self._active = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Count one more streamed file inside this context."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @property
    def size(self) -> int:
        return max(LEAST_BLOCK, min(MOST_BLOCK, BLOCKS // max(1, self._active)))


class Checks:
    """Limits how many large input files are checked at once. Each check holds a long line in memory, and occupies a
    thread that small files need.
    """

    def __init__(self, *, has_tenants: bool) -> None:
        self._large = Room(LARGE_CHECKS, SHARE if has_tenants else 1.0, wait=None)

    @asynccontextmanager
    async def passing(self, owner: str, size: int) -> AsyncIterator[None]:
        """Hold a turn to check one file inside this context. A large file waits for its turn."""
        place = await self._large.take(owner, 1) if size > LARGE_FILE else None
        try:
            yield
        finally:
            if place is not None:
                place.give_back()


class Calls:
    """Number of running requests per key."""

    def __init__(self) -> None:
        self._out: Counter[str] = Counter()

    def out(self, key_id: str) -> int:
        return self._out[key_id]

    @contextmanager
    def one_more(self, key_id: str) -> Iterator[None]:
        """Count one more running request of this key inside this context."""
        self._out[key_id] += 1
        try:
            yield
        finally:
            self._out[key_id] -= 1
            if not self._out[key_id]:
                del self._out[key_id]


class Rooms:
    """The rooms of one server: at most `most` bytes together, except for a body larger than its room."""

    def __init__(self, most: int = BODY_MEMORY, *, has_tenants: bool, wait: float = WAIT_SECONDS) -> None:
        share = SHARE if has_tenants else 1.0
        self.small = Room(most // SMALL_PART, share, wait)
        self.large = Room(most - most // SMALL_PART, share, wait)
        self.blocks = Blocks()

    @property
    def taken(self) -> int:
        """Bytes of bodies in memory now."""
        return self.small.taken + self.large.taken

    def for_body(self, size: int) -> Room:
        return self.small if size <= SMALL else self.large
