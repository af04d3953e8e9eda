"""The text layer of a PDF. Every page after the first starts on a new line with a form feed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pypdfium2
import pypdfium2.raw

from orchestrator.documents.encoding import clean
from orchestrator.documents.garbled import is_garbled, is_wordless
from orchestrator.documents.office import Losses, TextLimit
from orchestrator.documents.pdf_annotations import with_annotations
from orchestrator.documents.pdf_lost_text import LostText, loses_text
from orchestrator.documents.pdf_superscripts import scripted_words, with_words
from orchestrator.documents.pdf_tables import with_tables
from orchestrator.documents.types import DocumentProblem, ExtractionError, unreadable

PAGE_BREAK = "\n\f"
DAMAGED = "damaged"
"""Note for pages that PDFium cannot load."""
_GARBLED_TOO = 3
"""Number of pages on which the slow second engine may fail to read better before it is given up."""
_MISSING = 0.25
"""Maximum share of a page's letters that the second engine's text may lack if it replaces PDFium's text."""
# PDFium writes U+FFFE for a hyphen between letters at the end of a line, and joins the lines. Between small letters
# the hyphen is most likely the typesetter's. Elsewhere (X-<break>ray) it belongs to the word.
_BROKEN_WORD = re.compile(r"(?<=[^\W\d_A-Z])\ufffe(?=[^\W\d_A-Z])")


class PageText(NamedTuple):
    """Text of a page. `is_usable` is False if fonts do not identify the letters, or PDFium cannot read them.

    `is_drawn` means that something is drawn on the page. `is_damaged` means that PDFium cannot load the page.
    """

    text: str
    is_usable: bool = True
    is_drawn: bool = False
    is_damaged: bool = False


def extract(data: bytes, encoding: str | None, most: int = 50_000_000) -> tuple[str, dict[str, object]]:
    """Return the text and `{"pages": count}`.

    Raises ExtractionError (encrypted, unreadable, empty, unusable_text, too_large).
    """
    del encoding  # a PDF declares its own encodings
    limit = TextLimit(most)
    pages: list[PageText] = []
    with opened(data) as document:
        for index in range(len(document)):
            pages.append(document.text(index))
            limit.text(pages[-1].text)
        attached = document.attached
    refuse_damaged([page for page in pages if not page.is_damaged])
    if not any(page.text.strip() for page in pages):
        raise ExtractionError(
            DocumentProblem.EMPTY,
            "The PDF has no text layer (a scan, most likely); set `render: auto` to send its pages as pictures, "
            "`render: ocr` to have them read here, or exclude it.",
        )
    if 2 * sum(len(page.text) for page in pages if not page.is_usable) > sum(len(page.text) for page in pages):
        raise ExtractionError(
            DocumentProblem.UNUSABLE_TEXT,
            "The text layer of the PDF does not say what is on its pages: its fonts do not identify their letters. "
            "Set `render: auto` to send such pages as pictures, `render: ocr` to have them read here, or exclude it.",
        )
    fields = {"pages": len(pages), "sent_as": "text", **notes_of(_lost(pages), attached)}
    return PAGE_BREAK.join(page.text for page in pages), fields


def _lost(pages: Sequence[PageText]) -> dict[str, list[int]]:
    numbered = list(enumerate(pages, 1))
    return {
        DAMAGED: [number for number, page in numbered if page.is_damaged],
        "without text": [number for number, page in numbered if page.is_drawn and not page.text.strip()],
        "with unusable text": [number for number, page in numbered if page.text.strip() and not page.is_usable],
    }


def notes_of(lost: Mapping[str, list[int]], attached: int = 0) -> dict[str, str]:
    """Return notes on lost contents: the pages by kind of loss, and the number of attached files."""
    told = [f"{pages_told(numbers)} {what}" for what, numbers in lost.items() if numbers]
    return Losses({"attached file": attached}).notes(*told)


def refuse_damaged(readable: Sequence[object]) -> None:
    if not readable:
        raise unreadable("The pages of the PDF are damaged; save the file again or exclude it.")


