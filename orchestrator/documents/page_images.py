"""Pages of PDFs and pictures: as JPEG for models with vision, as text by OCR, or as the existing text layer."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

from orchestrator.documents import ocr, pdf_text
from orchestrator.documents.extras import require
from orchestrator.documents.kinds import IMAGE
from orchestrator.documents.office import TextLimit
from orchestrator.documents.types import (
    BY_OCR,
    DocumentProblem,
    ExtractionError,
    Picture,
    Render,
    beyond_limit,
    unreadable,
)

MIN_LETTERS = 20
"""A page with fewer letters and digits has no usable text, only page numbers or stamps."""
MAX_PIXELS = 100_000_000
"""Maximum pixels of one decoded picture. A scanned A3 page at 600 dpi has 70 million."""
QUALITY = 85
_POINTS = 72
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"mif1")
_MOST_BRANDS = 256
"""Maximum bytes of a HEIF file's first box to search for brands."""


def extract(data: bytes, kind: str, render: Render, most: int) -> tuple[str, dict[str, Any], tuple[Picture, ...]]:
    """Return text, fields (`pages`, `sent_as`) and pictures. Raises ExtractionError."""
    if render.is_ocr:
        return _read(data, kind, render, most)
    gathered = _Gathered(render, most)
    if kind == IMAGE:
        for frame in _frames(data):
            gathered.add("", _jpeg(frame, render))
    else:
        for page in _pages(data, render):
            if page is None:
                gathered.add_damaged()
            else:
                gathered.add(*page)
        pdf_text.refuse_damaged(range(len(gathered.damaged), gathered.pages))
    fields = {
        "pages": gathered.pages,
        "sent_as": gathered.sent_as(),
        **pdf_text.notes_of({pdf_text.DAMAGED: gathered.damaged}),
    }
    return gathered.text(), fields, tuple(gathered.pictures)


def _read(data: bytes, kind: str, render: Render, most: int) -> tuple[str, dict[str, Any], tuple[Picture, ...]]:
    limit, texts, by_ocr, damaged = TextLimit(most), list[str](), list[int](), list[int]()
    for text, picture in _pictures(data) if kind == IMAGE else _scans(data):
        if text is None:
            damaged.append(len(texts) + 1)
            text = ""
        if picture is not None:
            by_ocr.append(len(texts) + 1)
        texts.append(text if picture is None else ocr.text_of(picture, len(texts) + 1))
        limit.text(texts[-1])
    pdf_text.refuse_damaged(range(len(damaged), len(texts)))
    if not any(text.strip() for text in texts):
        raise ExtractionError(DocumentProblem.EMPTY, "OCR found no text on its pages; exclude it if it has none.")
    sent_as = f"{pdf_text.pages_told(by_ocr)}{BY_OCR}" if by_ocr else "text"
    unread = [number for number in by_ocr if not texts[number - 1].strip()]
    notes = pdf_text.notes_of({pdf_text.DAMAGED: damaged, "without text for OCR": unread})
    return pdf_text.PAGE_BREAK.join(texts), {"pages": len(texts), "sent_as": sent_as, **notes}, ()


def _scans(data: bytes) -> Iterator[tuple[str | None, Any]]:
    """Yield each page of a PDF as text, or as a picture if its text layer is unusable. A damaged page has neither."""
    with pdf_text.opened(data) as document:
        for index in range(len(document)):
            page = document.text(index)
            if page.is_damaged:
                yield None, None
            elif is_usable(page):
                yield page.text, None
            else:
                yield "", _bitmap(document.pages, index, ocr.RESOLUTION, ocr.LONGEST_SIDE, grayscale=False)


def _pictures(data: bytes) -> Iterator[tuple[str, Any]]:
    for frame in _frames(data):
        yield "", _on_white(frame, ocr.LONGEST_SIDE)


def is_usable(page: pdf_text.PageText) -> bool:
    """Return True if a page's text layer matches the page and has at least `MIN_LETTERS` letters and digits."""
    return page.is_usable and pdf_text.letters(page.text) >= MIN_LETTERS


