"""Paragraphs and tables of a Word document in their order, with headers, notes and text boxes.

python-docx opens the package; the XML is walked here, because its paragraphs leave out tracked insertions and
content controls, which is where the changing parts of a contract are.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import docx
import docx.opc.exceptions
from docx.oxml import parse_xml

from orchestrator.documents.encoding import clean
from orchestrator.documents.types import DocumentProblem, ExtractionError

MAX_UNPACKED = 200_000_000  # bytes; a document that unpacks to more is a bomb, or will not fit in memory

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_CHOICE = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Choice"
_MARKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
# `del` and `moveFrom` are missing on purpose: their text is no longer part of the document.
_INLINE = frozenset(
    "r hyperlink ins moveTo smartTag sdt sdtContent fldSimple customXml dir bdo ruby rubyBase AlternateContent "
    "Choice".split()
)
_WRAPPERS = frozenset("sdt sdtContent ins moveTo customXml smartTag".split())
_OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def extract(data: bytes, encoding: str | None) -> tuple[str, dict[str, object]]:
    """Text, one paragraph or table row a line. Raises ExtractionError (encrypted, unreadable, too_large ...)."""
    del encoding  # XML says itself how it is written
    if data.startswith(_OLE_MAGIC):
        raise _not_a_package(data)
    try:
        _check_size(data)
        document = docx.Document(io.BytesIO(data))
        lines = [line for root in _roots(document) for line in _blocks(root)]
    except ExtractionError:
        raise
    except Exception as error:
        # python-docx, zipfile and lxml raise a dozen different types on a damaged package.
        raise ExtractionError(
            DocumentProblem.UNREADABLE, "The file is damaged or is no Word document; save it anew, or exclude it."
        ) from error
    return clean("\n".join(line.rstrip() for line in lines)).strip(), {}


def _not_a_package(data: bytes) -> ExtractionError:
    if "EncryptedPackage".encode("utf-16-le") in data:
        return ExtractionError(
            DocumentProblem.ENCRYPTED,
            "The document opens only with a password; save a copy without one, or exclude it.",
        )
    return ExtractionError(
        DocumentProblem.UNSUPPORTED, "This is a Word 97-2003 document; save it as .docx or PDF, or exclude it."
    )


def _check_size(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        unpacked = sum(entry.file_size for entry in package.infolist())
        locked = any(entry.flag_bits & 1 for entry in package.infolist())
    if locked:
        raise ExtractionError(
            DocumentProblem.ENCRYPTED,
            "The document's package is locked with a password; save a copy without one, or exclude it.",
        )
    if unpacked > MAX_UNPACKED:
        raise ExtractionError(
            DocumentProblem.TOO_LARGE,
            f"The document unpacks to {unpacked:,} bytes, more than {MAX_UNPACKED:,}; split it, or exclude it.",
            size=unpacked,
        )


def _roots(document: Any) -> Iterator[Any]:
    """Headers, body, notes, footers. A header that several sections share is given once."""
    parts: dict[str, dict[bytes, Any]] = {"header": {}, "footnotes": {}, "endnotes": {}, "footer": {}}
    for relation in document.part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if kind in parts and not relation.is_external:
            blob = relation.target_part.blob
            parts[kind].setdefault(blob, parse_xml(blob))
    yield from parts["header"].values()
    yield document.element.body
    for kind in ("footnotes", "endnotes"):
        for root in parts[kind].values():
            yield from (note for note in root if note.get(f"{_WORD}type") is None)
    yield from parts["footer"].values()


def _name(element: Any) -> str:
    # Comments and processing instructions have a function for a tag.
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _blocks(parent: Any) -> Iterator[str]:
    for child in parent:
        name = _name(child)
        if name == "p":
            yield "".join(_inline(child))
        elif name == "tbl":
            for row in _through_wrappers(child, "tr"):
                yield " | ".join(_cell(cell) for cell in _through_wrappers(row, "tc"))
            yield ""
        elif name in _WRAPPERS:
            yield from _blocks(child)


def _inline(parent: Any) -> Iterator[str]:
    for child in parent:
        name = _name(child)
        if name == "t":
            yield child.text or ""
        elif name in _MARKS:
            yield _MARKS[name]
        elif name in ("drawing", "pict", "object"):
            for box in child.iter(f"{_WORD}txbxContent"):
                yield "\n" + "\n".join(_blocks(box)) + "\n"
        elif name == "AlternateContent":  # the same thing for new and for old programs: take one
            yield from _inline(child.iterfind(_CHOICE))
        elif name in _INLINE:
            yield from _inline(child)


def _through_wrappers(parent: Any, wanted: str) -> Iterator[Any]:
    for child in parent:
        name = _name(child)
        if name == wanted:
            yield child
        elif name in _WRAPPERS:
            yield from _through_wrappers(child, wanted)


def _cell(cell: Any) -> str:
    return " ".join(" ".join(_blocks(cell)).split())
