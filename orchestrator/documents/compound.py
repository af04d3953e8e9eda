"""Compound files (OLE): Outlook mail, and the workbooks of Excel 97-2003."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

from orchestrator.documents.extras import require


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
