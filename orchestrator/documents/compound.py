"""Compound files (OLE): Outlook mail, and the workbooks of Excel 97-2003."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

from orchestrator.documents.extras import require

_ENTRY, _NAME = 128, 64
"""Bytes of a directory entry, and of the name in it. The name's length in bytes follows the name ([MS-CFB] 2.6.1)."""


def opened(file: io.BytesIO, what: str, *, write_mode: bool = False) -> Any:
    """Open a compound file with olefile.

    Raises ExtractionError (unsupported) if olefile is not installed, and olefile's errors for damage.
    """
    return _reader(require("olefile", what, "office"))(file, write_mode=write_mode)


@cache
def _reader(olefile: Any) -> Any:
    class CompoundFile(olefile.OleFileIO):  # type: ignore[misc]
        def _check_duplicate_stream(self, *about: object) -> None:
            """Skip olefile's check, which takes quadratic time. Duplicate streams do no harm."""

    return CompoundFile


def rename(data: bytearray, file: Any, entry: Any, name: str) -> None:
    """Rename a directory entry of olefile within the bytes of the file. This does not restore the entries' sort
    order.
    """
    sector, rest = divmod(entry.sid * _ENTRY, file.sector_size)
    at = file.first_dir_sector
    for _ in range(sector):
        at = file.fat[at]
    place = (at + 1) * file.sector_size + rest
    wide = name.encode("utf-16-le")
    data[place : place + _NAME + 2] = wide.ljust(_NAME, b"\0") + struct.pack("<H", len(wide) + 2)
