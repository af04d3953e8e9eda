"""One file, one document: text, HTML, PDF, Word."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.documents.encoding import clean, decode
from orchestrator.documents.lines import read_all
from orchestrator.documents.opening import Opener, open_file
from orchestrator.documents.types import Document, DocumentProblem, ExtractionError, UnreadableDocument

SUFFIXES = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".markdown": "text",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "docx",
}
FIELDS = frozenset({"name", "path", "stem", "suffix", "folder", "size"})
_MORE_FIELDS = {"html": frozenset({"title"}), "pdf": frozenset({"pages"})}

Extract = Callable[[bytes, str | None, int], tuple[str, dict[str, Any]]]
"""Bytes, their encoding where the user names it, and how many characters a text may have."""
Open = Callable[[str, str | None], tuple[int, os.stat_result]]
_loaded: dict[str, Extract] = {}


class DocumentFile(NamedTuple):
    """A file and how to make a document of it.

    `path` is for the system, `relative` and `key` are the document's; `kind` is a value of SUFFIXES, or
    "unknown". It must be in the folder `within`, and may be anywhere where that is None.
    """

    path: str
    relative: str
    key: str
    kind: str
    encoding: str | None
    max_bytes: int
    within: str | None = None

    @property
    def may_be_plain(self) -> bool:
        """Whether it may be plain text in UTF-8, as its name goes."""
        return self.encoding is None and (self.kind == "text" or self.kind == "unknown")


def read(file: DocumentFile) -> Document | UnreadableDocument:
    """The document of a file. Never raises for what the file holds, but MemoryError."""
    return _read(file, extractor(file.kind), open_file)


def read_plain(file: DocumentFile, opener: Opener) -> Document | UnreadableDocument | None:
    """The document of a file that is plain text in UTF-8, which takes little more than its bytes; None for others."""
    try:
        return _read(file, _utf8, opener.open)
    except _NotPlain:
        return None


class _NotPlain(Exception):
    """The text is in another encoding, or none at all."""


def _read(file: DocumentFile, extract: Extract, open_it: Open) -> Document | UnreadableDocument:
    folder, _, name = file.relative.rpartition("/")
    stem, suffix = split_name(name)
    size = None
    try:
        data = read_all(open_it, file.path, file.within, file.max_bytes)
        size = len(data)
        text, more = extract(data, file.encoding, file.max_bytes)
        if len(text) > file.max_bytes:
            raise text_too_large(file.max_bytes)
        if not text or text.isspace():
            raise ExtractionError(DocumentProblem.EMPTY, "There is no text in it; fill it in, or exclude it.")
    except ExtractionError as error:
        shown = size if error.size is None else error.size
        return UnreadableDocument(file.key, name, error.code, error.message, shown)
    except OSError as error:
        problem = io_problem(error)
        return UnreadableDocument(file.key, name, problem.code, problem.message, size)
    fields: dict[str, object] = {
        "name": name,
        "path": file.relative,
        "stem": stem,
        "suffix": suffix,
        "folder": folder,
        "size": size,
    }
    if more:
        fields.update(more)
    return Document(file.key, name, text, hashlib.sha256(data).hexdigest(), size, fields)


def fields_of(kind: str) -> frozenset[str]:
    """The template fields of a kind of file."""
    return FIELDS | _MORE_FIELDS.get(kind, frozenset())


def split_name(name: str) -> tuple[str, str]:
    """Stem and suffix as pathlib splits them, without making a path."""
    dot = name.rfind(".")
    return (name[:dot], name[dot:]) if 0 < dot < len(name) - 1 else (name, "")


def io_problem(error: OSError) -> ExtractionError:
    """What to tell about a file that the system does not give."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ExtractionError(
            DocumentProblem.VANISHED, "It was listed and is gone; run again if it was not meant to go."
        )
    if isinstance(error, PermissionError):
        return ExtractionError(
            DocumentProblem.UNREADABLE, "It must not be read by this user; give read permission, or exclude it."
        )
    return ExtractionError(
        DocumentProblem.UNREADABLE, f"It cannot be read ({error.strerror or error}); check the disk, or exclude it."
    )


def text_too_large(limit: int) -> ExtractionError:
    """For a file that is small enough itself."""
    return ExtractionError(
        DocumentProblem.TOO_LARGE,
        f"Its text has more than the {limit:,} characters allowed; split it, or raise `max_bytes`.",
    )


def extractor(kind: str) -> Extract:
    """The reader for a kind of file; unknown ones are tried as plain text."""
    found = _loaded.get(kind)
    if found is None:
        found = _loaded[kind] = _load(kind)
    return found


def _load(kind: str) -> Extract:
    if kind == "html":
        from orchestrator.documents.html_text import extract as extract_html

        return extract_html
    if kind == "pdf":
        from orchestrator.documents.pdf_text import extract as extract_pdf

        return extract_pdf
    if kind == "docx":
        from orchestrator.documents.docx_text import extract as extract_docx

        return extract_docx
    return _plain if kind == "text" else _unknown


def _utf8(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    del encoding, most
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _NotPlain from None
    if "\0" in text:
        raise _NotPlain
    return clean(text), {}


def _plain(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    del most  # it has no more characters than bytes
    return decode(data, encoding), {}


def _unknown(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    """A file that only a pattern chose, such as LICENSE or server.log."""
    del most
    try:
        text = decode(data, encoding)
    except ExtractionError:
        text = "\0"
    if "\0" in text or _is_binary(data, encoding):
        raise ExtractionError(
            DocumentProblem.UNSUPPORTED,
            "Unsupported kind of file, and not plain text; convert it to text, HTML, PDF, .docx or a table.",
        )
    return text, {}


def _is_binary(data: bytes, encoding: str | None) -> bool:
    from orchestrator.documents.encoding import bom_of, wide_without_bom

    return encoding is None and b"\0" in data and not bom_of(data) and not wide_without_bom(data)
