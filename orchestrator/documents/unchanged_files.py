"""Stamps of files by the system's information, so that unchanged files need not be read."""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.documents.plugins import Plugin, installed
from orchestrator.documents.versions import reading_of

if TYPE_CHECKING:
    from orchestrator.settings.job_spec import DocumentSource

RACY_NS = 2_000_000_000
"""A file that changed within this time before its check may change again without a new time: some file systems count
in steps of two seconds. Git calls such a file racily clean."""
_PARTS = 5
"""Number of parts of a local file's stamp."""


def way_of(source: DocumentSource, kind: str, plugin: Plugin | None, *, converts: bool) -> str:
    """Return a digest of how a source reads a kind of file: read differently, the same bytes may give another text.

    `converts` is that of `versions.reading_of`.
    """
    way: tuple[object, ...] = (
        *reading_of(kind, plugin, installed(), converts=converts),
        source.encoding,
        source.max_bytes,
        source.text_column,
        source.id_column,
    )
    if source.render != "text":
        way = (*way, source.render, source.pictures)
    return hashlib.sha256(repr(way).encode()).hexdigest()[:12]


def is_same_file(stamp: str | None, other: str | None) -> bool:
    """True if two stamps are of the same bytes, even if the bytes were read differently."""
    return None not in (stamp, other) and str(stamp).rpartition(".")[0] == str(other).rpartition(".")[0]


def is_unchanged(stamp: str | None, size: int | None, at: datetime) -> bool:
    """True if a local file with this stamp had these bytes already when it was found with this size, None if unknown.

    Files that end their reader have no size.
    """
    found = [] if stamp is None else stamp.split(".")
    if len(found) != _PARTS or (size is not None and found[0] != str(size)):
        return False
    return max(map(int, found[1:3])) / 1e9 < at.timestamp()


def stamp(path: str, way: str, now_ns: int) -> str | None:
    """Return a stamp from a file's size, times, number and way of reading; take it before reading the file.

    None if the file changed less than RACY_NS before `now_ns`, the system's time, or in the future, or is gone.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    # The time of the last change of any kind cannot be set, so an edit that restores the old mtime is detected too.
    if max(found.st_mtime_ns, found.st_ctime_ns) > now_ns - RACY_NS:
        return None
    return f"{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}.{found.st_ino}.{way}"
