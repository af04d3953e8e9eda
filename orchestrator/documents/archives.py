"""Reads ZIP and TAR archives within limits. This module writes no files and never uses a member's name as a path."""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any, NamedTuple

from orchestrator.documents.content import Content, joined, too_large_inside
from orchestrator.documents.ignored import IgnoredReason
from orchestrator.documents.kinds import Kind
from orchestrator.documents.lines import CHUNK, too_large
from orchestrator.documents.types import DocumentProblem, ExtractionError, unreadable
from orchestrator.documents.unpacking import UnpackLimit

_LOCKED = 1  # flag bit of entries that need a password
_MODE = 16
"""Number of bits by which a ZIP entry's attributes are shifted to get its Unix mode."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, tarfile.TarError)


class Member(NamedTuple):
    """A file inside another file: its path there, and how to read it.

    `read` raises OSError and ExtractionError, and must be called before the next member is requested. `fields` are
    extra template fields. `kind` is set if the name does not reveal it. If the file is not a document, `passed` is
    the reason. For a mail, `parts` replaces `read` if set. `known` is the text of the mail around a winmail.dat.
    """

    name: str
    read: Callable[[], bytes]
    fields: Mapping[str, Any] = {}
    kind: Kind | None = None
    passed: IgnoredReason | None = None
    parts: Callable[[], Iterator[Member]] | None = None
    known: str = ""


def zip_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the files of a ZIP archive in order; links have `passed` set. Raises OSError, ExtractionError."""
    with content.opened() as handle:
        try:
            archive = zipfile.ZipFile(handle)
        except _DAMAGE as error:
            raise damaged("ZIP") from error
        with archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    name = entry.filename.replace("\\", "/").lstrip("/")
                    passed = IgnoredReason.LINK if stat.S_ISLNK(entry.external_attr >> _MODE) else None
                    yield Member(name, partial(_zipped, archive, entry, content.limit, unpacking), passed=passed)


def _zipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int, unpacking: UnpackLimit) -> bytes:
    if entry.flag_bits & _LOCKED:
        raise ExtractionError(
            DocumentProblem.ENCRYPTED, "It opens only with the archive's password; unpack it, or exclude it."
        )
    if entry.file_size > limit:
        raise too_large_inside(limit, entry.file_size)
    if entry.header_offset < 0:  # this is the last volume of a split archive, and the entry is in another
        raise damaged_part()
    try:
        with archive.open(entry) as stream:
            return _taken(stream, limit, unpacking)
    except _DAMAGE as error:
        raise damaged_part() from error


def tar_parts(content: Content, unpacking: UnpackLimit) -> Iterator[Member]:
    """Yield the files of a TAR archive in order; links and devices have `passed` set. Raises OSError,
    ExtractionError.
    """
    with content.stream() as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                while (entry := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps all members
                    if not entry.isdir():
                        yield _tar_part(archive, entry, content.limit, unpacking)
        except _DAMAGE as error:
            raise damaged("TAR") from error


def _tar_part(archive: tarfile.TarFile, entry: tarfile.TarInfo, limit: int, unpacking: UnpackLimit) -> Member:
    name = entry.name.lstrip("/").removeprefix("./")
    if not entry.isreg():
        reason = IgnoredReason.LINK if entry.issym() or entry.islnk() else IgnoredReason.SPECIAL
        return Member(name, bytes, passed=reason)

    def read() -> bytes:
        if entry.size > limit:
            raise too_large(entry.size, limit)
        stream = archive.extractfile(entry)
        assert stream is not None  # the entry is a regular file
        try:
            return _taken(stream, limit, unpacking)
        except _DAMAGE as error:
            raise damaged_part() from error

    return Member(name, read)


def _taken(stream: IO[bytes], limit: int, unpacking: UnpackLimit) -> bytes:
    unpacking.check()
    data = joined(iter(partial(stream.read, CHUNK), b""), limit)
    unpacking.add_part(len(data))
    return data


def damaged_part() -> ExtractionError:
    return unreadable(
        "It is damaged in the archive, or packed in a way that is not read; pack it again, or exclude it."
    )


def damaged(what: str) -> ExtractionError:
    """Return the error for a damaged archive; `what` is its format."""
    return unreadable(f"The archive is damaged, cut off or not a {what} archive; pack it again, or exclude it.")