class _Gathered:
    """The pages of one document so far. Raises ExtractionError if they exceed the limits of a row."""

    def __init__(self, render: Render, most: int) -> None:
        self.pictures: list[Picture] = []
        self.pages = 0
        self.damaged: list[int] = []
        self._texts: list[str] = []
        self._render = render
        self._limit = TextLimit(most)
        self._bytes = 0
        self._has_text = False

    def add(self, text: str, picture: bytes | None) -> None:
        self.pages += 1
        self._limit.text(text)
        self._has_text = self._has_text or picture is None or bool(text)
        if picture is None:
            self._texts.append(text)
            return
        self._bytes += len(picture)
        self.pictures.append(Picture(self.pages, base64.b64encode(picture).decode()))
        self._texts.append(text or f"[page {self.pages} is picture {len(self.pictures)}]")
        if len(self.pictures) > self._render.pages:
            raise beyond_limit(
                f"More than {self._render.pages} of its pages would be sent as pictures; split it, or raise "
                "`pictures.pages` of this source."
            )
        if self._bytes > self._render.max_bytes:
            raise beyond_limit(
                f"Its pages as pictures have more than {self._render.max_bytes:,} bytes; split it, lower "
                "`pictures.resolution`, or raise `pictures.max_bytes` of this source."
            )

    def add_damaged(self) -> None:
        self.pages += 1
        self.damaged.append(self.pages)
        self._texts.append("")

    def text(self) -> str:
        return pdf_text.PAGE_BREAK.join(self._texts) if self._has_text else ""

    def sent_as(self) -> str:
        if not self.pictures:
            return "text"
        numbers = [picture.page for picture in self.pictures]
        return f"{pdf_text.pages_told(numbers)} as image{'s' if len(numbers) > 1 else ''}"


def _pages(data: bytes, render: Render) -> Iterator[tuple[str, bytes | None] | None]:
    """Yield each page's text, picture, or both; None for a damaged page."""
    with pdf_text.opened(data) as document:
        for index in range(len(document)):
            if render.how == "image":
                page = pdf_text.PageText("", is_damaged=not document.has(index))
            else:
                page = document.text(index)
            if page.is_damaged:
                yield None
            elif render.how == "auto" and is_usable(page):
                yield page.text, None
            else:
                has_text = render.how == "both" and page.is_usable
                yield (page.text if has_text else ""), _rendered(document.pages, index, render)


def _rendered(document: Any, index: int, render: Render) -> bytes:
    return _jpeg(_bitmap(document, index, render.resolution, render.longest_side, grayscale=render.grayscale), render)


def _bitmap(document: Any, index: int, resolution: int, longest_side: int, *, grayscale: bool) -> Any:
    page = document[index]
    try:
        longest = max(*page.get_size(), 1)
        scale = min(resolution / _POINTS, longest_side / longest)
        bitmap = page.render(scale=scale, grayscale=grayscale, may_draw_forms=True)
        try:
            return bitmap.to_pil().copy()
        finally:
            bitmap.close()
    finally:
        page.close()


def _frames(data: bytes) -> Iterator[Any]:
    from PIL import Image, ImageOps, ImageSequence

    Image.MAX_IMAGE_PIXELS = None  # checked below, before decoding
    formats = ["PNG", "JPEG", "TIFF", "WEBP"]
    if _is_heif(data):
        require("pi_heif", "HEIC pictures", "heic").register_heif_opener()
        formats = ["HEIF"]
    try:
        with Image.open(io.BytesIO(data), formats=formats) as picture:
            for frame in ImageSequence.Iterator(picture):
                if frame.width * frame.height > MAX_PIXELS:
                    raise beyond_limit(
                        f"The picture has more than {MAX_PIXELS:,} pixels; scale it down, or exclude it."
                    )
                yield ImageOps.exif_transpose(frame)
    except (ExtractionError, MemoryError):
        raise
    except Exception as error:
        # Pillow raises a dozen different types on damaged pictures.
        raise unreadable(
            "It is damaged or is not a PNG, JPEG, TIFF, WebP or HEIC picture; save it again, or exclude it."
        ) from error


def _is_heif(data: bytes) -> bool:
    size = int.from_bytes(data[:4])
    return data[4:8] == b"ftyp" and any(brand in data[8 : min(size, _MOST_BRANDS)] for brand in _HEIF_BRANDS)


def _jpeg(picture: Any, render: Render) -> bytes:
    out = io.BytesIO()
    seen = _on_white(picture, render.longest_side).convert("L" if render.grayscale else "RGB")
    seen.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def _on_white(picture: Any, longest_side: int) -> Any:
    from PIL import Image

    picture = picture.copy()
    picture.thumbnail((longest_side, longest_side))
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        picture = Image.new("RGB", seen.size, "white")
        picture.paste(seen, mask=seen.getchannel("A"))
    if picture.mode.startswith("I") and picture.getextrema()[1] > 255:  # 16 bits of gray
        picture = picture.point(lambda value: value / 256)
    return picture
