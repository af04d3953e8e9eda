"""Pages as pictures: which are sent, what a request of them looks like, and what is told of those that cannot be."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from PIL import Image, ImageDraw
from pydantic import TypeAdapter

from orchestrator.backends.anthropic.messages import translate
from orchestrator.core import tokens
from orchestrator.core.errors import InputError
from orchestrator.documents import (
    Document,
    DocumentProblem,
    Ignored,
    UnreadableDocument,
    page_images,
)
from orchestrator.documents.types import ExtractionError, Render
from orchestrator.policy.requests import Builder
from orchestrator.settings import job_file
from orchestrator.settings.job_spec import DocumentSource
from tests.support import office
from tests.support.bombs import pdf, stream
from tests.support.documents import read

PROSE = "The tenant pays the rent on the first day of each month."
LARGE, UNREADABLE = DocumentProblem.TOO_LARGE, DocumentProblem.UNREADABLE


HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAX1tZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAA"
    "ACJpbG9jAAAAAERAAAEAAQAAAAABoQABAAAAAAAAABcAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRt"
    "AAAAAAABAAAA/WlwcnAAAADdaXBjbwAAAHZodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMA"
    "AAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5j"
    "bHgAAQANAAaAAAAAFGlzcGUAAAAAAAAAQAAAAEAAAAAoY2xhcAAAAEAAAAABAAAAMAAAAAEAAAAAAAAAAv////AAAAACAAAAEHBp"
    "eGkAAAAAAwgICAAAABhpcG1hAAAAAAAAAAEAAQWBAgMFhAAAAB9tZGF0AAAAEygBrwtg9QQpv//Wz2B9+98Xw7Y="
)
"""A picture of 64 x 48 pixels, black on the left: made here, by an encoder that is not installed with the tests."""


def drawing(width: int = 850, height: int = 1100, mode: str = "RGB") -> Image.Image:
    """A page with a black bar on white, a fifth from its top."""
    white = {"RGBA": (0, 0, 0, 0), "I;16": 65535}.get(mode, "white")
    picture = Image.new(mode, (width, height), white)
    ImageDraw.Draw(picture).rectangle((0, height // 5, width, height // 4), fill="black")
    return picture


def saved(kind: str, *pages: Image.Image, **settings: Any) -> bytes:
    out = io.BytesIO()
    first, *rest = pages
    first.save(out, kind, **({"save_all": True, "append_images": rest} if rest else {}), **settings)
    return out.getvalue()


def exif(orientation: int) -> bytes:
    about = Image.Exif()
    about[0x0112] = orientation
    return about.tobytes()


def mixed_pdf(*texts: str) -> bytes:
    """A PDF with a page for each text; those without one are scans."""
    whole = pypdfium2.PdfDocument.new()
    for text in texts:
        part = pypdfium2.PdfDocument(text_page(text) if text else saved("PDF", drawing(), resolution=100))
        whole.import_pages(part)
        part.close()
    out = io.BytesIO()
    whole.save(out)
    whole.close()
    return out.getvalue()


def text_page(text: str) -> bytes:
    return pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F 3 0 R >> >> "
        b"/Contents 5 0 R >>",
        stream(f"BT /F 12 Tf 50 700 Td ({text}) Tj ET".encode()),
    )


def one(base: Path, name: str, data: bytes, ignored: Ignored | None = None, **settings: Any) -> Any:
    (base / "in").mkdir(exist_ok=True)
    (base / "in" / name).write_bytes(data)
    (found,) = read(DocumentSource.model_validate({"path": "in", **settings}), base, ignored)
    return found


def seen(document: Document) -> list[Image.Image]:
    return [Image.open(io.BytesIO(base64.b64decode(picture.data))) for picture in document.pictures]


def is_bar(picture: Image.Image) -> bool:
    """Whether it shows the drawing, upright."""
    gray = picture.convert("L")
    middle, width, height = gray.width // 2, gray.width, gray.height
    dark: Any = gray.getpixel((middle, height * 9 // 40))
    light: Any = gray.getpixel((middle, height // 2))
    return bool(width < height and dark < 60 and light > 200)


@pytest.mark.parametrize(
    ("render", "pages", "text", "sent_as"),
    [
        ("auto", [2], f"{PROSE}\n\f[page 2 is picture 1]\n\f{PROSE}", "page 2 as image"),
        ("image", [1, 2, 3], "", "pages 1-3 as images"),
        ("both", [1, 2, 3], f"{PROSE}\n\f[page 2 is picture 2]\n\f{PROSE}", "pages 1-3 as images"),
        ("text", [], f"{PROSE}\n\f\n\f{PROSE}", "text"),
    ],
)
def test_which_pages_are_sent_as_pictures(
    tmp_path: Path, render: str, pages: list[int], text: str, sent_as: str
) -> None:
    found = one(tmp_path, "a.pdf", mixed_pdf(PROSE, "", PROSE), render=render)
    assert isinstance(found, Document), found
    assert [picture.page for picture in found.pictures] == pages
    assert found.text == text
    assert (found.fields["pages"], found.fields["sent_as"]) == (3, sent_as)
    assert [is_bar(picture) for picture in seen(found)] == [page == 2 for page in pages]


def pages_pdf(*pages: bytes) -> bytes:
    """A PDF whose list of pages names these objects; those that are no page show text."""
    kids = b" ".join(b"%d 0 R" % number for number in range(5, 5 + len(pages)))
    return pdf(
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        stream(f"BT /F 12 Tf 50 700 Td ({PROSE}) Tj ET".encode()),
        *pages,
    )


GOOD_PAGE = (
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F 3 0 R >> >> /Contents 4 0 R >>"
)
NO_PAGES = {"a number": b"42", "nothing": b"null", "a list": b"[1 2]"}


@pytest.mark.parametrize("damaged", NO_PAGES.values(), ids=NO_PAGES)
@pytest.mark.parametrize("render", ["text", "auto", "both", "image", "ocr"])
def test_a_page_that_cannot_be_had_is_told_and_the_others_are_read(
    tmp_path: Path, render: str, damaged: bytes
) -> None:
    found = one(tmp_path, "a.pdf", pages_pdf(GOOD_PAGE, damaged, GOOD_PAGE), render=render)
    assert isinstance(found, Document), found
    assert (found.notes, found.fields["pages"]) == ("page 2 damaged", 3)
    assert found.text == ("" if render == "image" else f"{PROSE}\n\f\n\f{PROSE}")
    assert [picture.page for picture in found.pictures] == ([1, 3] if render in ("both", "image") else [])


@pytest.mark.parametrize("render", ["text", "auto", "both", "image", "ocr"])
def test_a_file_without_a_page_that_can_be_had_is_refused(tmp_path: Path, render: str) -> None:
    found = one(tmp_path, "a.pdf", pages_pdf(*NO_PAGES.values()), render=render)
    assert isinstance(found, UnreadableDocument), found
    assert found.message == "The pages of the PDF are damaged; save the file again or exclude it."


def test_a_page_that_reads_like_a_note_about_a_page_is_text(tmp_path: Path) -> None:
    line = "[page 7 of this lease was never signed]"
    found = one(tmp_path, "a.pdf", mixed_pdf(line), render="auto")
    assert (found.text, found.pictures) == (line, ())
    found = one(tmp_path, "a.pdf", mixed_pdf(line), render="both")
    assert (found.text, len(found.pictures)) == (line, 1)


@pytest.mark.parametrize("how", ["auto", "both"])
def test_too_much_text_beside_pictures_names_the_limit(how: str) -> None:
    with pytest.raises(ExtractionError, match="more than the 70 characters allowed"):
        page_images.extract(mixed_pdf(PROSE, PROSE), "pdf", Render(how, 150, 1568, 10, True, 1_000_000), 70)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.png", lambda: saved("PNG", drawing())),
        ("a.png", lambda: saved("PNG", drawing(mode="RGBA"))),
        ("a.PNG", lambda: saved("PNG", drawing(mode="1"))),
        ("a.jpg", lambda: saved("JPEG", drawing().convert("CMYK"))),
        ("a.jpeg", lambda: saved("JPEG", drawing().rotate(90, expand=True), exif=exif(6))),
        ("a.webp", lambda: saved("WEBP", drawing(), lossless=True)),
        ("a.tif", lambda: saved("TIFF", drawing(), drawing(), drawing(), compression="tiff_lzw")),
        ("a.tiff", lambda: saved("TIFF", drawing(mode="I;16"))),
        ("a.png", lambda: saved("PNG", drawing(8500, 11000, "1"))),
    ],
)
def test_pictures_are_documents_where_a_source_says_so(tmp_path: Path, name: str, make: Callable[[], bytes]) -> None:
    found = one(tmp_path, name, make(), render="auto")
    assert isinstance(found, Document), found
    assert found.text == ""
    assert len(found.pictures) == (3 if name == "a.tif" else 1)
    for picture in seen(found):
        assert picture.format == "JPEG"
        assert max(picture.size) <= 1568
        assert is_bar(picture)


def test_pictures_are_left_out_or_refused_where_only_text_is_sent(tmp_path: Path) -> None:
    ignored = Ignored()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/b.txt").write_text("text")
    found = one(tmp_path, "a.png", saved("PNG", drawing()), ignored)
    assert (found.name, ignored.to_json()["kinds"]) == ("b.txt", {".png": 1})
    asked = list(read(DocumentSource(path="in", include=("*.png",)), tmp_path))
    assert [one.code for one in asked if isinstance(one, UnreadableDocument)] == [DocumentProblem.UNSUPPORTED]


def test_what_is_attached_is_seen_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.eml").write_bytes(office.mail("Scan", ("scan.png", saved("PNG", drawing()), "image/png")))
    found = list(read(DocumentSource(path="in", render="auto"), tmp_path))
    assert [(d.name, len(d.pictures)) for d in found if isinstance(d, Document)] == [("message", 0), ("scan.png", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "settings", "code"),
    [
        ("a.png", lambda: saved("PNG", drawing())[:200], {}, UNREADABLE),
        ("a.png", lambda: b"nothing", {}, UNREADABLE),
        ("a.tif", lambda: saved("TIFF", *[drawing(90, 110)] * 5), {"pages": 4}, LARGE),
        ("a.pdf", lambda: mixed_pdf(*[""] * 3), {"pages": 2}, LARGE),
        ("a.pdf", lambda: mixed_pdf("", ""), {"max_bytes": 10_000}, LARGE),
        ("a.png", lambda: saved("PNG", Image.new("1", (12_000, 12_000))), {}, LARGE),
        ("a.pdf", lambda: b"nothing", {}, UNREADABLE),
    ],
)
def test_what_cannot_be_sent_is_told(
    tmp_path: Path, name: str, make: Callable[[], bytes], settings: dict[str, int], code: DocumentProblem
) -> None:
    found = one(tmp_path, name, make(), render="auto", pictures=settings)
    assert isinstance(found, UnreadableDocument)
    assert found.code is code


def spec(base: Path, more: str = "") -> job_file.JobSpec:
    (base / "job.yaml").write_text(
        "name: j\ndocuments:\n  - path: in\n    render: auto\n    pictures: {resolution: 100, grayscale: true}\n"
        "models: {small: gpt-5-nano}\n"
        f"tasks:\n  - {{id: t, prompt: 'Which tenant? {{{{ sent_as }}}}', model: small, max_tokens: 99{more}}}\n"
    )
    return job_file.load(base / "job.yaml")


def test_a_request_shows_the_pages_before_the_question(tmp_path: Path) -> None:
    found = one(tmp_path, "a.pdf", mixed_pdf("", PROSE), render="auto")
    (built,) = Builder(spec(tmp_path)).build(found)
    body = json.loads(built.line)["body"]
    (message,) = body["messages"]
    TypeAdapter(ChatCompletionUserMessageParam).validate_python(message)
    picture, text = message["content"]
    assert picture == {"type": "image_url", "image_url": {"url": found.pictures[0].url}}
    assert text["text"] == (
        f"<document>\n[page 1 is picture 1]\n\f{PROSE}\n</document>\n\nWhich tenant? page 1 as image"
    )
    params, _ = translate({**body, "model": "claude-haiku-4-5"}, 99)
    image, _ = params["messages"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": "image/jpeg", "data": found.pictures[0].data}


@pytest.mark.slow
def test_other_pictures_are_another_question(tmp_path: Path) -> None:
    made = Builder(spec(tmp_path))
    data = mixed_pdf("", PROSE)
    ways: list[dict[str, Any]] = [{}, {"render": "image"}, {"pictures": {"resolution": 60}}, {"render": "text"}, {}]
    documents = [one(tmp_path, "a.pdf", data, **{"render": "auto", **way}) for way in ways]
    *prints, again = [next(iter(made.build(document))).row.fingerprint for document in documents]
    assert len(set(prints)) == 4
    assert again == prints[0]


def test_long_documents_with_pictures_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InputError, match="asks in parts") as caught:
        spec(tmp_path, ", long: {reduce: 'All in all?'}")
    assert (caught.value.line, caught.value.field) == (4, "documents[0].render")


@pytest.mark.parametrize(("width", "height"), [(1000, 750), (64, 64), (1109, 1568)])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_tokens_of_a_picture_are_told_from_its_first_bytes(kind: str, width: int, height: int) -> None:
    data = saved(kind, drawing(width, height))
    assert tokens.of_picture(data[:3072]) == -(-width * height // 750)
    assert tokens.of_picture(b"") == tokens.of_picture(b"\xff\xd8\xff") == 2319


def test_photos_of_phones_are_pictures(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.heic").write_bytes(HEIC)
    (tmp_path / "in/b.HEIF").write_bytes(HEIC[:200])
    source = DocumentSource(path="in", render="image")
    first, second = read(source, tmp_path)
    assert isinstance(first, Document)
    [picture] = first.pictures
    with Image.open(io.BytesIO(base64.b64decode(picture.data))) as seen:
        assert (seen.format, seen.size) == ("JPEG", (64, 48))
        left, right = seen.convert("L").getpixel((8, 24)), seen.convert("L").getpixel((56, 24))
        assert isinstance(left, int | float)
        assert isinstance(right, int | float)
        assert left < 60 < 200 < right
    assert isinstance(second, UnreadableDocument)
    assert second.code is UNREADABLE


def test_photos_of_phones_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    with pytest.raises(ExtractionError, match=r"pip install 'orch-batch\[heic\]'") as raised:
        page_images.extract(HEIC, "image", Render("image", 150, 1568, 20, False, 10**7), 10**7)
    assert raised.value.code is DocumentProblem.UNSUPPORTED
