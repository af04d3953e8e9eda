"""Finds the process that runs a home's daemon, by its lock on the home. The kernel drops the lock when the process
ends.

This module is separate, so that a command that only needs the owner does not import the daemon.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from msgspec import Struct

from orchestrator.core.errors import StorageError
from orchestrator.settings.home import Home

READER_SECONDS = 0.001
"""Seconds between tries to take a lock that readers hold."""


class Holder(Struct, frozen=True):
    """The process that runs a home's daemon."""

    pid: int
    command: str

    @property
    def is_up(self) -> bool:
        """True for `orch up`, which also runs schedules."""
        return self.command.split()[1:2] == ["up"]

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.pid})"


@contextmanager
def daemon_lock(home: Home, command: str | None = None) -> Iterator[Holder | None]:
    """Take a home's daemon lock. Yield None if this process has it now, else its owner. Raises StorageError.

    `command` is the name under which people see this process; None means its `orch` command.
    """
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = home.lock.open("a+b", buffering=0)
    except OSError as error:
        raise StorageError(f"cannot use {home.lock}: {error.strerror}", hint="set ORCH_HOME elsewhere") from error
    with lock:
        if not _taken(lock):
            yield _holder(home)
            return
        try:
            command = command or " ".join(["orch", *sys.argv[1:]])
            _write(lock, json.dumps({"pid": os.getpid(), "command": command}))
        except OSError as error:
            raise StorageError(f"cannot write {home.lock}: {error.strerror}", hint="free disk space") from error
        try:
            yield None
        finally:
            with suppress(OSError):  # no process reads the file once the lock is free
                _write(lock, "")


def _taken(lock: IO[bytes]) -> bool:
    """Take a home's lock. Return False if a daemon has it. Waits for readers, who hold it shared for a moment."""
    while not _flocked(lock, fcntl.LOCK_EX):
        if not _flocked(lock, fcntl.LOCK_SH):
            return False
        # Give the shared lock back: it would turn away a daemon that starts at the same time.
        fcntl.flock(lock, fcntl.LOCK_UN)
        time.sleep(READER_SECONDS)
    return True


def _flocked(lock: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(lock: IO[bytes], text: str) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write(text.encode())


def running_daemon(home: Home) -> Holder | None:
    """Return the owner of a home's daemon, or None. Raises StorageError.

    Holds the lock shared for a moment (see `_taken`).
    """
    try:
        lock = home.lock.open("rb")  # a home may be readable but not writable
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {home.lock}: {error.strerror}") from error
    with lock:
        return None if _flocked(lock, fcntl.LOCK_SH) else _holder(home)


def _holder(home: Home) -> Holder:
    try:
        found = json.loads(home.lock.read_text())
        return Holder(int(found["pid"]), str(found["command"]))
    except (OSError, ValueError, KeyError):
        return Holder(0, "orch")
