"""How much of what clients send and read may be in memory at once, whoever they are.

Bodies that are held as a whole take their place in a room before they are read, and wait for it; of files, which go
through in blocks, the blocks become smaller the more go through at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from orchestrator.core.errors import StorageError

MB = 1024 * 1024
SMALL = MB
"""Bodies up to this size have a room of their own, so that large ones never stand in their way."""
SMALL_ROOM = 64 * MB
LARGE_ROOM = 256 * MB
SHARE = 0.5
"""The part of a room that one tenant may have where there are keys, and so others who may come."""
WAIT_SECONDS = 30.0
BLOCKS = 64 * MB
LEAST_BLOCK, MOST_BLOCK = 64 * 1024, MB


class NoSpace(StorageError):
    """What comes in would leave too little of the disk free; the text has numbers and no path."""


class RoomFull(Exception):
    """A room stayed full for as long as anybody waits."""


class RoomShare:
    """Bytes of a room that are taken until they are given back."""

    def __init__(self, room: Room, owner: str, size: int) -> None:
        self._room = room
        self._owner = owner
        self._size = size

    def give_back(self, keep: int = 0) -> None:
        """Give back all but `keep` bytes; more than there are left changes nothing."""
        if keep < self._size:
            self._room.free(self._owner, self._size - keep)
            self._size = keep


class Room:
    """At most `most` bytes at once, and `share` of them for one owner; who comes first is served first."""

    def __init__(self, most: int, share: float = 1.0, wait: float = WAIT_SECONDS) -> None:
        self._most = most
        self._share = int(most * share)
        self._wait = wait
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        self.taken = 0
        """Bytes that are taken now."""

    async def take(self, owner: str, size: int) -> RoomShare:
        """Take so many bytes (no more than an owner's share) as soon as there is room. Raises NoRoom."""
        size = min(size, self._share)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (owner, size, granted)
        self._waiting.append(entry)
        self._serve()
        try:
            async with asyncio.timeout(self._wait):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self.free(owner, size)
            else:
                with suppress(ValueError):
                    self._waiting.remove(entry)
                self._serve()
            if isinstance(error, TimeoutError):
                raise RoomFull from None
            raise
        return RoomShare(self, owner, size)

    def free(self, owner: str, size: int) -> None:
        """Give back so many bytes of an owner."""
        self.taken -= size
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
        self._serve()

    def _serve(self) -> None:
        """Let in who waits, in order: an owner who has had his share lets others pass, else nobody is passed."""
        left: deque[tuple[str, int, asyncio.Future[None]]] = deque()
        full: set[str] = set()
        while self._waiting:
            owner, size, granted = self._waiting.popleft()
            if owner in full or self._held[owner] + size > self._share:
                full.add(owner)
                left.append((owner, size, granted))
            elif self.taken + size > self._most:
                left.append((owner, size, granted))
                break
            elif not granted.done():
                self.taken += size
                self._held[owner] += size
                granted.set_result(None)
        self._waiting = left + self._waiting


class Blocks:
    """The size of the blocks in which files go through, by how many do."""

    def __init__(self) -> None:
        self._active = 0

    @contextmanager
    def passing(self) -> Iterator[None]:
        """One more file goes through while the block lasts."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    @property
    def size(self) -> int:
        """How large a block may be now, in bytes."""
        return max(LEAST_BLOCK, min(MOST_BLOCK, BLOCKS // max(1, self._active)))


class Calls:
    """How many requests of each key are being answered."""

    def __init__(self) -> None:
        self._out: Counter[str] = Counter()

    def out(self, key_id: str) -> int:
        """How many of a key are."""
        return self._out[key_id]

    @contextmanager
    def one_more(self, key_id: str) -> Iterator[None]:
        """One more is, while the block lasts."""
        self._out[key_id] += 1
        try:
            yield
        finally:
            self._out[key_id] -= 1
            if not self._out[key_id]:
                del self._out[key_id]


class Rooms:
    """The rooms of one server."""

    def __init__(self, *, has_tenants: bool, wait: float = WAIT_SECONDS) -> None:
        share = SHARE if has_tenants else 1.0
        self.small = Room(SMALL_ROOM, share, wait)
        self.large = Room(LARGE_ROOM, share, wait)
        self.blocks = Blocks()

    def for_body(self, size: int) -> Room:
        """Where a body of so many bytes is held."""
        return self.small if size <= SMALL else self.large
