"""Compound files (OLE): Outlook mail, and the workbooks of Excel 97-2003."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

from orchestrator.documents.extras import require

_ENTRY, _NAME = 128, 64
"""Sizes of a directory entry and of the name in it, which its length in bytes follows. Source: [MS-CFB] 2.6.1."""


def opened(file: io.BytesIO, what: str, *, write_mode: bool = False) -> Any:
    """Open a compound file with olefile.

    Raises ExtractionError (unsupported) if olefile is not installed, and what olefile raises for damage.
    """
    return _reader(require("olefile", what, "office"))(file, write_mode=write_mode)


@cache
def _reader(olefile: Any) -> Any:
    class CompoundFile(olefile.OleFileIO):  # type: ignore[misc]
        def _check_duplicate_stream(self, *about: object) -> None:
            """Skip olefile's check: its time is quadratic, and a duplicate stream does not harm reading."""

    return CompoundFile


def rename(data: bytearray, file: Any, entry: Any, name: str) -> None:
    """Rename one of olefile's directory entries in the bytes of its file. The sort order of names is not restored."""
    sector, rest = divmod(entry.sid * _ENTRY, file.sector_size)
    at = file.first_dir_sector
    for _ in range(sector):
        at = file.fat[at]
    place = (at + 1) * file.sector_size + rest
    wide = name.encode("utf-16-le")
    data[place : place + _NAME + 2] = wide.ljust(_NAME, b"\0") + struct.pack("<H", len(wide) + 2)
