"""One file, one document: text, HTML, PDF, Word."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from orchestrator.documents.encoding import decode
from orchestrator.documents.lines import read_all
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

Extract = Callable[[bytes, str | None], tuple[str, dict[str, Any]]]
_loaded: dict[str, Extract] = {}


def read(
    path: str, relative: str, key: str, *, encoding: str | None, max_bytes: int
) -> Document | UnreadableDocument:
    """`path` is for the system, `relative` and `key` for the document. Never raises for what the file holds."""
    folder, _, name = relative.rpartition("/")
    stem, suffix = split_name(name)
    size = None
    try:
        data = read_all(path, max_bytes)
        size = len(data)
        text, more = extractor(suffix)(data, encoding)
        if not text or text.isspace():
            raise ExtractionError(DocumentProblem.EMPTY, "There is no text in it; fill it in, or exclude it.")
    except ExtractionError as error:
        return UnreadableDocument(key, name, error.code, error.message, size if error.size is None else error.size)
    except OSError as error:
        problem = io_problem(error)
        return UnreadableDocument(key, name, problem.code, problem.message, size)
    fields: dict[str, object] = {
        "name": name,
        "path": relative,
        "stem": stem,
        "suffix": suffix,
        "folder": folder,
        "size": size,
    }
    if more:
        fields.update(more)
    return Document(key, name, text, hashlib.sha256(data).hexdigest(), size, fields)


def fields_of(relative: str) -> frozenset[str]:
    """The template fields of the file of that name."""
    kind = kind_of(split_name(relative.rpartition("/")[2])[1])
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


def extractor(suffix: str) -> Extract:
    """The reader for files that end in `suffix`; unknown ones are tried as plain text."""
    found = _loaded.get(suffix)
    if found is None:
        found = _loaded[suffix] = _load(kind_of(suffix))
    return found


def kind_of(suffix: str) -> str:
    """A value of SUFFIXES, or "unknown"."""
    return SUFFIXES.get(suffix.lower(), "unknown")


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


def _plain(data: bytes, encoding: str | None) -> tuple[str, dict[str, Any]]:
    return decode(data, encoding), {}


def _unknown(data: bytes, encoding: str | None) -> tuple[str, dict[str, Any]]:
    """A file that only a pattern chose, such as LICENSE or server.log."""
    try:
        text = decode(data, encoding)
    except ExtractionError:
        text = "\0"
    if "\0" in text or _is_binary(data, encoding):
        raise ExtractionError(
            DocumentProblem.UNSUPPORTED,
            "This kind of file is not read and it is no plain text; convert it to text, HTML, PDF, .docx or a table.",
        )
    return text, {}


def _is_binary(data: bytes, encoding: str | None) -> bool:
    from orchestrator.documents.encoding import bom_of, wide_without_bom

    return encoding is None and b"\0" in data and not bom_of(data) and not wide_without_bom(data)
