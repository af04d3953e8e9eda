"""The text layer of a PDF, each page after the first on a line that begins with a form feed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pypdfium2
import pypdfium2.raw

from orchestrator.documents.encoding import clean
from orchestrator.documents.files import text_too_large
from orchestrator.documents.types import DocumentProblem, ExtractionError

PAGE_BREAK = "\n\f"
# PDFium writes U+FFFE for a hyphen between letters at the end of a line, and joins the lines. Between small letters
# it was most likely a word broken by the typesetter; elsewhere (X-<break>ray) it belongs to the text.
_BROKEN_WORD = re.compile(r"(?<=[^\W\d_A-Z])\ufffe(?=[^\W\d_A-Z])")


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Text and `{"pages": count}`. Raises ExtractionError (encrypted, unreadable, empty, too_large)."""
    del encoding  # a PDF says itself how its text is written
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        raise cannot_open(error) from error
    try:
        pages = list(_pages(document, most))
    except pypdfium2.PdfiumError as error:
        raise ExtractionError(
            DocumentProblem.UNREADABLE, f"A page of the PDF is damaged ({error}); save the file anew or exclude it."
        ) from error
    finally:
        document.close()
    if not any(page.strip() for page in pages):
        raise ExtractionError(
            DocumentProblem.EMPTY,
            "The PDF has no text layer (a scan, most likely); set `render: auto` to send its pages as pictures, "
            "run it through OCR first, or exclude it.",
        )
    return PAGE_BREAK.join(pages), {"pages": len(pages), "sent_as": "text"}


def _pages(document: pypdfium2.PdfDocument, most: int) -> Iterator[str]:
    size = 0
    for index in range(len(document)):
        page = page_text(document, index)
        size += len(page)
        if size > most:
            raise text_too_large(most)
        yield page


def page_text(document: pypdfium2.PdfDocument, index: int) -> str:
    page = document[index]
    try:
        layer = page.get_textpage()
        try:
            text = clean(layer.get_text_range())
        finally:
            layer.close()
    finally:
        page.close()
    return _BROKEN_WORD.sub("", text).replace("\ufffe", "-").strip()


def cannot_open(error: pypdfium2.PdfiumError) -> ExtractionError:
    if error.err_code in (pypdfium2.raw.FPDF_ERR_PASSWORD, pypdfium2.raw.FPDF_ERR_SECURITY):
        return ExtractionError(
            DocumentProblem.ENCRYPTED, "The PDF opens only with a password; save a copy without one, or exclude it."
        )
    return ExtractionError(
        DocumentProblem.UNREADABLE, "The file is damaged or is not a PDF; get a new copy, or exclude it."
    )
