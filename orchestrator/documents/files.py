"""Reads a file that is one document: text, HTML, PDF, office documents, and formats of plug-ins."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.documents.encoding import chosen_encoding, clean, decode, iso_2022_of
from orchestrator.documents.kinds import CONVERTED, IMAGE, SHEETS, UNKNOWN, split_name
from orchestrator.documents.lines import read_all, text_too_large
from orchestrator.documents.plugins import Extract, Plugin
from orchestrator.documents.safe_open import Opener, open_file
from orchestrator.documents.types import (
    NOTES,
    Document,
    DocumentProblem,
    ExtractionError,
    Picture,
    Render,
    UnreadableDocument,
    unreadable,
    unsupported,
)
from orchestrator.documents.unpacking import LEAST_UNPACKED

FIELDS = frozenset({"name", "path", "stem", "suffix", "folder", "size"})
_MORE_FIELDS = {
    "html": frozenset({"title"}),
    "pdf": frozenset({"pages", "sent_as"}),
    "pptx": frozenset({"pages"}),
    "epub": frozenset({"title"}),
    "fb2": frozenset({"title"}),
    "mhtml": frozenset({"title"}),
    IMAGE: frozenset({"pages", "sent_as"}),
    SHEETS: frozenset({"sheets"}),
}
PART_FIELDS = FIELDS.union(("inside", "subject", "sender", "recipients", "date"), *_MORE_FIELDS.values())
"""Template fields that a document inside an archive or mail may have."""

Open = Callable[[str, str | None], tuple[int, os.stat_result]]
_loaded: dict[str, Extract] = {}


class DocumentFile(NamedTuple):
    """A file and how to read it as one document.

    `path` opens the file; `relative` and `key` name the document. `kind` and `packing` come from `kinds.Kind`. If
    `within` is set, the file must be inside that folder. If `plugin` is set, the plug-in reads the file.
    """

    path: str
    relative: str
    key: str
    kind: str
    encoding: str | None
    max_bytes: int
    within: str | None = None
    packing: str = ""
    max_unpacked: int = LEAST_UNPACKED
    plugin: Plugin | None = None
    render: Render | None = None

    @property
    def may_be_plain(self) -> bool:
        """True if the file may be plain UTF-8 text: no set encoding, no packing, and a text or unknown kind."""
        return self.encoding is None and self.kind in ("text", UNKNOWN) and not self.packing


def read(file: DocumentFile) -> Document | UnreadableDocument:
    """Return a file's document, or its problem. The only error it raises is MemoryError."""
    return _read(file, _extractor_of(file), open_file)


def read_bytes(file: DocumentFile, data: bytes) -> Document | UnreadableDocument:
    """Return the document in `data`, a part of another file. The only error it raises is MemoryError."""
    try:
        return _document(file, data, _extractor_of(file))
    except ExtractionError as error:
        return _problem(file, error, len(data))


def _extractor_of(file: DocumentFile) -> Extract:
    return extractor(file.kind) if file.plugin is None else file.plugin.extractor()


def read_plain(file: DocumentFile, opener: Opener) -> Document | UnreadableDocument | None:
    """Return the document of a plain UTF-8 text file cheaply; None for any other file."""
    try:
        return _read(file, _utf8, opener.open)
    except _NotPlain:
        return None


class _NotPlain(Exception):
    """The file is not in UTF-8, or is not text."""


def _read(file: DocumentFile, extract: Extract, open_it: Open) -> Document | UnreadableDocument:
    size = None
    try:
        data = read_all(open_it, file.path, file.within, file.max_bytes)
        size = len(data)
        return _document(file, data, extract)
    except ExtractionError as error:
        return _problem(file, error, size)
    except OSError as error:
        return _problem(file, io_problem(error), size)


def _problem(file: DocumentFile, error: ExtractionError, size: int | None) -> UnreadableDocument:
    name = file.relative.rpartition("/")[2]
    return UnreadableDocument(file.key, name, error.code, error.message, size if error.size is None else error.size)


def _document(file: DocumentFile, data: bytes, extract: Extract) -> Document:
    folder, _, name = file.relative.rpartition("/")
    stem, suffix = split_name(name)
    if file.packing:
        from orchestrator.documents.content import unpack

        inside = unpack(data, file.packing, file.max_bytes, file.max_unpacked)
    else:
        inside = data
    pictures: tuple[Picture, ...] = ()
    if file.render is None:
        text, more = _extracted(file, inside, suffix, extract)
    else:
        from orchestrator.documents import page_images

        text, more, pictures = page_images.extract(inside, file.kind, file.render, file.max_bytes)
    if len(text) > file.max_bytes:
        raise text_too_large(file.max_bytes)
    if not pictures and (not text or text.isspace()):
        raise ExtractionError(DocumentProblem.EMPTY, "It contains no text; add some, or exclude it.")
    fields: dict[str, object] = {
        "name": name,
        "path": file.relative,
        "stem": stem,
        "suffix": suffix,
        "folder": folder,
        "size": len(data),
    }
    notes = ""
    if more:
        notes = "" if file.plugin else str(more.pop(NOTES, ""))
        fields.update(more)
    return Document(file.key, name, text, hashlib.sha256(data).hexdigest(), len(data), fields, pictures, notes)


