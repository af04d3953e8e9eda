"""A temporary folder that belongs to one process. Later processes remove the folders that killed processes left."""

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
    """A temporary folder that is locked until this process ends. The folder of a killed process is thus unlocked."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        claimed = self.path / f"{LOCK}.new"
        self._lock = claimed.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        claimed.rename(self.path / LOCK)

    def close(self) -> None:
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            continue
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
