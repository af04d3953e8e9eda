"""Versions of the readers. Files read by an older version are read again, and sent again if their text changed."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.documents.kinds import CONTAINERS, CONVERTED, PLUGIN
from orchestrator.documents.plugins import Plugin

FIRST = 2
"""Version of a reader that READERS does not list, and of all readers before each had its own version."""
# Increase a kind's number whenever its reader may give another text for the same bytes, or can read more files.
# Otherwise tests/unit/test_documents_golden.py fails.
READERS: Mapping[str, int] = {
    "converted": 7,
    "csv": 5,
    "docx": 7,
    "eml": 8,
    "epub": 6,
    "fb2": 4,
    "folded": 3,
    "html": 7,
    "image": 4,
    "ipynb": 4,
    "mhtml": 5,
    "msg": 8,
    "odf": 9,
    "pdf": 14,
    "pptx": 7,
    "rtf": 5,
    "sheets": 22,
    "svg": 4,
    "text": 5,
    "xml": 3,
}


def version_of(kind: str) -> int:
    return READERS.get(kind, FIRST)


def reading_of(
    kind: str, plugin: Plugin | None, plugins: Mapping[str, Plugin], *, converts: bool
) -> tuple[object, ...]:
    """Return the versions of the readers that a file's text depends on.

    A container depends on all readers, because it may hold any kind of file. `converts` means that LibreOffice
    converts formats that orch cannot read.
    """
    by_office = (CONVERTED,) if converts else ()
    if kind in CONTAINERS.values():
        readers = sorted(READERS.items())
        return (str(FIRST), [one.version for one in plugins.values()], *readers, *by_office)
    if kind == CONVERTED:
        return (str(version_of(kind)), [], *by_office)
    if kind == PLUGIN:
        return (str(FIRST), [] if plugin is None else [plugin.version])
    return (str(version_of(kind)), [])
