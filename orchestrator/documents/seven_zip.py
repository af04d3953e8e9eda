"""Reads 7z archives within limits. Their files are packed consecutively, so several are unpacked together."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any

from orchestrator.documents.archives import Member, damaged, damaged_part
from orchestrator.documents.content import Content, too_large_inside
from orchestrator.documents.extras import require
from orchestrator.documents.ignored import IgnoredReason
from orchestrator.documents.types import DocumentProblem, ExtractionError
from orchestrator.documents.unpacking import UnpackLimit

_MOST_AT_ONCE = 20_000_000
"""Maximum bytes of files that are unpacked together, unless a single file is larger."""


def parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the archive's links, with `passed` set, and then its files in order. Raises OSError, ExtractionError."""
    library = require("py7zr", "7z archives", "sevenzip")
    with content.opened() as handle:
        archive = _opened(library, handle)
        waiting: list[Any] = []
        for entry in archive.list():
            if entry.is_symlink:
                yield Member(_name(entry), bytes, passed=IgnoredReason.LINK)
            elif not entry.is_directory:
                waiting.append(entry)
        for some in _together(waiting):
            unpacked = _Unpacked(archive, some, unpacking)
            for entry in some:
                yield Member(_name(entry), partial(_read, unpacked, entry, content.limit))


def _opened(library: Any, handle: IO[bytes]) -> Any:
    try:
        archive = library.SevenZipFile(handle)
        is_locked = archive.needs_password()
    except library.PasswordRequired:
        is_locked = True
    except MemoryError:
        raise
    except Exception as error:
        # The library raises a dozen different types on a damaged archive.
        raise damaged("7z") from error
    if is_locked:
        raise ExtractionError(
            DocumentProblem.ENCRYPTED, "It opens only with the archive's password; unpack it, or exclude it."
        )
    return archive


def _together(entries: Sequence[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    size = 0
    for entry in entries:
        if some and size + entry.uncompressed > _MOST_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(entry)
        size += entry.uncompressed
    if some:
        yield some


def _name(entry: Any) -> str:
    name: str = entry.filename
    return name.replace("\\", "/").lstrip("/")


def _read(unpacked: _Unpacked, entry: Any, limit: int) -> bytes:
    if entry.uncompressed > limit:
        raise too_large_inside(limit, entry.uncompressed)
    return unpacked.read(entry)


class _Unpacked:
    """Some files of an archive, unpacked together when the first is read."""

    def __init__(self, archive: Any, entries: Sequence[Any], unpacking: UnpackLimit) -> None:
        self._archive = archive
        self._names = [entry.filename for entry in entries]
        self._unpacking = unpacking
        self._held: dict[str, _Buffer] = {}

    def read(self, entry: Any) -> bytes:
        name = PurePosixPath(entry.filename)
        if ".." in name.parts or name.is_absolute():
            raise damaged_part()
        self._unpacking.check()
        if f"{name}" not in self._held:  # the first file, or the file after a damaged one
            self._unpack(entry.filename)
        data = self._held.pop(f"{name}", None)
        if data is None or not data.is_whole:
            raise damaged_part()
        self._unpacking.add_part(entry.uncompressed)
        return data.getvalue()

    def _unpack(self, first: str) -> None:
        """Unpack the files from `first` on, up to any damage. Files after the damage are retried when they are
        read.
        """
        wanted = self._names[self._names.index(first) :]
        try:
            self._archive.reset()
            self._archive.extract(targets=wanted, factory=self)
        except (ExtractionError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 (the library raises a dozen different types)
            del error  # the files before the damage are complete

    def create(self, filename: str) -> _Buffer:
        """Return the buffer for a file; the library calls this."""
        held = self._held[filename] = _Buffer()
        return held


class _Buffer(io.BytesIO):
    """Bytes that survive the library's `close`. The library closes a file only if its checksum is right."""

    is_whole = False

    def close(self) -> None:
        self.is_whole = True

    def size(self) -> int:
        return len(self.getbuffer())
