"""What a source yields: a document, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class DocumentProblem(StrEnum):
    """Why a file, folder or row gave no document."""

    ENCODING = "encoding"  # bytes that are not text in any encoding that can be told for certain
    EMPTY = "empty"  # nothing but white space, no text layer, or a table without rows
    UNUSABLE_TEXT = "unusable_text"  # a text layer whose fonts do not tell which letters they show
    ENCRYPTED = "encrypted"  # opens only with a password
    TOO_LARGE = "too_large"  # more bytes than `max_bytes`
    UNREADABLE = "unreadable"  # permissions, I/O errors, damaged files
    VANISHED = "vanished"  # was listed, and is gone
    UNSUPPORTED = "unsupported"  # a kind of file that is not read here
    BAD_ROW = "bad_row"  # one row of a table that does not fit; the others are read
    CHANGING = "changing"  # it is being written to
    TIME_LIMIT = "time_limit"  # reading it takes longer than it may
    MEMORY_LIMIT = "memory_limit"  # reading it takes more memory than it may
    READER_CRASHED = "reader_crashed"  # the reader failed on it


BY_OCR = " by OCR"
"""How `sent_as` ends of a document that OCR has read pages of."""


NOTES = "notes"
"""The field in which a reader of ours says what it left out: it becomes the document's `notes`."""


class Picture(NamedTuple):
    """A page as a picture: JPEG, in base64."""

    page: int  # from 1
    data: str

    @property
    def url(self) -> str:
        """As a `data:` URL."""
        return f"data:image/jpeg;base64,{self.data}"


class Render(NamedTuple):
    """How pages are made pictures: as `Pictures` of the job file has it; `how` is auto, image or both."""

    how: str
    resolution: int
    longest_side: int
    pages: int
    grayscale: bool
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its identity.

    `key` is stable over runs: `<source path as written>/<relative path>`, and `#<id or row number>` for a
    table row. `digest` is the SHA-256 (hex) of the raw bytes, or of the row's canonical JSON. `size` is in
    bytes. `fields` are the names a template may use besides `text`. `pictures` are pages that go to the
    model as such. `notes` say what is in the document and not in its text: `2 pictures, page 3 without text`.
    """

    key: str
    name: str
    text: str
    digest: str
    size: int
    fields: Mapping[str, object]
    pictures: tuple[Picture, ...] = ()
    notes: str = ""


@dataclass(frozen=True, slots=True)
class UnreadableDocument:
    """A file, folder or row that was found and not read; `message` says what is wrong and what to do."""

    key: str
    name: str
    code: DocumentProblem
    message: str
    size: int | None


class ExtractionError(Exception):
    """Raised by a reader for one document; becomes an `UnreadableDocument`. Never leaves this package."""

    def __init__(self, code: DocumentProblem, message: str, size: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.size = size
