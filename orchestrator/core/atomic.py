"""Files that are whole and on disk, or not there at all, whatever is killed meanwhile."""

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


@contextmanager
def durable(path: Path, *, for_user: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which is at `path`, whole and on disk, when the block ends; an error leaves what was there.

    Where `path` is a link, what it names is replaced. A process that writes the same file waits its turn. A file and
    folders `for_user` have the rights of the file that is replaced, or what the user's umask gives. Raises OSError.
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
    if not for_user:  # what it was made of may be deleted next: the name must survive a power cut too
        sync_folder(target.parent)


def write_once(path: Path, data: bytes) -> bool:
    """A file with these bytes for its owner alone, whole from its first moment; one that is there by then stays as it
    is. Whether it is this one now. Raises OSError.
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
    """Where a link leads. Raises OSError."""
    try:
        return path.resolve()
    except RuntimeError:  # what pathlib makes of a circle of links until Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def beside_name(target: Path) -> Path:
    """Where a file is written until it is whole: one name, so that the next try overwrites what a kill left."""
    return target.with_name(f".{target.name}.partial")


@contextmanager
def _claimed(path: Path) -> Iterator[BinaryIO]:
    """An empty file that this process alone writes; it is removed where that fails."""
    while True:
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had it before us has moved it to its place: then this is no longer the file of that name.
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
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