def _extracted(file: DocumentFile, data: bytes, suffix: str, extract: Extract) -> tuple[str, dict[str, Any]]:
    """Return text and fields, read by the file's ending or, if the ending is wrong, by its content.

    Raises ExtractionError.
    """
    try:
        return extract(data, file.encoding, file.max_bytes)
    except ExtractionError as error:
        if file.plugin is not None or error.code not in _OF_ANOTHER_KIND:
            raise
        from orchestrator.documents import content_kind

        kind = content_kind.kind_of(data, file.kind, suffix)
        if kind is None:
            raise
        try:
            text, more = extractor(kind)(data, file.encoding, file.max_bytes)
        except ExtractionError:
            if kind == UNKNOWN:
                raise error from None
            raise
        fields = dict.fromkeys(_MORE_FIELDS.get(file.kind, ()), "")
        told = f"as its ending says (it is {content_kind.name_of(kind)})"
        notes = ", ".join(filter(None, (told, str(more.get(NOTES, "")))))
        return text, {**fields, **more, NOTES: notes}


_OF_ANOTHER_KIND = (DocumentProblem.UNREADABLE, DocumentProblem.UNSUPPORTED, DocumentProblem.ENCODING)
"""Problems that a wrong file ending may cause."""


def fields_of(kind: str) -> frozenset[str]:
    return FIELDS | _MORE_FIELDS.get(kind, frozenset())


def io_problem(error: OSError) -> ExtractionError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ExtractionError(
            DocumentProblem.VANISHED, "It was listed and is gone; run again if that was a mistake."
        )
    if isinstance(error, PermissionError):
        return unreadable("This user may not read it; give read permission, or exclude it.")
    return unreadable(f"It cannot be read ({error.strerror or error}); check the disk, or exclude it.")


def extractor(kind: str) -> Extract:
    """Return the reader for a kind of file. Unknown kinds are tried as plain text."""
    found = _loaded.get(kind)
    if found is None:
        found = _loaded[kind] = _load(kind)
    return found


_MODULES = {
    "html": "html_text",
    "pdf": "pdf_text",
    "docx": "docx_text",
    "pptx": "pptx_text",
    "odf": "odf_text",
    "epub": "epub_text",
    "fb2": "fb2_text",
    "folded": "chosen_text:folded",
    "ipynb": "chosen_text:notebook",
    "mhtml": "mhtml_text",
    "rtf": "rtf_text",
    "svg": "chosen_text:drawing",
    "xml": "chosen_text:markup",
    SHEETS: "sheets",
}


def _load(kind: str) -> Extract:
    if kind in _MODULES:
        module, _, name = _MODULES[kind].partition(":")
        found: Extract = getattr(importlib.import_module(f"orchestrator.documents.{module}"), name or "extract")
        return found
    if kind == IMAGE:
        return _image
    if kind == CONVERTED:
        return _converted
    return _plain if kind == "text" else _unknown


def _utf8(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    del encoding, most
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _NotPlain from None
    if "\0" in text or ("\x1b" in text and iso_2022_of(data)):
        raise _NotPlain
    return clean(text), {}


def _plain(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    del most  # a text has at most as many characters as bytes
    return decode(data, encoding), chosen_encoding(data, encoding)


def _image(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    del data, encoding, most
    raise unsupported(
        "This is a picture; set `render: auto` for this source to send it to the model as one, or exclude it."
    )


def _converted(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    del data, encoding, most
    raise unsupported(
        'LibreOffice would read it: set `converter = "soffice"` under [documents] in orch.toml, save it as a newer '
        "format, or exclude it."
    )


def _unknown(data: bytes, encoding: str | None, most: int) -> tuple[str, dict[str, Any]]:
    """Read a file without a known ending, such as LICENSE or server.log, that a user's pattern chose."""
    del most
    try:
        text = decode(data, encoding)
    except ExtractionError:
        text = "\0"
    if "\0" in text or _is_binary(data, encoding):
        raise unsupported(
            "Unsupported kind of file, and not plain text; convert it to text, HTML, PDF, an office format "
            "or a table."
        )
    return text, chosen_encoding(data, encoding)


def _is_binary(data: bytes, encoding: str | None) -> bool:
    from orchestrator.documents.encoding import bom_of, wide_without_bom

    return encoding is None and b"\0" in data and not bom_of(data) and not wide_without_bom(data)
