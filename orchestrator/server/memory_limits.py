"""How much of the bodies that pass through may be in memory at once, whoever sends them.

Bodies that are held as a whole take their place in a room before they are read, and wait for it: those of rows, of
answers and of synchronous requests, out of one budget. Of files, which go through in blocks, the blocks become
smaller the more go through at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum

from orchestrator.core.errors import StorageError

MB = 1024 * 1024
SMALL = MB
"""Bodies up to this size have a room of their own, so that large ones never stand in their way."""
BODY_MEMORY = 192 * MB
SMALL_PART = 4
"""One part in so many of the budget is the room of small bodies."""
SHARE = 0.5
"""The part of a room that one tenant may have where there are keys, and so others who may come."""
LARGE_FILE = 16 * MB
LARGE_CHECKS = 2
"""So many large input files are checked at once, of one tenant half of them."""
WAIT_SECONDS = 30.0
BLOCKS = 64 * MB
LEAST_BLOCK, MOST_BLOCK = 64 * 1024, MB


class NoSpace(StorageError):
    """What comes in would leave too little of the disk free; the text has numbers and no path."""


class RoomFull(Exception):
    """A room stayed full for as long as anybody waits."""


class RoomRefusal(StrEnum):
    """Why a room does not take a body now."""

    SHARE = "share"  # its owner has had his share: others may pass
    ROOM = "room"  # the room is full: nobody may pass


class RoomShare:
    """Bytes of a room that are taken until they are given back."""

    def __init__(self, room: Room, owner: str, size: int) -> None:
        self._room = room
        self._owner = owner
        self._size = size
        self.is_handed_on = False
        """True if somebody else gives it back, once what it is for has been written."""

    def give_back(self, keep: int = 0) -> None:
        """Give back all but `keep` bytes; more than there are left changes nothing."""
        if keep < self._size:
            freed, self._size = self._size - keep, keep
            self._room.free(self._owner, freed)


class Room:
    """At most `most` bytes at once, and `share` of them for one owner; who comes first is served first.

    A body larger than its owner's share is the only one that he has here, and one larger than the room has it alone.
    """

    def __init__(self, most: int, share: float = 1.0, wait: float | None = WAIT_SECONDS) -> None:
        self.most = most
        self._share = int(most * share)
        self._wait = wait
        self._held: dict[str, int] = {}
        self._waiting: deque[tuple[str, int, asyncio.Future[RoomShare]]] = deque()
        self.is_crowded = False
        """True while the first in line waits for others to give back: nobody passes it."""
        self.on_free: Callable[[], None] = _nothing
        """Called when bytes come back after `hold` has refused some."""
        self._has_refused = False
        self.taken = 0
        """Bytes that are taken now."""

    def hold(self, owner: str, size: int) -> RoomRefusal | None:
        """Take `min(size, most)` bytes now, to be given back by `free`; else say why not."""
        refusal = RoomRefusal.ROOM if self.is_crowded else self._refusal(owner, min(size, self.most))
        if refusal is None:
            self._take(owner, min(size, self.most))
        else:
            self._has_refused = True
        return refusal

    def ask(self, owner: str, size: int) -> asyncio.Future[RoomShare]:
        """A place for so many bytes, as soon as there is one; cancel it to wait no longer."""
        granted: asyncio.Future[RoomShare] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, min(size, self.most), granted))
        self._serve()
        if not granted.done():
            granted.add_done_callback(self._left)
        return granted

    async def take(self, owner: str, size: int) -> RoomShare:
        """Take so many bytes as soon as there is room. Raises RoomFull."""
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
        """Give back so many bytes of an owner."""
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

    def _refusal(self, owner: str, size: int) -> RoomRefusal | None:
        held = self._held.get(owner, 0)
        if held and held + size > self._share:
            return RoomRefusal.SHARE
        return RoomRefusal.ROOM if self.taken + size > self.most else None

    def _take(self, owner: str, size: int) -> None:
        self.taken += size
        self._held[owner] = self._held.get(owner, 0) + size

    def _left(self, granted: asyncio.Future[RoomShare]) -> None:
        if granted.cancelled():
            self._serve()
            self.on_free()

    def _serve(self) -> None:
        """Let in who waits, in order: an owner who has had his share lets others pass, else nobody is passed."""
        left: deque[tuple[str, int, asyncio.Future[RoomShare]]] = deque()
        full: set[str] = set()
        self.is_crowded = False
        while self._waiting and not self.is_crowded:
            owner, size, granted = self._waiting.popleft()
            if granted.done():
                continue
            refusal = RoomRefusal.SHARE if owner in full else self._refusal(owner, size)
            if refusal is None:
                self._take(owner, size)
                granted.set_result(RoomShare(self, owner, size))
                continue
            left.append((owner, size, granted))
            full.add(owner)
            self.is_crowded = refusal is RoomRefusal.ROOM
        self._waiting = left + self._waiting


def _nothing() -> None:
    """What is done where nobody waits for room."""


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


class Checks:
    """How many input files are checked at once. Many large ones would be as many long lines in memory, and leave no
    thread for a small one.
    """

    def __init__(self, *, has_tenants: bool) -> None:
        self._large = Room(LARGE_CHECKS, SHARE if has_tenants else 1.0, wait=None)

    @asynccontextmanager
    async def passing(self, owner: str, size: int) -> AsyncIterator[None]:
        """One more is checked while the block lasts; of large ones, as soon as it is its turn."""
        place = await self._large.take(owner, 1) if size > LARGE_FILE else None
        try:
            yield
        finally:
            if place is not None:
                place.give_back()


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
    """The rooms of one server: together no more than `most` bytes, but for a body that is larger than its room."""

    def __init__(self, most: int = BODY_MEMORY, *, has_tenants: bool, wait: float = WAIT_SECONDS) -> None:
        share = SHARE if has_tenants else 1.0
        self.small = Room(most // SMALL_PART, share, wait)
        self.large = Room(most - most // SMALL_PART, share, wait)
        self.blocks = Blocks()

    @property
    def taken(self) -> int:
        """Bytes of bodies that are in memory now."""
        return self.small.taken + self.large.taken

    def for_body(self, size: int) -> Room:
        """Where a body of so many bytes is held."""
        return self.small if size <= SMALL else self.large
