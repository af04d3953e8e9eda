"""Documents that strangers made to harm: each costs itself, in bounded time and memory, and no other document."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.documents import (
    Document,
    DocumentProblem,
    Readers,
    UnreadableDocument,
    docx_text,
    listed,
    office,
)
from orchestrator.documents import read as read_with
from orchestrator.documents.files import DocumentFile, read_plain
from orchestrator.documents.html_shape import tamed
from orchestrator.documents.office_package import RATIO_FROM
from orchestrator.documents.safe_open import Opener
from orchestrator.settings.job_spec import DocumentSource
from tests.support import bombs
from tests.support.documents import read, readers

Code = DocumentProblem | str
"""A problem, or the text that is read all the same."""


def only(base: Path, name: str, data: bytes, **settings: object) -> list[Code]:
    """What becomes of a document, and of two good ones that stand around it."""
    (base / "docs").mkdir()
    (base / "docs/0.html").write_text("<p>first")
    (base / "docs" / name).write_bytes(data)
    (base / "docs/z.html").write_text("<p>last")
    found = read(DocumentSource.model_validate({"path": "docs", **settings}), base)
    codes = [one.text if isinstance(one, Document) else one.code for one in found]
    assert (codes[0], codes[-1]) == ("first", "last")
    return codes[1:-1]


@pytest.fixture(scope="module")
def strict() -> Iterator[Readers]:
    """Readers that may take little."""
    with Readers(2, WorkerLimits(memory=200_000_000, seconds=1)) as found:
        yield found


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("name", "make", "codes"),
    [
        ("form.pdf", lambda: bombs.form_objects(30, 2), {DocumentProblem.MEMORY_LIMIT, DocumentProblem.TIME_LIMIT}),
        ("wide.pdf", lambda: bombs.form_objects(6, 40), {DocumentProblem.MEMORY_LIMIT, DocumentProblem.TIME_LIMIT}),
        (
            "twice.pdf",
            lambda: bombs.deflated_twice(400_000_000),
            {DocumentProblem.MEMORY_LIMIT, DocumentProblem.TIME_LIMIT, DocumentProblem.READER_CRASHED},
        ),
    ],
)
def test_a_document_that_takes_too_much_is_a_problem_of_its_own(
    tmp_path: Path, strict: Readers, name: str, make: Callable[[], bytes], codes: set[DocumentProblem]
) -> None:
    (tmp_path / "docs").mkdir()
    for other in ("a.html", "b.docx", "y.docx", "z.html"):
        data = b"<p>text" if other.endswith("html") else bombs.word("<w:p><w:r><w:t>text</w:t></w:r></w:p>")
        (tmp_path / "docs" / other).write_bytes(data)
    (tmp_path / "docs" / name).write_bytes(make())
    found = list(read_with(DocumentSource(path="docs"), tmp_path, strict))
    assert [one.name for one in found] == ["a.html", "b.docx", name, "y.docx", "z.html"]
    assert [one.text for one in found if isinstance(one, Document)] == ["text"] * 4
    (told,) = (one for one in found if isinstance(one, UnreadableDocument))
    assert told.code in codes
    assert "max_" in told.message or "failed" in told.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("boxes.docx", bombs.text_boxes(30), "deep"),
        ("boxes.docx", bombs.text_boxes(20_000), "deep"),
        ("tables.docx", bombs.tables(20_000), "deep"),
        ("blank.docx", bombs.word(" " * (RATIO_FROM + 1)), DocumentProblem.TOO_LARGE),
        (
            "dtd.docx",
            bombs.zipped(
                {
                    "_rels/.rels": '<!DOCTYPE a [<!ENTITY b "bbbb">]><a>&b;</a>',
                    "word/document.xml": "<x/>",
                }
            ),
            DocumentProblem.UNREADABLE,
        ),
        ("parts.docx", bombs.zipped({f"{i}": "" for i in range(10_001)}), DocumentProblem.TOO_LARGE),
        ("self.docx", bombs.word("<w:p/>", header="<w:hdr><w:p/></w:hdr>"), DocumentProblem.EMPTY),
        ("cut.docx", bombs.word("")[:-30], DocumentProblem.UNREADABLE),
        ("deep.html", b"<div>" * 100_000 + b"deep", "deep"),
        ("lists.html", b"<dl><dt>" * 50_000 + b"deep", "deep"),
        ("shielded.html", b"<div></span>" * 50_000 + b"deep", "deep"),
        ("fonts.html", b"".join(b"<p><font a%d>" % i for i in range(30_000)) + b"x", "x"),
        ("tag.html", b"<p " + b"".join(b"a%d " % i for i in range(300_000)) + b">x", "x"),
        ("open.html", b"<a href='" * 50_000, DocumentProblem.EMPTY),
        ("slow.html", b"<meta charset=punycode>\xff" + b"x" * 300_000, DocumentProblem.ENCODING),
        ("quoted.html", b"<p>&#x110000;&#0;</p>" * 10, "\ufffd\ufffd\n\n" * 9 + "\ufffd\ufffd"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_what_grows_faster_than_its_bytes_elsewhere_does_not_here(
    tmp_path: Path, name: str, data: bytes, code: Code
) -> None:
    assert only(tmp_path, name, data) == [code]


def test_elements_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "MAX_ELEMENTS", 1000)
    with pytest.raises(docx_text.ExtractionError, match="1,000 elements"):
        docx_text.extract(bombs.word("<w:p/>" * 1000), None)


def test_a_text_that_unpacks_to_more_than_a_file_may_have_is_too_large(tmp_path: Path) -> None:
    data = bombs.word("<w:p><w:r><w:t>" + "word " * 30_000 + "</w:t></w:r></w:p>")
    assert len(data) < 100_000
    assert only(tmp_path, "a.docx", data, max_bytes=100_000) == [DocumentProblem.TOO_LARGE]


def test_a_page_that_people_write_is_not_touched() -> None:
    page = "<ul>" + "<li><p>one<b>two</b><i>three</i></p><div><span a='<>'>x</span></div>" * 2000 + "</ul>"
    assert tamed(page) is page
    assert tamed(f"<script>{'<div>' * 600}</script><!--{'<div>' * 600}-->{page}") != ""
    assert tamed(script := f"<script>{'<div>' * 600}</script><!--{'<div>' * 600}-->") is script


LONG = b"x" * 140_000


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"text,id\n" + LONG + b",1\nb,2\n", [LONG.decode(), "b"]),
        (b"text,id," + LONG + b"\na,1,x\n", ["a"]),
        (b"text,id\na,1\nb," + LONG + b"\n", ["a", "b"]),
        (LONG * 10, [DocumentProblem.BAD_ROW]),
        (b"," * 20_000 + b"\n", [DocumentProblem.BAD_ROW]),
        (b"text,id\n" + b"\n" * 3_000_000 + b"a,1\n", ["a"]),
        (b"text,id\n" + b" \n,\n" * 300_000 + b"a,1\n", ["a"]),
        (b"text,id\n" + b"\n" * 3_000_000, [DocumentProblem.EMPTY]),
        (b'text,id\n"' + b"\n" * 3_000_000 + b'x",1\nb,2\n', ["\n" * 3_000_000 + "x", "b"]),
        (b'text,id\n"' + b'""' * 300_000 + b'",1\n', ['"' * 300_000]),
        (b"text,id\n" + b"\0" * 3_000_000, [DocumentProblem.EMPTY]),
        (b"text," + b"y" * 500 + b"\n" + b"x\n" * 3, [DocumentProblem.BAD_ROW] * 3),
    ],
    ids=range(12),
)
def test_tables_of_commas_that_are_none(tmp_path: Path, data: bytes, codes: list[Code]) -> None:
    assert only(tmp_path, "t.csv", data, text_column="text") == codes


def test_numbers_of_rows_hold_behind_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,id\na,1\n\n\n \n , \n" + "\n" * 50 + "b,2\nc\n")
    found = list(read(DocumentSource(path="t.csv", text_column="text"), tmp_path))
    assert [one.key for one in found] == ["t.csv#1", "t.csv#4", "t.csv#5"]
    assert isinstance(found[-1], UnreadableDocument)
    assert "(line 58)" in found[-1].message


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"text":"x","a":' + b"[" * 100 + b"]" * 100 + b"}", DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":[' + b"[]," * 200_000 + b"0]}", DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":[' + b"0," * 200_000 + b"0]}", DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":' + b"9" * 10_000 + b"}", DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":' + b"9" * 4_000 + b"}", "x"),
        (b'{"text":"x","a":1e999999}', DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":-0.0e-999999}', "x"),
        (b'{"text":"x","a":NaN}', DocumentProblem.BAD_ROW),
        (b'{"text":"x","a":"' + b"," * 200_000 + b'"}', "x"),
        (b'{"text":"x","id":"' + b"i" * 600 + b'"}', DocumentProblem.BAD_ROW),
    ],
    ids=range(11),
)
def test_a_row_of_json_is_no_worse_than_itself(tmp_path: Path, line: bytes, code: Code) -> None:
    data = b'{"text":"one","id":"1"}\n' + line + b'\n{"text":"two","id":"2"}\n'
    id_column = "id" if b"iii" in line else None
    assert only(tmp_path, "t.jsonl", data, text_column="text", id_column=id_column) == ["one", code, "two"]


def test_no_id_makes_two_rows_one(tmp_path: Path) -> None:
    ids = ["row 2", None, "row 2", "row 2'", "row 4", "x", "x", "row 7"]
    lines = "".join('{"text":"t","id":%s}\n' % ("null" if one is None else f'"{one}"') for one in ids)
    (tmp_path / "t.jsonl").write_text(lines)
    found = [one.key for one in read(DocumentSource(path="t.jsonl", text_column="text", id_column="id"), tmp_path)]
    assert len(set(found)) == len(ids)


def test_no_two_names_give_the_same_key(tmp_path: Path) -> None:
    names = [
        b"caf\xe9.txt",
        rb"caf\udce9.txt",
        rb"caf\\udce9.txt",
        b"caf\\\xe9.txt",
        b"new\nline.txt",
        b"tab\t\x1b[1m.txt",
    ]
    (tmp_path / "docs").mkdir()
    for name in names:
        with open(os.fsencode(tmp_path / "docs") + b"/" + name, "w") as file:  # noqa: PTH123
            file.write("text")
    keys = [one.key for one in read(DocumentSource(path="docs"), tmp_path)]
    assert len(set(keys)) == len(names)
    for key in keys:
        key.encode()


@pytest.mark.long
def test_text_in_a_legacy_encoding_takes_no_more_than_a_few_times_its_bytes(tmp_path: Path) -> None:
    sentence = "Договор о поставке товара и об оплате его в срок, не позже. "
    (tmp_path / "a.txt").write_bytes(sentence.encode("cp1251") * 300_000)
    with Readers(1, WorkerLimits(memory=230_000_000)) as few:
        (found,) = read_with(DocumentSource(path="a.txt"), tmp_path, few)
    assert isinstance(found, Document)
    assert found.text == sentence * 300_000


def test_a_socket_a_pipe_and_a_device_are_no_documents(tmp_path: Path) -> None:
    def put(path: Path) -> None:
        os.mkfifo(path / "pipe.txt")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path / "socket.txt"))
        (path / "null.txt").symlink_to("/dev/null")
        (path / "zero.csv").symlink_to("/dev/zero")

    (tmp_path / "docs").mkdir()
    put(tmp_path / "docs")
    (tmp_path / "docs/a.txt").write_text("text")
    found = list(read(DocumentSource(path="docs", text_column="text", follow_links=True), tmp_path))
    assert [one.name for one in found] == ["a.txt"]


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.csv", "a.jsonl", "a.parquet", "a.pdf", "a.docx"])
def test_what_takes_the_place_of_a_listed_file_does_not_hang(tmp_path: Path, name: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_text("text")
    for put in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (one,) = listed(DocumentSource(path="docs", text_column="text"), tmp_path, 0, readers())
        path = tmp_path / "docs" / name
        path.unlink()
        put(path)
        (told,) = next(readers().read([one.order]))
        assert isinstance(told, UnreadableDocument)
        assert told.code is DocumentProblem.UNREADABLE
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_text("text")


@pytest.mark.long
def test_a_file_that_is_written_to_is_read_whole_or_told(tmp_path: Path) -> None:
    path, stop = tmp_path / "a.txt", threading.Event()

    def write() -> None:
        with path.open("r+b", buffering=0) as file:
            while not stop.is_set():
                for letter in b"abcdefgh":
                    file.seek(0)
                    file.write(bytes([letter]) * 200_000)

    path.write_bytes(b"a" * 200_000)
    writer = threading.Thread(target=write)
    writer.start()
    opener, codes = Opener(), set()
    try:
        file = DocumentFile(str(path), "a.txt", "a.txt", "text", None, 1_000_000)
        while len(codes) < 1:
            found = read_plain(file, opener)
            assert found is not None
            if isinstance(found, Document):
                assert len(found.text) == 200_000
            else:
                codes.add(found.code)
    finally:
        stop.set()
        writer.join()
        opener.close()
    assert codes == {DocumentProblem.CHANGING}


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The bytes with a few of them changed, cut, doubled or put elsewhere."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at, other = dice.randrange(len(out) or 1), dice.randrange(len(out) or 1)
        match dice.randrange(6):
            case 0:
                out[at : at + 1] = dice.randbytes(1)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = dice.choice((b"9" * 30, b"<" * 50, b'"', b"[" * 99, b"\0", b"-1", b"\xff" * 8, b"<w:p>"))
            case 3:
                del out[at : at + 40]
            case 4:
                out[at:at] = out[other : other + 200]
            case 5:
                out[at : at + 4] = dice.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"))
    return bytes(out)


SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_damage_makes_a_document_or_a_problem_of_its_own(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    # Pictures are ignored where none are rendered; they have tests of their own.
    whole = sorted(path for path in SAMPLES.glob("*/documents/*") if path.suffix != ".png")
    (tmp_path / "docs").mkdir()
    for number in range(150):
        path = dice.choice(whole)
        (tmp_path / f"docs/{number:03}{path.suffix}").write_bytes(damaged(path.read_bytes(), dice))
    found = list(read(DocumentSource(path="docs", text_column="text"), tmp_path))
    assert len({one.key for one in found}) == len(found) >= 150
    unexpected = {DocumentProblem.READER_CRASHED, DocumentProblem.MEMORY_LIMIT, DocumentProblem.TIME_LIMIT}
    assert not [one for one in found if isinstance(one, UnreadableDocument) and one.code in unexpected]
    for one in found:
        one.key.encode()
        (one.text if isinstance(one, Document) else one.message).encode()
