"""Reads the text on a picture of a page with RapidOCR (the extra `ocr`), whose package includes its models.

RapidOCR finds pieces of text, which are joined into lines. Pieces side by side are one line, as in a table, unless
the page is set in two columns.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from orchestrator.documents.extras import require
from orchestrator.documents.types import unreadable

RESOLUTION = 150
LONGEST_SIDE = 1754
"""Longest side of a picture in pixels: A4 at `RESOLUTION` dots per inch. Larger pictures took longer and were read no
better.
"""
SURE = 0.9
"""Minimum certainty of a page's text.

Correctly read pages score 0.98 or more. Unknown letters (Cyrillic, Greek) and sideways pages give wrong text that
scores 0.71 to 0.84.
"""
FEW = 3
"""An uncertain page with fewer pieces than this is a drawing or a stamp, not lost text."""
DIRT = 0.5
"""Certainty below which a piece on a well-read page is dropped."""
_LOWEST = 6
"""Minimum length of a picture's shorter side in pixels. The engine fails on smaller pictures."""
_SLIMMEST = 4
"""Maximum ratio of a picture's long side to its short side.

The engine enlarges slimmer pictures until they take more memory than a page.
"""
_WIDE_GAP = 1.5
"""Minimum gap between cells, in line heights."""
_MIN_LINES = 3
_MOST_ACROSS = 0.2
"""Maximum share of pieces that extend across both columns."""
_FULL = 0.5
"""Minimum share of a column's width that a median line of running text fills."""


class Piece(NamedTuple):
    """Some words with their bounding box in pixels."""

    left: float
    top: float
    right: float
    bottom: float
    text: str
    score: float = 1.0

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def area(self) -> float:
        return self.height * (self.right - self.left)


def text_of(picture: Any, page: int = 1) -> str:
    """Return the text on a Pillow picture, or "". `page` is its number, from 1, for messages.

    Raises ExtractionError: unsupported if the extra is missing, unreadable if the text is uncertain.
    """
    if min(picture.size) < _LOWEST:
        return ""  # the engine fails on pictures a few pixels high
    engine = _engine()
    import numpy  # the extra installs it

    found = engine(numpy.asarray(with_margin(picture))[:, :, ::-1])  # the engine expects BGR
    if found.txts is None:
        return ""
    seen = zip(found.boxes, found.txts, found.scores, strict=True)
    return in_order(sure([_piece(*one) for one in seen if one[1].strip()], page))


def with_margin(picture: Any) -> Any:
    """Return a Pillow picture in RGB; a narrow strip is centred on white."""
    from PIL import Image

    least = max(picture.size) // _SLIMMEST
    size = max(picture.width, least), max(picture.height, least)
    if size == picture.size:
        return picture.convert("RGB")
    page = Image.new("RGB", size, "white")
    page.paste(picture, ((size[0] - picture.width) // 2, (size[1] - picture.height) // 2))
    return page


def sure(pieces: list[Piece], page: int) -> list[Piece]:
    """Return the pieces that are text. Raises ExtractionError if the page's text is uncertain."""
    whole = sum(piece.area for piece in pieces)
    if sum(piece.area * piece.score for piece in pieces) < SURE * whole:
        if len(pieces) < FEW:
            return []
        raise unreadable(
            f"OCR is not sure of what it reads on page {page}: letters that it does not know (it knows Latin ones, "
            "Chinese and Japanese), handwriting, or a page on its side; set `render: auto`, or exclude it."
        )
    return [piece for piece in pieces if piece.score >= DIRT]


@cache
def _engine() -> Any:
    """Return the engine of this worker process.

    The engine is kept, because its models take half a second to load. It uses one thread, because each core has a
    worker.
    """
    library = require("rapidocr", "scans by OCR", "ocr")
    return library.RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_cls": False,  # detection of upside-down lines
            "Global.text_score": 0.0,  # `sure` judges instead
            "Global.max_side_len": LONGEST_SIDE,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            "EngineConfig.onnxruntime.enable_cpu_mem_arena": False,
            "Rec.rec_batch_num": 1,
        }
    )


def _piece(box: Any, text: str, score: float) -> Piece:
    across, down = [float(corner[0]) for corner in box], [float(corner[1]) for corner in box]
    return Piece(min(across), min(down), max(across), max(down), text.strip(), float(score))


def in_order(pieces: list[Piece]) -> str:
    """Return the pieces as lines of text from top to bottom.

    Of two columns, the left column comes first. Pieces across both columns separate bands.
    """
    gutter = _gutter(pieces)
    if gutter is None:
        return "\n".join(map(_line_text, _lines(pieces)))
    across = sorted((one for one in pieces if one.left < gutter < one.right), key=lambda one: one.top)
    rest = [one for one in pieces if one not in across]
    lines: list[list[Piece]] = []
    for border in (*across, None):
        band = [one for one in rest if border is None or one.top < border.top]
        rest = [one for one in rest if one not in band]
        lines += _lines([one for one in band if one.right <= gutter])
        lines += _lines([one for one in band if one.left >= gutter])
        lines += [] if border is None else [[border]]
    return "\n".join(map(_line_text, lines))


def _gutter(pieces: list[Piece]) -> float | None:
    """Return the position of a vertical gap between two columns of running text, or None.

    Headings may extend across the gap. Tables have gaps, too, but their cells do not fill the columns.
    """
    if not pieces:
        return None
    first, last = min(piece.left for piece in pieces), max(piece.right for piece in pieces)
    for place in sorted({piece.left for piece in pieces}):
        if not first + 0.3 * (last - first) < place < first + 0.7 * (last - first):
            continue
        left = [piece for piece in pieces if piece.right <= place]
        right = [piece for piece in pieces if piece.left >= place]
        is_split = len(pieces) - len(left) - len(right) <= _MOST_ACROSS * len(pieces)
        if is_split and min(len(left), len(right)) >= _MIN_LINES:
            sides = ((left, place - first), (right, last - place))
            if all(median(one.right - one.left for one in side) >= _FULL * width for side, width in sides):
                return place
    return None


def _lines(pieces: list[Piece]) -> list[list[Piece]]:
    lines: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda one: one.top + one.bottom):
        middle = (piece.top + piece.bottom) / 2
        of = lines[-1][0] if lines else None
        if of is not None and of.top < middle < of.bottom and all(_is_beside(piece, one) for one in lines[-1]):
            lines[-1].append(piece)
        else:
            lines.append([piece])
    return [sorted(line) for line in lines]


def _is_beside(one: Piece, other: Piece) -> bool:
    return one.left >= other.right - one.height or other.left >= one.right - one.height


def _line_text(line: list[Piece]) -> str:
    text = line[0].text
    for before, piece in pairwise(line):
        wide = piece.left - before.right > _WIDE_GAP * before.height
        text += ("  " if wide else " ") + piece.text
    return text
