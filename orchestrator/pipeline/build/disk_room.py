"""Disk space for a build: checked while the build writes, and freed if the build fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.errors import NoRoom, OutputFault, StorageError
from orchestrator.core.model import Job
from orchestrator.pipeline import disk
from orchestrator.pipeline.finish.outputs.faults import fault_of
from orchestrator.policy.retention import words
from orchestrator.settings.home import Home
from orchestrator.store import Store

ROOM_BYTES = 64_000_000
"""Maximum bytes written between two checks. `min_free` leaves more than this."""
NEAR = 16
"""On a nearly full disk, a build checks again after using 1/`NEAR` of the free space. The daemon needs space, too."""
ROW_BYTES = 1_000
"""Estimated bytes of a row in the database."""


class RoomCheck:
    """Checks from time to time if the disk has space for what a build writes."""

    def __init__(self, shortage: Callable[[], str | None], folder: Path) -> None:
        """`folder` is on the disk that the build fills."""
        self._shortage = shortage
        self._folder = folder
        self._written = self._look_at = 0

    def require(self, rows: int, size: int) -> None:
        """Check before writing this many rows, whose lines have `size` bytes in total. Raises NoRoom, OSError."""
        if self._written >= self._look_at:
            free = shutil.disk_usage(self._folder).free
            self._look_at = self._written + min(ROOM_BYTES, free // NEAR)
            if (why := self._shortage()) is not None:
                told = f"; the requests of this job take {words(self._written)} so far" if self._written else ""
                raise NoRoom(why + told, hint=disk.ROOM_HINT)
        self._written += size + rows * ROW_BYTES


def give_back(store: Store, home: Home, job: Job) -> None:
    home.requests(job.id).unlink(missing_ok=True)
    store.rows.clear(job.id)


@contextmanager
def given_back(store: Store, home: Home, job: Job) -> Iterator[None]:
    """Remove the file and rows of a failed build. Raises NoRoom if the disk or the database is full."""
    try:
        yield
    except Exception as error:
        with suppress(OSError, StorageError):
            give_back(store, home, job)
        if fault_of(error) is OutputFault.NO_ROOM and isinstance(error, StorageError):
            raise NoRoom(error.message, hint=error.hint or disk.ROOM_HINT) from error
        raise


def written_to(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a job's file of requests and make it durable. Raises StorageError, and the errors of `write`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a new file: an existing one may only grow
        with path.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}",
            hint="free disk space, then run the same command again; nothing is lost",
        ) from error
