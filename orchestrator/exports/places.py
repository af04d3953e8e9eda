"""Where a table goes: a file beside its name and then moved there whole, or an address that fsspec knows."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from orchestrator.errors import StorageError, UsageError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_address(text: str) -> bool:
    """Whether a text is a URL and no path; `file://` is as good as a path."""
    return bool(_ADDRESS.match(text)) and not text.startswith("file://")


def located(text: str, folder: Path) -> str | Path:
    """An address as it is, a path as seen from a folder."""
    if is_address(text):
        return text
    return folder / (unquote(urlsplit(text).path) if text.startswith("file://") else text)


def check_address(address: str, field: str) -> None:
    """Raises UsageError where nothing here can write to an address. Nothing is sent."""
    parts = urlsplit(address)
    if parts.password or parts.query:
        raise UsageError(
            f"{field}: an address may carry no password and no query",
            hint="the storage's own variables hold the keys, such as AWS_ACCESS_KEY_ID",
        )
    from fsspec import get_filesystem_class

    try:
        get_filesystem_class(parts.scheme)
    except ValueError:
        raise UsageError(f"{field}: {parts.scheme}:// is no storage that fsspec knows") from None
    except ImportError as error:
        extra = "pip install 'orch-batch[s3]'" if parts.scheme in ("s3", "s3a") else str(error)
        raise UsageError(f"{field}: what writes to {parts.scheme}:// is not installed", hint=extra) from None


@contextmanager
def opened(place: str | Path) -> Iterator[BinaryIO]:
    """A file to write; it is in its place when the block ends, and nowhere when it fails. Raises StorageError."""
    if isinstance(place, str):
        with _spooled(place) as file:
            yield file
        return
    try:
        target = _resolved(place)
        if target.exists() and not target.is_file():
            raise StorageError(f"cannot write {place}: it is no regular file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(target.with_name(f".{target.name}.partial")) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(target)
    except OSError as error:
        hint = "make room, or name another file, then run it again"
        raise StorageError(f"cannot write {place}: {error.strerror or error}", hint=hint) from error


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # what pathlib makes of a circle of links until Python 3.12
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


@contextmanager
def _claimed(path: Path) -> Iterator[BinaryIO]:
    """An empty file that this process alone writes; another that writes the same one waits its turn.

    One name, not one a process: what a kill leaves is overwritten by the next try.
    """
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


@contextmanager
def _spooled(address: str) -> Iterator[BinaryIO]:
    """Written here first and then sent: many storages would keep what was sent of a file that then failed."""
    from fsspec.core import url_to_fs

    with tempfile.NamedTemporaryFile(prefix="orch-export-") as file:
        try:
            yield file  # type: ignore[misc]  # a wrapper of a BinaryIO
            file.flush()
        except OSError as error:
            raise StorageError(f"cannot write {file.name}: {error.strerror}", hint="make room") from error
        try:
            storage, path = url_to_fs(address)
            storage.put_file(file.name, path)
        except Exception as error:  # each storage has errors of its own
            raise StorageError(
                f"cannot write {address}: {error or type(error).__name__}",
                hint="see that the bucket is there and its keys are set, then run `orch fetch`",
            ) from error
