"""Scans that are read by OCR: their text in reading order, what is said of them, and what is not read."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.documents import Document, DocumentProblem, Readers, UnreadableDocument, ocr, page_images
from orchestrator.documents import read as read_with
from orchestrator.documents.ocr import Piece, in_order, sure
from orchestrator.documents.types import ExtractionError
from orchestrator.policy.requests import Builder
from orchestrator.settings.job_spec import DocumentSource, JobSpec
from tests.support.documents import read
from tests.unit.test_documents_pictures import PROSE, mixed_pdf, saved

LINES = ("Invoice 4711 of 3 May", "Printer paper  40  3.90", "Total 156.00 USD")


def scan(*lines: str) -> Image.Image:
    """A page of print, in the font that Pillow brings."""
    page = Image.new("RGB", (740, 740), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(page).text((60, 50 + 60 * number), line, "black", ImageFont.load_default(28))
    return page


def source(**more: object) -> DocumentSource:
    return DocumentSource.model_validate({"path": "in", "render": "ocr", **more})


@pytest.mark.soak
def test_scans_are_read_in_a_worker_process_within_its_limits(tmp_path: Path) -> None:
    """A PDF of text and scan, a photo, an empty page, and none at all."""
    files = {
        "a.pdf": mixed_pdf("", PROSE),
        "b.png": saved("PNG", scan(*LINES)),
        "d.png": saved("PNG", Image.new("RGB", (300, 300), "white")),
        "e.png": b"no picture",
    }
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in/scans.zip", "w") as archive:  # one file, so one worker loads the models
        for name, data in files.items():
            archive.writestr(name, data)
    found = {one.name: one for one in read(source(), tmp_path)}
    a, b = found["a.pdf"], found["b.png"]
    assert isinstance(a, Document)
    assert (a.text.strip(), a.pictures) == (PROSE, ())
    assert (a.fields["sent_as"], a.fields["pages"]) == ("page 1 by OCR", 2)
    assert isinstance(b, Document)
    assert b.text.split() == " ".join(LINES).split()
    assert b.text.count("\n") == 2
    codes = {name: one.code for name, one in found.items() if isinstance(one, UnreadableDocument)}
    assert codes == {
        "d.png": DocumentProblem.EMPTY, "e.png": DocumentProblem.UNREADABLE,
    }  # fmt: skip
    spec = {"name": "j", "documents": "in", "tasks": [{"id": "t", "prompt": "?", "model": "m"}]}
    [built] = Builder(JobSpec.model_validate(spec)).build(b)
    assert (built.row.sent_as, b"image_url" in built.line) == ("page 1 by OCR", False)


@pytest.mark.soak
@pytest.mark.parametrize("size", [(1754, 40), (1754, 90), (1754, 230), (230, 1754)])
def test_a_strip_takes_no_more_memory_than_a_page(tmp_path: Path, size: tuple[int, int]) -> None:
    """Of one line, and of one column."""
    strip = Image.new("RGB", size, "white")
    places = [(20 + 600 * number, 4) if size[0] > size[1] else (20, 600 * number + 4) for number in range(3)]
    for place in places:
        ImageDraw.Draw(strip).text(place, "Total 4711", "black", ImageFont.load_default(28))
    (tmp_path / "in").mkdir()
    strip.save(tmp_path / "in/strip.png")
    with Readers(1) as alone:  # with the memory of the defaults
        [found] = read_with(source(), tmp_path, alone)
    assert isinstance(found, Document)
    assert found.text.split() == ["Total", "4711"] * 3


@pytest.mark.parametrize(
    ("render", "told"), [("ocr", ("300,000,000", "`ocr_memory`")), ("image", ("200,000,000", "`max_memory`"))]
)
def test_the_limit_that_a_picture_reached_is_named(tmp_path: Path, render: str, told: tuple[str, str]) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (9_900, 9_900)).save(tmp_path / "in/large.png")
    with Readers(1, WorkerLimits(memory=200_000_000, more_memory=300_000_000)) as little:
        [found] = read_with(source(render=render), tmp_path, little)
    assert isinstance(found, UnreadableDocument)
    assert found.code is DocumentProblem.MEMORY_LIMIT
    assert all(word in found.message for word in told)


@pytest.mark.parametrize(
    ("size", "seen"), [((1754, 12), (1754, 438)), ((12, 1754), (438, 1754)), ((800, 200), (800, 200))]
)
def test_a_strip_stands_in_the_middle_of_white_space(size: tuple[int, int], seen: tuple[int, int]) -> None:
    page = ocr.with_margin(Image.new("L", size))
    assert page.size == seen
    assert page.getpixel((page.width // 2, page.height // 2)) == (0, 0, 0)
    assert (page.getpixel((0, 0)) == (255, 255, 255)) is (size != seen)


def test_without_the_extra_the_row_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    ocr._engine.cache_clear()
    with pytest.raises(ExtractionError, match=r"pip install 'orch-batch\[ocr\]'") as raised:
        ocr.text_of(scan("x"))
    assert raised.value.code is DocumentProblem.UNSUPPORTED


@pytest.mark.parametrize("size", [(3000, 1), (3, 900), (1, 1)])
def test_a_picture_lower_than_a_letter_has_no_text(size: tuple[int, int]) -> None:
    assert ocr.text_of(Image.new("L", size)) == ""


@pytest.mark.parametrize(("mode", "bright"), [("I;16", 65535), ("I", 65535), ("I", 255), ("L", 255)])
def test_gray_of_any_depth_stays_as_bright_as_it_is(mode: str, bright: int) -> None:
    page = Image.new(mode, (60, 60), bright)
    page.putpixel((30, 30), 0)
    assert page_images._on_white(page, 60).convert("L").getextrema() == (0, 255)


def piece(left: float, top: float, text: str, width: float = 300) -> Piece:
    return Piece(left, top, left + width, top + 20, text)


PAGES: dict[str, tuple[list[Piece], str]] = {
    "nothing": ([], ""),
    "lines, in any order": ([piece(0, 60, "b"), piece(0, 0, "a"), piece(0, 120, "c")], "a\nb\nc"),
    "pieces of a line": ([piece(310, 3, "b"), piece(0, 0, "a")], "a b"),
    "cells of a row": (
        [piece(x, y, f"{x}{y}", 40) for y in (0, 40, 80) for x in (400, 0)],
        "00  4000\n040  40040\n080  40080",
    ),
    "a line that leans": ([piece(0, 0, "a"), piece(305, 8, "b"), piece(610, 15, "c")], "a b\nc"),
    "two columns": (
        [piece(x, y, f"{name}{y}") for x, name in ((0, "l"), (340, "r")) for y in (0, 40, 80)],
        "l0\nl40\nl80\nr0\nr40\nr80",
    ),
    "a heading above two columns": (
        [
            piece(0, 0, "head", 200),
            *(piece(x, y, f"{n}{y}") for x, n in ((0, "l"), (340, "r")) for y in (60, 100, 140)),
        ],
        "head\nl60\nl100\nl140\nr60\nr100\nr140",
    ),
    "a wide heading above two columns": (
        [
            piece(0, 0, "head", 640),
            *(piece(x, y, f"{n}{y}") for x, n in ((0, "l"), (340, "r")) for y in (60, 100, 140)),
        ],
        "head\nl60\nl100\nl140\nr60\nr100\nr140",
    ),
}


@pytest.mark.parametrize(("pieces", "text"), PAGES.values(), ids=PAGES)
def test_the_order_in_which_a_page_is_read(pieces: list[Piece], text: str) -> None:
    assert in_order(pieces) == text
    assert in_order(pieces[::-1]) == text


def test_a_page_is_read_well_or_not_at_all() -> None:
    good, dirt = piece(0, 0, "word")._replace(score=0.98), piece(0, 50, ",", 5)._replace(score=0.3)
    assert sure([good, dirt], 1) == [good]
    bad = [piece(0, top, "nonsense")._replace(score=0.75) for top in (0, 30, 60)]
    with pytest.raises(ExtractionError, match="not sure of what it reads on page 7"):
        sure(bad, 7)
    assert sure(bad[:2], 7) == [], "a stamp"
    assert sure([], 7) == []
