"""Limits and errors that readers of office documents and PDFs share."""

from __future__ import annotations

import importlib
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from orchestrator.documents.lines import text_too_large
from orchestrator.documents.types import (
    NOTES,
    DocumentProblem,
    ExtractionError,
    beyond_limit,
    unreadable,
    unsupported,
)

EXCELS_PASSWORD, POWERPOINTS_PASSWORD = "VelvetSweatshop", "/01Hannes Ruescher/01"
"""Passwords that these programs try first. Documents that are only write-protected are encrypted with them."""
MAX_ELEMENTS = 5_000_000  # a thousand pages have half a million elements
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


class TextLimit:
    """Limits on the XML elements and characters of a document. Raises ExtractionError (too_large)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._characters = most
        self._elements = MAX_ELEMENTS

    def element(self) -> None:
        self._elements -= 1
        if self._elements < 0:
            raise beyond_limit(f"The document has more than {MAX_ELEMENTS:,} elements; split it, or exclude it.")

    def text(self, text: str) -> None:
        self._characters -= len(text)
        if self._characters < 0:
            raise text_too_large(self._most)


class Losses(Counter[str]):
    """Counts of contents that a document's text lacks, by kind: `picture`, `chart as a picture only`."""

    def notes(self, *first: str) -> dict[str, str]:
        """Return the losses as a template field: `2 pictures, 1 embedded file`.

        The notes in `first` come before the losses. Empty if there are neither notes nor losses.
        """
        counted = [
            f"{number:,} {what if number == 1 else _MANY[what]}" for what, number in self.items() if number > 0
        ]
        return {NOTES: ", ".join((*first, *counted))} if first or counted else {}


_MANY = {
    "attached file": "attached files",
    "chart as a picture only": "charts as pictures only",
    "damaged part": "damaged parts",
    "embedded file": "embedded files",
    "missing chapter": "missing chapters",
    "part in another format": "parts in other formats",
    "picture": "pictures",
    "sound": "sounds",
    "video": "videos",
}
"""Plurals of the kinds of losses."""


def check_container(data: bytes, old: str) -> None:
    """Raise ExtractionError if the document is locked or in an old binary format. `old` describes that format."""
    if is_locked(data):
        raise encrypted()
    if data.startswith(OLE):
        raise unsupported(f"This is {old}, or exclude it.")


def is_locked(data: bytes) -> bool:
    """Return True if the file is a Microsoft Office document that needs a password."""
    return data.startswith(OLE) and "EncryptedPackage".encode("utf-16-le") in data


def unlocked(data: bytes, *passwords: str) -> bytes:
    """Return a locked document decrypted with one of `passwords`.

    Raises ExtractionError if no password fits or the extra `office` is missing.
    """
    with suppress(ImportError):
        library = importlib.import_module("msoffcrypto")  # in the extra `office`
        old: Any = importlib.import_module("msoffcrypto.format.xls97")
        old.tempfile = SimpleNamespace(TemporaryFile=io.BytesIO)  # a reader's process may not write files
        for password in passwords:
            out = io.BytesIO()
            with suppress(Exception):
                file = library.OfficeFile(io.BytesIO(data))
                file.load_key(password=password)
                file.decrypt(out)
                return out.getvalue()
    raise encrypted()


def encrypted() -> ExtractionError:
    return ExtractionError(
        DocumentProblem.ENCRYPTED, "The document opens only with a password; save a copy without one, or exclude it."
    )


@contextmanager
def damage_as(what: str) -> Iterator[None]:
    """Turn any error except ExtractionError and MemoryError into the error for a damaged `what`."""
    try:
        yield
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        # zipfile, zlib, expat and the parser of mails raise a dozen different types for damage.
        raise damaged(what) from error


def damaged(what: str) -> ExtractionError:
    """Return the error for a file that is damaged or is not of the format `what`."""
    return unreadable(f"The file is damaged, or is not a valid {what}; save it again, or exclude it.")
