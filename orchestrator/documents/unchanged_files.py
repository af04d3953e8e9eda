"""What the system says of a file, so that one that did not change need not be read to know it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from orchestrator.documents.plugins import Plugin, installed
from orchestrator.documents.versions import reading_of

if TYPE_CHECKING:
    from orchestrator.settings.job_spec import DocumentSource

RACY_NS = 2_000_000_000
"""A file that changed so shortly before it was checked may change once more without another time: some file systems
count in steps of two seconds. Git does the same, and calls it racily clean."""


def way_of(source: DocumentSource, kind: str, plugin: Plugin | None) -> str:
    """How files of a kind are read in a source: with another way, the same bytes may give another text, or none."""
    way: tuple[object, ...] = (
        *reading_of(kind, plugin, installed()),
        source.encoding,
        source.max_bytes,
        source.text_column,
        source.id_column,
    )
    if source.render != "text":
        way = (*way, source.render, source.pictures)
    return hashlib.sha256(repr(way).encode()).hexdigest()[:12]


def stamp(path: str, way: str, now_ns: int) -> str | None:
    """Size, times, number and way of reading of a file, to be taken before it is read.

    None where it changed less than RACY_NS before `now_ns`, the system's time, or in the future, or is gone.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    # The time of the last change of any kind cannot be set, so an edit that puts the old mtime back is seen too.
    if max(found.st_mtime_ns, found.st_ctime_ns) > now_ns - RACY_NS:
        return None
    return f"{found.st_size}.{found.st_mtime_ns}.{found.st_ctime_ns}.{found.st_ino}.{way}"