def pages_told(numbers: list[int]) -> str:
    """Return page numbers as text, such as `pages 1-3, 5`. `numbers` must not be empty."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
    return f"page{'s' if len(numbers) > 1 else ''} {told}"


class OpenPdf:
    """An open PDF. Its methods raise PdfiumError for damage inside a page."""

    def __init__(self, data: bytes, pages: pypdfium2.PdfDocument) -> None:
        self.pages = pages
        self._lost = LostText(data)
        self._garbled_too = 0

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def attached(self) -> int:
        return max(0, int(pypdfium2.raw.FPDFDoc_GetAttachmentCount(self.pages)))

    def has(self, index: int) -> bool:
        """Return True if PDFium can load a page. A damaged page list may name other objects."""
        with suppress(pypdfium2.PdfiumError):
            self.pages[index].close()
            return True
        return False

    def text(self, index: int) -> PageText:
        """Return a page's text, including filled-in form fields, without the typesetter's hyphens."""
        try:
            page = self.pages[index]
        except pypdfium2.PdfiumError:
            return PageText("", is_damaged=True)
        try:
            layer = page.get_textpage()
            try:
                plain = layer.get_text_range()
                handle = layer.raw  # passing the layer itself would cost a lookup per call
                words = list(scripted_words(handle, plain))
                text = clean(with_words(plain, words)).strip()
                if "\ufffe" in text:
                    text = _BROKEN_WORD.sub("", text).replace("\ufffe", "-").strip()
                is_usable = True
                if loses_text(page.raw, handle, len(text)):
                    found = clean(self._lost.page(index)).strip()
                    text = found if letters(found) > letters(text) and _holds(found, text) else text
                    is_usable = bool(found) and not is_garbled(text)
                elif is_garbled(text):
                    found = self._by_other_engine(index, text)
                    text, is_usable = found or text, bool(found)
                else:
                    text = with_tables(page, handle, plain, text, words)
                text = clean(with_annotations(self.pages, page, layer, text)).strip()
                is_drawn = bool(text) or pypdfium2.raw.FPDFPage_CountObjects(page) > 0
                return PageText(text, is_usable, is_drawn)
            finally:
                layer.close()
        finally:
            page.close()

    def _by_other_engine(self, index: int, garbled: str) -> str:
        """Return the second engine's text; empty if it is no better, or was no better on `_GARBLED_TOO` earlier
        pages.
        """
        if self._garbled_too >= _GARBLED_TOO:
            return ""
        found = clean(self._lost.page(index)).strip()
        is_short = 2 * letters(found) < len("".join(garbled.split()))
        if is_short or is_garbled(found) or is_wordless(found):
            self._garbled_too += 1
            return ""
        return found


def letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _holds(found: str, text: str) -> bool:
    """Return True if `found` lacks at most the share `_MISSING` of the letters of `text`.

    Engines read some fonts differently.
    """
    read, again = (Counter(filter(str.isalnum, one)) for one in (text, found))
    return (read - again).total() <= _MISSING * read.total()


@contextmanager
def opened(data: bytes) -> Iterator[OpenPdf]:
    """Yield an open PDF. Raises ExtractionError, also in place of PDFium's errors inside the block."""
    try:
        document = _document(data)
    except pypdfium2.PdfiumError as error:
        raise _cannot_open(error) from error
    try:
        document.init_forms()
        yield OpenPdf(data, document)
    except pypdfium2.PdfiumError as error:
        raise unreadable(f"A page of the PDF is damaged ({error}); save the file again or exclude it.") from error
    finally:
        document.close()


def _document(data: bytes) -> pypdfium2.PdfDocument:
    """Open a PDF.

    Retries once, because for some damage PDFium reports the error code of the file that failed before.
    """
    with suppress(pypdfium2.PdfiumError):
        return pypdfium2.PdfDocument(data)
    with suppress(pypdfium2.PdfiumError):
        pypdfium2.PdfDocument(b"no PDF").close()
    return pypdfium2.PdfDocument(data)


def _cannot_open(error: pypdfium2.PdfiumError) -> ExtractionError:
    if error.err_code in (pypdfium2.raw.FPDF_ERR_PASSWORD, pypdfium2.raw.FPDF_ERR_SECURITY):
        return ExtractionError(
            DocumentProblem.ENCRYPTED, "The PDF opens only with a password; save a copy without one, or exclude it."
        )
    return unreadable("The file is damaged or is not a PDF; get a new copy, or exclude it.")
