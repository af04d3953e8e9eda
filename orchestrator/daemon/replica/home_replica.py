"""A home's replica while its daemon works. It sends changes, and lets the daemon act only while sending succeeds.

The replica has a thread with its own event loop, so the daemon never delays the renewal of its claim.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress

from orchestrator.core.errors import NotReplicated, StorageError
from orchestrator.core.replica.manifest import size_of
from orchestrator.core.replica.replicator import Replicator
from orchestrator.core.replica.takeover import Replica
from orchestrator.core.replica.who_is_active import Superseded
from orchestrator.daemon.replica.home_contents import HomeContents
from orchestrator.daemon.replica.status_file import ReplicaStatus, write_status
from orchestrator.settings.home import Home

log = logging.getLogger(__name__)

ASKED_SECONDS = 0.1


class HomeReplica:
    """Sends changes of a home to its replica during a `with` block.

    With `is_shared`, the home's own database is elsewhere, and other machines reach it. The end of the block sends
    the remaining changes, and lets another daemon take over immediately. Any thread may call the methods.
    """

    def __init__(self, home: Home, replica: Replica, *, is_shared: bool, as_of: float = 0.0) -> None:
        """Create the replica. Files untouched since `as_of` (seconds since 1970) count as unchanged on the
        replica.
        """
        self._home = home
        self._replica = replica
        as_of = time.time() if replica.is_restored else as_of
        known = {path: size_of(pieces) for path, pieces in replica.manifest.files.items()}
        self._contents = HomeContents(home, known, is_shared=is_shared, as_of=as_of)
        self._contents.on_sent = self._publish_status
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="orch-home-replica")
        self.on_held: Callable[[], None] = lambda: None
        """Called when the daemon may act again."""

    def __enter__(self) -> HomeReplica:
        self._publish_status()
        self._thread.start()
        self._is_ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._contents.close()

    @property
    def generation(self) -> int:
        return self._replica.generation.number

    @property
    def is_held(self) -> bool:
        """True if this daemon is certainly the active daemon."""
        return self._replicator.is_held

    @property
    def superseded(self) -> Superseded | None:
        """The error that names the daemon that has taken over, or None."""
        return self._replicator.superseded

    @property
    def problem(self) -> str:
        """The reason why the replica cannot be written."""
        return self._replicator.problem or f"the replica {self._replicator.url} has not been written for too long"

    @property
    def failing(self) -> str | None:
        """The reason why changes have not been sent for some time, or None."""
        return self._replicator.failing

    @property
    def replica_id(self) -> str:
        return self._replica.generation.head.replica

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Inside the block, turn a database error into Superseded if another daemon has taken over. The error names
        that daemon.
        """
        try:
            yield
        except StorageError:
            with suppress(NotReplicated):
                self.settled()
            raise

    def follow(self, durable: Callable[[], Mapping[str, int | None]]) -> None:
        """Set `durable`, which returns the durable bytes of each growing result file, by path under the home."""
        self._contents.durable = durable

    def settled(self) -> None:
        """Wait until the current state is on the replica.

        Raises Superseded if another daemon is active, NotReplicated if the replica fails or is too slow.
        """
        settled = self._replicator.settled()
        try:
            asyncio.run_coroutine_threadsafe(settled, self._loop).result()
        except (RuntimeError, CancelledError) as error:  # the replica's event loop has ended
            settled.close()
            raise NotReplicated("the daemon is stopping") from error
        if not self.is_held:  # this process or thread may have been paused
            raise NotReplicated(self.problem)

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._replicator = Replicator(self._replica, self._contents, self._held_again)
        self._replicator.start()
        asking = asyncio.create_task(self._send_for_waiting())
        self._is_ready.set()
        await self._end.wait()
        asking.cancel()
        await self._replicator.close()

    async def _send_for_waiting(self) -> None:
        while True:
            await asyncio.sleep(ASKED_SECONDS)
            try:
                self._home.replica_asked.unlink()
            except OSError:
                continue
            with suppress(StorageError):
                await self._replicator.refreshed()

    def _held_again(self) -> None:
        """Call `on_held` in a thread. It may take long, and must not delay the renewal of the generation."""
        threading.Thread(target=self.on_held, name="orch-held-again", daemon=True).start()

    def _publish_status(self) -> None:
        sent_to, as_of = self._contents.sent_to
        status = ReplicaStatus(
            pid=os.getpid(), url=self._replica.storage.url, generation=self.generation, sent_to=sent_to, as_of=as_of
        )
        try:
            write_status(self._home, status)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._home.replica, error.strerror)
