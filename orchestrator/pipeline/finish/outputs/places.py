"""Destinations of outputs: a local file, written whole or not at all, or an address that fsspec opens."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from orchestrator.core import storages
from orchestrator.core.addresses import is_address
from orchestrator.core.atomic import beside_name, durable, resolved
from orchestrator.core.errors import OutputError, OutputFault
from orchestrator.pipeline.finish.outputs.faults import fault_of

PROBE_BYTES = 65_536
"""Bytes that a probe writes. More than zero, because a full disk often has room for an empty file."""
PROBE = ".orch-check"
"""Suffix of the object that a probe writes to a storage service and then removes."""
_HINTS = {
    OutputFault.NOT_A_FILE: "name a file",
    OutputFault.NOT_FOUND: "create it, or name another place",
    OutputFault.NO_PERMISSION: "give yourself the right to write there, or name another place",
    OutputFault.NO_ROOM: "free some space, or name another place",
    OutputFault.UNREACHABLE: "check that it exists and responds",
    OutputFault.FAILED: "check that it exists and its keys are set",
}


def located(text: str, folder: Path) -> str | Path:
    """Return an address unchanged, or a path relative to a folder."""
    if is_address(text):
        return text
    return folder / (unquote(urlsplit(text).path) if text.startswith("file://") else text)


def name_of(place: str | Path) -> str:
    """Return the name under which orch remembers a destination. For a file, this is its real path."""
    return place if isinstance(place, str) else os.path.realpath(place)


@contextmanager
def opened(place: str | Path) -> Iterator[BinaryIO]:
    """Open a file that appears at its destination only if the block succeeds. Raises OutputError.

    A replaced file keeps its permissions; a new file gets permissions from the user's umask.
    """
    if isinstance(place, str):
        with _spooled(place) as file:
            yield file
        return
    with _output_errors(place), durable(_target(place), for_user=True) as file:
        yield file


def probe(place: str | Path) -> None:
    """Test if a destination can be written, without changing it. Raises OutputError.

    For a file, the test writes and removes a file in its folder, or in the nearest existing parent. For an object, it
    writes and removes an object whose name ends with `PROBE`.
    """
    with _output_errors(place):
        if isinstance(place, Path):
            _probe_folder(_target(place))
            return
        storage, path = storages.opened(place)
        if storage.isdir(path) and not storage.isfile(path):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        beside = f"{path}{PROBE}"
        storage.pipe_file(beside, b"orch may write here\n")
        with suppress(Exception):  # permission to write may not include permission to remove
            storage.rm_file(beside)


def _probe_folder(target: Path) -> None:
    folder = target.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    with suppress(FileNotFoundError):
        beside_name(target).lstat()  # raises if the name is too long
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".orch-check-") as file:
        file.write(bytes(PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def is_empty(place: str | Path) -> bool:
    """True if nothing exists at a destination, or only an empty file or object. Raises OutputError."""
    with _output_errors(place):
        if isinstance(place, Path):
            target = resolved(place)
            return not target.is_file() or target.stat().st_size == 0
        storage, path = storages.opened(place)
        try:
            return not storage.size(path)
        except FileNotFoundError:
            return True


def mark_of(place: str | Path) -> str:
    """Return a digest or version mark of a file or object. Raises OutputError."""
    with _output_errors(place):
        if isinstance(place, Path):
            with place.open("rb") as file:
                return f"sha256:{file_digest(file, 'sha256').hexdigest()}"
        storage, path = storages.opened(place)
        return f"ukey:{storage.ukey(path)}"


@contextmanager
def _output_errors(place: str | Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise _fault(place, error) from error
    except Exception as error:  # each storage service has its own errors
        if isinstance(place, Path):
            raise
        raise _fault(place, error) from error


def _fault(place: str | Path, error: Exception) -> OutputError:
    code = fault_of(error)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return OutputError(code, f"cannot write {place}: {why}", hint=_HINTS.get(code))


def _target(place: Path) -> Path:
    target = resolved(place)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if target.exists() and not target.is_file():
        raise OSError(errno.ENXIO, "it is not a regular file")
    return target


@contextmanager
def _spooled(address: str) -> Iterator[BinaryIO]:
    """Write to a local file, then upload it. After a failed upload, many services keep the part they got."""
    with tempfile.NamedTemporaryFile(prefix="orch-export-") as file:
        with _output_errors(Path(file.name)):
            yield file  # type: ignore[misc]  # a wrapper of a BinaryIO
            file.flush()
        with _output_errors(address):
            storage, path = storages.opened(address)
            storage.put_file(file.name, path)
