"""Atomic file writes. Even after a kill, a file is either complete and on disk, or absent."""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from orchestrator.core import permissions

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers for a full disk, an exhausted quota, or a file at its maximum size."""
BUFFER = 256 * 1024
"""Bytes per write. With Python's 8 KiB, writing short lines takes twice as long."""


@contextmanager
def durable(path: Path, *, for_user: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends. After an error, the old file remains.

    The new file is complete and on disk. If `path` is a link, its target is replaced. Processes that write the same
    file take turns. With `for_user`, a replaced file keeps its permissions, and new files and folders follow the
    user's umask. Raises OSError.
    """
    target = resolved(path)
    if for_user:
        permissions.make_folders(target.parent)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
    beside = beside_name(target)
    with _claimed(beside) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if for_user:
            permissions.give_to_user(file.fileno(), like=target)
        beside.replace(target)
    if not for_user:  # the caller may delete its sources next, so the name must also survive a power cut
        sync_folder(target.parent)


def write_once(path: Path, data: bytes) -> bool:
    """Create a file, complete from the start, that only its owner can read. Return True if this call created it.

    An existing file stays unchanged. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def resolved(path: Path) -> Path:
    """Return a path with its links resolved. Raises OSError."""
    try:
        return path.resolve()
    except RuntimeError:  # pathlib's error for a cycle of links until Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def beside_name(target: Path) -> Path:
    """Return the path of the unfinished file. The name is fixed, so the next attempt overwrites a leftover."""
    return target.with_name(f".{target.name}.partial")


@contextmanager
def _claimed(path: Path) -> Iterator[BinaryIO]:
    while True:
        with path.open("ab", BUFFER) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous owner may have moved this file into place: then the name no longer refers to it.
            if not _is_at(path, file):
                continue
            file.truncate(0)
            try:
                yield file
            except BaseException:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                raise
            return


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
