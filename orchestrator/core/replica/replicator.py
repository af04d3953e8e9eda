"""Sends changes of a folder to its replica: immediately if a caller waits, otherwise every two seconds.

Only the transfers run in threads; everything else runs on the event loop that created the replicator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from orchestrator.core.errors import NotReplicated, StorageError
from orchestrator.core.replica.contents import Contents, Cut, Image
from orchestrator.core.replica.manifest import (
    IMAGE_PIECE_BYTES,
    MANIFESTS,
    OBJECTS,
    PIECE_BYTES,
    Manifest,
    ReplicaPiece,
    digest,
    first_to_send,
    size_of,
)
from orchestrator.core.replica.takeover import RENEW_SECONDS, Replica, new_name
from orchestrator.core.replica.who_is_active import HOLD_SECONDS, Superseded, seconds

log = logging.getLogger(__name__)
T = TypeVar("T")

EVERY_SECONDS = 2.0
PAUSE_FACTOR = 10.0
"""Pause after a cut, as a multiple of its duration: a slow folder spends at most a tenth of the time on cuts."""
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.5
CLOSE_SECONDS = 20.0
AT_ONCE = 4


class Replicator:
    """Sends a folder's changes to its replica while this process is active.

    `problem` says what currently prevents sending, or is None. Call `start` and `close` only from the event loop that
    created it.
    """

    def __init__(self, replica: Replica, contents: Contents, on_held: Callable[[], None]) -> None:
        """Create a replicator. It calls `on_held` when the replica accepts writes again, so that work may
        continue.
        """
        self._storage = replica.storage
        self.generation = replica.generation
        self._folder = replica.folder
        self._manifest = replica.manifest
        self._contents = contents
        self._on_held = on_held
        self._sent_version: Hashable = None
        self._pause = EVERY_SECONDS
        self.problem: str | None = None
        self._failing_since: float | None = None
        self.superseded: Superseded | None = None
        self._wake = asyncio.Event()
        self._asked = self._done = 0
        self._moved = asyncio.Condition()
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._pool = ThreadPoolExecutor(AT_ONCE, "orch-replica")
        # A separate pool: the generation must not lapse because other work occupies the loop's threads.
        self._threads = ThreadPoolExecutor(2, "orch-replicator")

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._renew())]

    @property
    def url(self) -> str:
        return self._storage.url

    @property
    def is_held(self) -> bool:
        """True if this process is certainly the active process."""
        return self.superseded is None and self.generation.is_held

    @property
    def failing(self) -> str | None:
        """The problem, if sending has failed for more than HOLD_SECONDS: too long for callers to wait. Otherwise
        None.
        """
        since = self._failing_since
        return self.problem if since is not None and seconds() - since > HOLD_SECONDS else None

    async def settled(self) -> None:
        """Wait until the current state is on the replica.

        Raises Superseded if another process is active, NotReplicated if the replica fails or is too slow.
        """
        try:
            is_there = self._contents.version() == self._sent_version
        except StorageError as error:
            raise NotReplicated(error.message) from error
        if not (is_there and self.is_held):
            await self.refreshed()

    async def refreshed(self) -> None:
        """Wait for a round of sending that starts after this call.

        Raises Superseded if another process is active, NotReplicated if the replica fails or is too slow.
        """
        self._asked += 1
        mine = self._asked
        self._wake.set()
        while self._done < mine and self.superseded is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS), self._moved:
                    await self._moved.wait()
            if self._done < mine and (self.failing is not None or not self.generation.is_held):
                break
        if self.superseded is not None:
            raise self.superseded
        if self._done < mine or not self.is_held:  # the process may have paused after its round
            raise NotReplicated(self.problem or f"the replica {self.url} is slow to respond")

    async def close(self) -> None:
        """Send the remaining changes and release the replica for another process. Gives up after CLOSE_SECONDS."""
        self._is_closing = True
        self._wake.set()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                # Work in a thread runs to its end, and must finish before the last head is written.
                await asyncio.gather(*self._tasks)
                while self.superseded is None and not await self.send(is_last=True):
                    await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            log.warning("the replica lacks the latest changes: %s", self.problem)
        for pool in (self._threads, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while self.superseded is None and not self._is_closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._pause)
            self._wake.clear()
            if not await self.send():
                await asyncio.sleep(AGAIN_SECONDS)
                self._wake.set()

    async def _renew(self) -> None:
        while self.superseded is None and not self._is_closing:
            was_held = self.is_held
            try:
                await self._in_thread(lambda: self.generation.renew(RENEW_SECONDS))
            except Superseded as error:
                await self._lose(error)
            except StorageError as error:
                self._fail(error)
            if self.is_held and not was_held:
                log.warning("the replica takes writes again: rows continue")
                self._on_held()
            await asyncio.sleep(RENEW_SECONDS / 4)

    async def send(self, *, is_last: bool = False) -> bool:
        """Send and commit changes. Return True on success. Only one call may run at a time."""
        asked, was_held = self._asked, self.is_held
        try:
            gone = await self._round(is_last=is_last)
        except Superseded as error:
            await self._lose(error)
            return False
        except (StorageError, OSError) as error:
            return self._fail_round(error)
        except Exception as error:
            log.exception("the replica could not be written because of an internal error")
            return self._fail_round(StorageError(f"an internal error: {error}"))
        self.problem = self._failing_since = None
        if not was_held:
            self._on_held()
        async with self._moved:
            self._done = max(self._done, asked)
            self._moved.notify_all()
        await self._in_thread(lambda: self._remove(gone))
        return True

    def _fail(self, error: StorageError | OSError) -> None:
        if self.problem is None:
            log.warning("the replica waits: %s", error)
        self.problem = str(error)

    def _fail_round(self, error: StorageError | OSError) -> bool:
        self._fail(error)
        self._failing_since = self._failing_since or seconds()
        return False

    async def _lose(self, error: Superseded) -> None:
        log.error("%s", error.message)
        self.superseded = error
        async with self._moved:
            self._moved.notify_all()

    async def _round(self, *, is_last: bool) -> Collection[str]:
        """Send and commit changes. Return the names of objects that are no longer needed."""
        gone: Collection[str] = ()
        version, began = self._contents.version(), time.monotonic()
        cut = await self._contents.cut(is_new=version != self._sent_version)
        self._pause = max(EVERY_SECONDS, PAUSE_FACTOR * (time.monotonic() - began))
        manifest = await self._in_thread(lambda: self._send(cut))
        if manifest != self._manifest:
            gone = await self._in_thread(lambda: self._commit(manifest, is_last))
        elif is_last or not self.generation.is_held:
            await self._in_thread(lambda: self.generation.write(is_released=is_last))
        self._sent_version = version
        self._contents.sent(cut)
        return gone

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _send(self, cut: Cut) -> Manifest:
        before = self._manifest
        images = before.images if cut.images is None else {
            path: self._send_image(image, before.images.get(path, ())) for path, image in cut.images.items()
        }  # fmt: skip
        files: dict[str, Sequence[ReplicaPiece]] = {}
        for path, size in cut.files.items():
            pieces = before.files.get(path, ())
            if path in cut.unsure and size is not None:
                pieces = _matching_pieces(cut.root / path, pieces, size)
            if size is not None and size != size_of(pieces):
                pieces = self._send_file(cut.root / path, size, pieces if size > size_of(pieces) else ())
            if pieces or size is not None:
                files[path] = pieces
        return Manifest(images=images, files=files)

    def _send_image(self, image: Image, before: Sequence[ReplicaPiece]) -> Sequence[ReplicaPiece]:
        known = {piece.digest: piece for piece in before}

        def sent(block: bytes) -> ReplicaPiece:
            return known.get(digest(block)) or self._put(block)

        if isinstance(image, bytes):
            starts = range(0, len(image), IMAGE_PIECE_BYTES)
            return list(self._pool.map(lambda start: sent(image[start : start + IMAGE_PIECE_BYTES]), starts))
        with image.open("rb") as file:
            starts = range(0, image.stat().st_size, IMAGE_PIECE_BYTES)
            return list(self._pool.map(lambda start: sent(os.pread(file.fileno(), IMAGE_PIECE_BYTES, start)), starts))

    def _send_file(self, source: Path, size: int, before: Sequence[ReplicaPiece]) -> Sequence[ReplicaPiece]:
        first = first_to_send([piece.size for piece in before], size - size_of(before))
        kept = before[:first]
        starts = range(size_of(kept), size, PIECE_BYTES)
        with source.open("rb") as file:
            file.seek(starts.start)
            lengths = [min(PIECE_BYTES, size - start) for start in starts]
            sent: list[ReplicaPiece] = []
            for some in _groups(lengths, AT_ONCE):
                sent += self._pool.map(self._put, [file.read(length) for length in some])
        if size_of(sent) + size_of(kept) != size:
            raise StorageError(f"{source} is shorter than it was")
        return [*kept, *sent]

    def _put(self, data: bytes) -> ReplicaPiece:
        name = new_name(OBJECTS, self.generation.number)
        self._storage.put(name, data)
        return ReplicaPiece(name, len(data), digest(data))

    def _commit(self, manifest: Manifest, is_last: bool) -> Collection[str]:
        name = new_name(MANIFESTS, self.generation.number)
        self._storage.put(name, msgspec.json.encode(manifest))
        before, old = self.generation.head.manifest, self._manifest
        self._folder.note(before, name)
        self.generation.write(name, is_released=is_last)
        self._manifest = manifest
        # Remove only objects of a former valid manifest: other processes' manifests build on the current one.
        gone = set(old.names()) - set(manifest.names())
        return [*gone, *([before] if before else [])]

    def _remove(self, gone: Collection[str]) -> None:
        try:
            self._storage.remove(gone)
        except StorageError as error:
            log.warning("objects that the replica no longer needs could not be removed: %s", error)


def _matching_pieces(source: Path, pieces: Sequence[ReplicaPiece], size: int) -> Sequence[ReplicaPiece]:
    good = 0
    with source.open("rb") as file:
        while good < len(pieces) and digest(file.read(pieces[good].size)) == pieces[good].digest:
            good += 1
    return pieces[:good] if size_of(pieces[:good]) <= size else ()


def _groups(items: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    yield from (items[start : start + most] for start in range(0, len(items), most))
