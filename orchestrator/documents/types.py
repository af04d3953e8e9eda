"""Results of reading a source: documents, or the reasons for their absence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class DocumentProblem(StrEnum):
    """Reason why a file, folder or row yields no document."""

    ENCODING = "encoding"  # text whose encoding is unknown or ambiguous
    EMPTY = "empty"  # nothing but whitespace, no text layer, or a table without rows
    UNUSABLE_TEXT = "unusable_text"  # a text layer whose fonts do not reveal their letters
    ENCRYPTED = "encrypted"  # needs a password
    TOO_LARGE = "too_large"  # more bytes than `max_bytes`
    UNREADABLE = "unreadable"  # permissions, I/O errors, damaged files
    VANISHED = "vanished"  # removed after it was listed
    UNSUPPORTED = "unsupported"  # a kind of file that orch does not read
    NO_TEXT_COLUMN = "no_text_column"  # a table whose source does not name the column with the text
    BAD_ROW = "bad_row"  # one bad row of a table; the other rows are read
    CHANGING = "changing"  # the file is being written to
    TIME_LIMIT = "time_limit"  # reading takes too long
    MEMORY_LIMIT = "memory_limit"  # reading takes too much memory
    READER_CRASHED = "reader_crashed"  # the reader failed on the file


BY_OCR = " by OCR"
"""Ending of `sent_as` if OCR read pages of the document."""


NOTES = "notes"
"""Field in which orch's own readers say what they left out. It becomes the document's `notes`."""


class Picture(NamedTuple):
    """A page as a base64-encoded JPEG."""

    page: int  # from 1
    data: str

    @property
    def url(self) -> str:
        return f"data:image/jpeg;base64,{self.data}"


class Render(NamedTuple):
    """Settings for turning pages into pictures, as in `Pictures` of the job file. `how` is auto, image, both or
    ocr.
    """

    how: str
    resolution: int
    longest_side: int
    pages: int
    grayscale: bool
    max_bytes: int

    @property
    def is_ocr(self) -> bool:
        """True if text recognised on the pictures is sent instead of the pictures."""
        return self.how == "ocr"


class Document(Struct, frozen=True):
    """One text with its identity.

    `key` is the same in every run: `<source path as written>/<relative path>`, plus `#<id or row number>` for a
    table row. `digest` is the SHA-256 (hex) of the raw bytes, or of the row's canonical JSON. `size` is in bytes.
    `fields` are template names besides `text`. `pictures` are pages that are sent to the model as pictures.
    """

    key: str
    name: str
    text: str
    digest: str
    size: int
    fields: Mapping[str, object]
    pictures: tuple[Picture, ...] = ()
    notes: str = ""


class UnreadableDocument(Struct, frozen=True):
    """A file, folder or row that was found but not read. `message` says what is wrong and what to do.

    `setting` is the source's setting that names a missing column; None for any other problem.
    """

    key: str
    name: str
    code: DocumentProblem
    message: str
    size: int | None
    setting: str | None = None


class RemoteObject(NamedTuple):
    """An object to read: its fsspec storage, its path there, and its listing, which may be empty.

    `is_alone` means that the source has no other object.
    """

    storage: Any
    path: str
    info: Mapping[str, Any]
    is_alone: bool = False

    @property
    def size(self) -> int | None:
        """Size in bytes; None if the listing does not state it."""
        size = self.info.get("size")
        return size if isinstance(size, int) else None


class ExtractionError(Exception):
    """A reader's failure for one document. It becomes an `UnreadableDocument` and never leaves this package."""

    def __init__(
        self, code: DocumentProblem, message: str, size: int | None = None, setting: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.size = size
        self.setting = setting


def unreadable(message: str) -> ExtractionError:
    """Return the error for a file that is damaged, or is not what its name says."""
    return ExtractionError(DocumentProblem.UNREADABLE, message)


def unsupported(message: str) -> ExtractionError:
    """Return the error for a kind of file that orch never reads, or reads only with an extra."""
    return ExtractionError(DocumentProblem.UNSUPPORTED, message)


def beyond_limit(message: str, size: int | None = None, setting: str | None = None) -> ExtractionError:
    """Return the error for a document that exceeds a limit. `setting` is the setting that raises the limit."""
    return ExtractionError(DocumentProblem.TOO_LARGE, message, size, setting)
