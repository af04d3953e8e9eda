"""Who has a home's engine: a lock on the home, which the kernel drops with its process.

Apart from the engine itself, so that a command that only asks who runs imports nothing of what the engine does.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.core.errors import StorageError
from orchestrator.settings.home import Home


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a home's engine."""

    pid: int
    command: str

    @property
    def is_up(self) -> bool:
        """Whether it is `orch up`, which also runs what is scheduled."""
        return self.command.split()[1:2] == ["up"]

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.pid})"


@contextmanager
def engine_lock(home: Home) -> Iterator[Holder | None]:
    """Hold a home's engine lock: gives None where it is ours now, or who has it."""
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = home.lock.open("a+")
    except OSError as error:
        raise StorageError(f"cannot use {home.lock}: {error.strerror}", hint="set ORCH_HOME elsewhere") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _holder(home)
            return
        lock.seek(0)
        lock.truncate()
        command = " ".join(["orch", *sys.argv[1:]])
        lock.write(json.dumps({"pid": os.getpid(), "command": command}))
        lock.flush()
        try:
            yield None
        finally:
            lock.seek(0)
            lock.truncate()


def running_engine(home: Home) -> Holder | None:
    """Who has a home's engine now, or None. Takes no lock that another could be refused by for long."""
    if not home.lock.exists():
        return None
    with home.lock.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(home)
    return None


def _holder(home: Home) -> Holder:
    try:
        found = json.loads(home.lock.read_text())
        return Holder(int(found["pid"]), str(found["command"]))
    except (OSError, ValueError, KeyError):
        return Holder(0, "orch")
