"""A temporary folder that belongs to a process; what a kill has left is removed by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "orch-documents-"
LOCK = "lock"


class ClaimedFolder:
    """A folder that is held as long as this process lives: one that nobody holds is what a kill has left."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        claimed = self.path / f"{LOCK}.new"
        self._lock = claimed.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        claimed.rename(self.path / LOCK)

    def close(self) -> None:
        """Remove it with all that is in it."""
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            continue
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
