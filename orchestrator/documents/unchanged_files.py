"""Stamps of files from the system's metadata, so that unchanged files need not be read."""

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
"""Age in nanoseconds below which a file may change again without a new time.

Some file systems count time in steps of two seconds. Git calls such a file racily clean.
"""
_PARTS = 5
"""Number of dot-separated parts of a local file's stamp."""


def way_of(source: DocumentSource, kind: str, plugin: Plugin | None, *, converts: bool) -> str:
    """Return a digest of the settings and readers for a kind of file.

    A change of these can change the text of the same bytes. `converts` is as in `versions.reading_of`.
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
    """Return True if two stamps are of the same bytes, even if the bytes were read differently."""
    return None not in (stamp, other) and str(stamp).rpartition(".")[0] == str(other).rpartition(".")[0]


def is_unchanged(stamp: str | None, size: int | None, at: datetime) -> bool:
    """Return True if a local file with this stamp has not changed since it was found at time `at` with `size` bytes.

    `size` is None if unknown, as for files that crash their reader.
    """
    found = [] if stamp is None else stamp.split(".")
    if len(found) != _PARTS or (size is not None and found[0] != str(size)):
        return False
    return max(map(int, found[1:3])) / 1e9 < at.timestamp()


def stamp(path: str, way: str, now_ns: int) -> str | None:
    """Return a stamp of a file's size, times, inode and way of reading. Take the stamp before reading the file.

    None if the file is gone, or was changed less than RACY_NS before `now_ns` (the system's time) or after it.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    # Programs cannot set ctime, so an edit that restores the old mtime is detected, too.
    if max(found.st_mtime_ns, found.st_ctime_ns) > now_ns - RACY_NS:
        return None
    return f"{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}.{found.st_ino}.{way}"
