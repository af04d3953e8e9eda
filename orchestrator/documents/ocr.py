"""The text on a picture of a page, by RapidOCR (the extra `ocr`), whose models come in its package: no network, no GPU.

Lines are put together from the pieces that it finds: what stands side by side is one line, as in a table, unless the
page is set in two columns.
"""

from __future__ import annotations

from functools import cache
from statistics import median
from typing import Any, NamedTuple

from orchestrator.documents.extras import require

RESOLUTION = 200
"""Dots per inch of rendered pages; of 10 point type, letters of 28 pixels."""
LONGEST_SIDE = 2400
"""Pixels: an A4 page at that resolution."""
MIN_SCORE = 0.5
"""How sure of a piece the recognition must be; below that it is mostly dirt."""
_WIDE_GAP = 1.5
"""Times the height of a line: so much white between two pieces of it separates cells."""
_MIN_LINES = 3
_FULL = 0.5
"""The share of a column's width that a usual line of running text fills."""


class Piece(NamedTuple):
    """Some words with the box around them, in pixels."""

    left: float
    top: float
    right: float
    bottom: float
    text: str

    @property
    def height(self) -> float:
        """Of its box."""
        return self.bottom - self.top


def text_of(picture: Any) -> str:
    """The text on a Pillow picture; empty where there is none. Raises ExtractionError where the extra is missing."""
    import numpy

    engine = _engine()
    found = engine(numpy.asarray(picture.convert("RGB"))[:, :, ::-1])  # it takes blue first
    if found.txts is None:
        return ""
    pieces = [_piece(box, text) for box, text in zip(found.boxes, found.txts, strict=True) if text.strip()]
    return in_order(pieces)


@cache
def _engine() -> Any:
    """One for each worker process: its models take half a second to load. One thread: each core has a worker."""
    library = require("rapidocr", "scans by OCR", "ocr")
    return library.RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.use_cls": False,  # which tells lines that stand on their heads
            "Global.text_score": MIN_SCORE,
            "Global.max_side_len": LONGEST_SIDE,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _piece(box: Any, text: str) -> Piece:
    across, down = [float(corner[0]) for corner in box], [float(corner[1]) for corner in box]
    return Piece(min(across), min(down), max(across), max(down), text.strip())


def in_order(pieces: list[Piece]) -> str:
    """Pieces as lines of text, from the top; two columns one after the other."""
    if not pieces:
        return ""
    gutter = _gutter(pieces)
    if gutter is None:
        return "\n".join(map(_told, _lines(pieces)))
    left = [piece for piece in pieces if piece.right <= gutter]
    right = [piece for piece in pieces if piece.left >= gutter]
    first = min(piece.top for piece in right)
    head = [line for line in _lines(left) if max(piece.bottom for piece in line) <= first]
    below = [line for line in _lines(left) if line not in head]
    return "\n".join(map(_told, (*head, *below, *_lines(right))))


def _gutter(pieces: list[Piece]) -> float | None:
    """Where white runs down between two columns of running text; None where there is no such place.

    The cells of a table leave white between them as well, and do not fill their columns.
    """
    first, last = min(piece.left for piece in pieces), max(piece.right for piece in pieces)
    for place in sorted({piece.left for piece in pieces}):
        if not first + 0.3 * (last - first) < place < first + 0.7 * (last - first):
            continue
        left = [piece for piece in pieces if piece.right <= place]
        right = [piece for piece in pieces if piece.left >= place]
        if len(left) + len(right) == len(pieces) and min(len(left), len(right)) >= _MIN_LINES:
            sides = ((left, place - first), (right, last - place))
            if all(median(one.right - one.left for one in side) >= _FULL * width for side, width in sides):
                return place
    return None


def _lines(pieces: list[Piece]) -> list[list[Piece]]:
    """Pieces that stand beside each other, from left to right; the lines from the top."""
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


def _told(line: list[Piece]) -> str:
    text = line[0].text
    for before, piece in zip(line, line[1:], strict=False):
        wide = piece.left - before.right > _WIDE_GAP * before.height
        text += ("  " if wide else " ") + piece.text
    return text
