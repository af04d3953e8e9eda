"""HTML, PDF, Word and files that only a pattern chose: what is read of them, and what is told."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import docx
import pytest
from docx.document import Document as WordDocument
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.documents import (
    Document,
    DocumentProblem,
    UnreadableDocument,
    docx_text,
    html_text,
    office_package,
    pdf_text,
)
from orchestrator.documents.types import ExtractionError
from orchestrator.settings.job_spec import DocumentSource
from tests.support.documents import read

PAGE = """<!doctype html><html><head><title> Q3
 report </title><style>p {color: red}</style><script>var x = "<p>no</p>";</script></head>
<body><nav><a href="/">Home</a></nav><h1>Third quarter</h1><p>Revenue was <b>12</b>.<i>4</i> million,
up   8 %.</p>tail text<ul><li>first</li><li><p>second</p></li></ul>
<table><tr><th>Region</th><th>Sales</th></tr><tr><td><p>North</p></td><td>7<br>of 9</td></tr></table>
<pre>  code
    kept</pre><noscript>enable scripts</noscript><template>hidden</template><!-- note -->
<div>a<div>b</div>c</div>line<br>break &amp; end&nbsp;here</body></html>"""
PAGE_TEXT = """Third quarter

Revenue was 12.4 million, up 8 %.

tail text

- first
- second

Region | Sales
North | 7 of 9

  code
    kept

a
b
c
line
break & end\u00a0here"""


def one(path: Path, **settings: object) -> Document | UnreadableDocument:
    source = DocumentSource.model_validate({"path": path.name, **settings})
    (document,) = read(source, path.parent)
    return document


def code_of(path: Path, data: bytes) -> DocumentProblem | None:
    path.write_bytes(data)
    document = one(path)
    return document.code if isinstance(document, UnreadableDocument) else None


def test_a_page_is_read_as_it_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "page.HTML"
    path.write_text(PAGE, encoding="utf-8")
    document = one(path)
    assert isinstance(document, Document)
    assert document.text == PAGE_TEXT
    assert document.digest == hashlib.sha256(PAGE.encode()).hexdigest()
    assert dict(document.fields) == {
        "name": "page.HTML",
        "path": "page.HTML",
        "stem": "page",
        "suffix": ".HTML",
        "folder": "",
        "size": len(PAGE.encode()),
        "title": "Q3 report",
    }


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<table><tr><td>only one cell<p>stays a block</td></tr></table>", "only one cell\n\nstays a block"),
        (
            "<table><tr><td><table><tr><td>a<td>b</table><td>side</table>",
            "a | b\n\nside",
        ),
        ("<ol><li>one<ul><li>inner</ul><li>two</ol>", "1. one\n\n- inner\n\n2. two"),
        (
            "<ol start=7><li>a<li value=20>b<li>c<ol><li>d</ol><li value=x>e</ol>",
            "7. a\n20. b\n21. c\n\n1. d\n\n22. e",
        ),
        (
            "1,200<sup>3</sup> m<sup>2</sup>, CO<sub>2</sub>, 4<sup>th</sup>, 10<sup>6.5</sup>",
            "1,200\u00b3 m\u00b2, CO\u2082, 4th, 10^6.5",
        ),
        ("a<sup>x<p>2</p></sup>b", "ax\n\n2\n\nb"),
        ("<ol type=a><li>x<li>y<ol type=I start=4><li>z</ol></ol>", "a. x\nb. y\n\nIV. z"),
        (
            "<math><msup><mi>x</mi><mn>2</mn></msup><mo>=</mo><mfrac><mn>1</mn><mn>2</mn></mfrac></math>",
            "x\u00b2=1/2",
        ),
        ("<math><mfrac><mi>a</mi><mrow>10</mrow></mfrac></math>", "a/(10)"),
        ("<p style='visibility: hidden'>gone</p><p style='mso-hide:all'>gone</p>kept", "kept"),
        ("<table><tr hidden><td>a<td>b<tr><td>c<td>e</table>", "c | e"),
        ("<p hidden>gone</p><p style='color:red; Display : NONE'>gone</p><p style='display:block'>kept", "kept"),
        ("<div style='display:none'><p>all</p></div><script>x</script>", "all"),
        ("<noscript><p>all of it</p></noscript>", "all of it"),
        ("<body><noscript>enable scripts</noscript><p>text", "text"),
        ("<p>a\r\nb</p>", "a b"),
        ("no markup at all", "no markup at all"),
        ("<select><option>x</select><button>press</button>kept", "kept"),
        ("x<script>alert(1)", "x"),
        ("&#0;a&#xD800;b", "\ufffda\ufffdb"),
    ],
)
def test_blocks_and_tables_of_a_page(body: str, text: str) -> None:
    assert html_text.extract(body.encode(), None)[0] == text


def test_a_page_nested_deeper_than_python_recurses() -> None:
    text, _ = html_text.extract(b"<div>" * 20_000 + b"deep" + b"</div>" * 20_000, None)
    assert text == "deep"


def test_a_page_says_its_encoding() -> None:
    polish = "<meta charset='iso-8859-2'><p>Źródło żółtej ćwierci</p>"
    assert html_text.extract(polish.encode("iso8859-2"), None)[0] == "Źródło żółtej ćwierci"
    western = '<meta http-equiv="content-type" content="text/html; charset=ISO-8859-1"><p>“naïve” €5'
    assert html_text.extract(western.encode("cp1252"), None)[0] == "“naïve” €5"
    assert html_text.extract("<title>é</title>é".encode("latin-1"), "latin-1") == ("é", {"title": "é"})


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60))
@example("-")
def test_text_survives_being_a_paragraph(text: str) -> None:
    import html

    wanted = " ".join(part for part in text.split(" ") if part)
    assert html_text.extract(f"<p>{html.escape(text)}</p>".encode(), None)[0].strip() == wanted.strip()


@given(st.text(alphabet="<>/abdiprtu \n=\"'!-&;", max_size=120))
def test_no_markup_makes_the_reader_fail(text: str) -> None:
    html_text.extract(text.encode(), None)


def pdf_of(
    *pages: bytes, trailer: bytes = b"", more: tuple[bytes, ...] = (), catalog: bytes = b"", page: bytes = b""
) -> bytes:
    """A PDF with a content stream a page; `catalog` and `page` stand in these objects, `more` are objects behind."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R %s >>" % catalog,
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for i, stream in enumerate(pages):
        resources = b"/MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
        objects.append(b"<< /Type /Page /Parent 2 0 R %s %s /Contents %d 0 R >>" % (resources, page, 5 + 2 * i))
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    objects.extend(more)
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1) + b"".join(places)
    end = b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n"
    return out + table + end % (len(places) + 1, trailer, len(out))


def lines_of(*lines: bytes) -> bytes:
    return b"BT /F1 12 Tf 72 700 Td 14 TL " + b" ".join(b"(%s) Tj T*" % line for line in lines) + b" ET"


def test_pages_are_joined_by_form_feeds(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_of(lines_of(b"First line", b"second caf\\351"), b"", lines_of(b"Third page")))
    document = one(path)
    assert isinstance(document, Document)
    assert document.text == "First line\nsecond café\n\f\n\fThird page"
    assert document.fields["pages"] == 3


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ((b"a hy-", b"phenated word"), "a hyphenated word"),
        ((b"invoice INV-2024-", b"0017 is due"), "invoice INV-2024-\n0017 is due"),
        ((b"range A-", b"B"), "range A-B"),
        ((b"part X-", b"ray"), "part X-ray"),
    ],
)
def test_hyphens_at_line_ends(lines: tuple[bytes, ...], text: str) -> None:
    assert pdf_text.extract(pdf_of(lines_of(*lines)), None)[0] == text


def annotated(*lines: bytes, annotations: tuple[bytes, ...]) -> str:
    """The text of a page with lines from (72, 700) down and annotations, the fields of a form among them."""
    numbers = b" ".join(b"%d 0 R" % (6 + at) for at in range(len(annotations)))
    more = tuple(b"<< /Type /Annot /P 4 0 R %s >>" % one for one in annotations)
    form = b"/AcroForm << /Fields [%s] /DA (/F1 12 Tf) /DR << /Font << /F1 3 0 R >> >> >>" % numbers
    data = pdf_of(lines_of(*lines), catalog=form, page=b"/Annots [%s]" % numbers, more=more)
    return pdf_text.extract(data, None)[0]


def written(name: bytes, value: bytes, rect: bytes, flags: int = 4) -> bytes:
    return b"/Subtype /Widget /FT /Tx /T (%s) /V %s /Rect [%s] /F %d" % (name, value, rect, flags)


def ticked(name: bytes, state: bytes, rect: bytes) -> bytes:
    look = b"/AP << /N << /Yes 5 0 R /Off 5 0 R >> >>"
    return b"/Subtype /Widget /FT /Btn /T (%s) /V /%s /AS /%s %s /Rect [%s] /F 4" % (name, state, state, look, rect)


FIRST, SECOND = b"200 696 400 712", b"200 682 400 698"


@pytest.mark.parametrize(
    ("lines", "annotations", "text"),
    [
        ((b"Name:", b"rest"), (written(b"n", b"(Jane)", FIRST),), "Name: Jane\nrest"),
        ((b"Name:", b"Sum:"), (written(b"n", b"(J)", FIRST), written(b"s", b"(4,250.00)", SECOND)),
         "Name: J\nSum: 4,250.00"),
        ((b"text",), (written(b"customer", b"<FEFF004A00F8>", b"72 100 200 120"),), "text\ncustomer: J\u00f8"),
        ((b"     I agree", b"     I do not"),
         (ticked(b"a", b"Yes", b"72 698 86 710"), ticked(b"b", b"Off", b"72 684 86 696")),
         "\u2612 I agree\n\u2610 I do not"),
        ((b"Name:",), (written(b"n", b"(secret)", FIRST, flags=2),), "Name:"),
        ((b"Name:",), (written(b"n", b"()", FIRST),), "Name:"),
        ((b"text",), (b"/Subtype /FreeText /Contents (typed over) /Rect [72 600 200 620] /DA (/F1 12 Tf)",),
         "text\ntyped over"),
        ((b"text",), (b"/Subtype /Text /Contents (why?) /T (Ann) /Rect [72 600 90 620]",),
         "text\n[comment 1]: Ann: why?"),
        ((b"text",), (b"/Subtype /Highlight /Contents (see) /Rect [72 600 90 620]",
                      b"/Subtype /Link /Contents (a link) /Rect [72 600 90 620]"), "text\n[comment 1]: see"),
    ],
)  # fmt: skip
def test_what_was_filled_in_and_noted_is_read(
    lines: tuple[bytes, ...], annotations: tuple[bytes, ...], text: str
) -> None:
    assert annotated(*lines, annotations=annotations) == text


def encrypted_pdf() -> bytes:
    """The standard security handler with owner and user keys that no empty password opens."""
    keys = b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -4 >>" % (b"AB" * 32, b"CD" * 32)
    return pdf_of(lines_of(b"secret"), trailer=b"/Encrypt 6 0 R /ID [<00> <00>]", more=(keys,))


@pytest.mark.slow
def test_what_is_wrong_with_a_pdf_is_the_same_in_every_order(tmp_path: Path) -> None:
    """PDFium tells no reason for some damage; then it is not that of the file before."""
    damaged_pdf = pdf_of(lines_of(b"text")).replace(b"/Pages", b"/Pxges")
    for folder, names in (("ab", ("a.pdf", "b.pdf")), ("ba", ("b.pdf", "a.pdf"))):
        (tmp_path / folder).mkdir()
        for name, data in zip(names, (encrypted_pdf(), damaged_pdf), strict=True):
            (tmp_path / folder / name).write_bytes(data)
        found = {one.name: one for one in read(DocumentSource(path=folder), tmp_path)}
        codes = [one.code for one in map(found.__getitem__, names) if isinstance(one, UnreadableDocument)]
        assert codes == [DocumentProblem.ENCRYPTED, DocumentProblem.UNREADABLE]


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (pdf_of(b""), DocumentProblem.EMPTY, "no text layer"),
        (encrypted_pdf(), DocumentProblem.ENCRYPTED, "password"),
        (b"", DocumentProblem.UNREADABLE, "damaged"),
        (b"%PDF-1.7\n" + b"\0" * 500, DocumentProblem.UNREADABLE, "damaged"),
        (b"<html>not found</html>", DocumentProblem.UNREADABLE, "not a PDF"),
    ],
)
def test_what_is_wrong_with_a_pdf(tmp_path: Path, data: bytes, code: DocumentProblem, words: str) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    document = one(path)
    assert isinstance(document, UnreadableDocument)
    assert document.code is code
    assert words in document.message


@given(st.data())
def test_no_damage_to_a_pdf_makes_the_reader_fail(data: st.DataObject) -> None:
    whole = pdf_of(lines_of(b"text"))
    cut = data.draw(st.integers(0, len(whole)))
    broken = whole[:cut] + data.draw(st.binary(max_size=20)) + whole[cut + data.draw(st.integers(0, 60)) :]
    try:
        pdf_text.extract(broken, None)
    except ExtractionError as error:
        assert error.message  # noqa: PT017 (either outcome is right)


LATE = "<html><head><script>/*" + "x" * 5000 + "*/</script><meta charset='iso-8859-2'></head><p>\u0142\u00f3d\u017a"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (LATE.encode("iso8859-2"), "\u0142\u00f3d\u017a"),
        ('<?xml version="1.0" encoding="ISO-8859-1"?><html><p>Caf\u00e9</p></html>'.encode("latin-1"), "Caf\u00e9"),
        (
            b"<meta charset=utf-8><p>" + "Gr\u00fc\u00dfe ".encode() * 9 + b"\xfc</p>",
            "Gr\u00fc\u00dfe " * 9 + "\ufffd",
        ),
    ],
    ids=["behind a long script", "XML", "one bad byte"],
)
def test_a_page_is_read_as_it_says_that_it_is_encoded(data: bytes, text: str) -> None:
    assert html_text.extract(data, None)[0] == text


def test_a_page_with_many_bad_bytes_is_refused() -> None:
    with pytest.raises(ExtractionError) as raised:
        html_text.extract(b"<meta charset=utf-8>" + b"<p>\xfc\xe4 </p>" * 9, None)
    assert raised.value.code is DocumentProblem.ENCODING


def test_superscripts_do_not_join_numbers_in_word() -> None:
    document = docx.Document()
    line = document.add_paragraph("1,200")
    line.add_run("3").font.superscript = True
    line.add_run(" m, CO")
    line.add_run("2").font.subscript = True
    line.add_run(" 4")
    line.add_run("th").font.superscript = True
    assert docx_text.extract(word_bytes(document), None)[0] == "1,200\u00b3 m, CO\u2082 4th"


def word_bytes(document: WordDocument) -> bytes:
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def word_with_body(xml: str) -> bytes:
    """A package whose body is `xml`."""
    main = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
        'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
        f'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"><w:body>{xml}</w:body></w:document>'
    )
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word_bytes(docx.Document()))) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, main if entry.filename == "word/document.xml" else old.read(entry))
    return out.getvalue()


def test_paragraphs_and_tables_in_their_order(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_heading("Lease", 1)
    document.add_paragraph("Between A\tand B.")
    table = document.add_table(rows=3, cols=3)
    for i, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"c{i}"
    table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
    table.cell(1, 0).merge(table.cell(2, 0)).text = "tall"
    document.add_paragraph("After the table.")
    document.sections[0].header.paragraphs[0].text = "Letterhead"
    document.sections[0].footer.paragraphs[0].text = "Page footer"
    (tmp_path / "a.docx").write_bytes(word_bytes(document))
    found = one(tmp_path / "a.docx")
    assert isinstance(found, Document)
    assert found.text == (
        "Letterhead\n# Lease\nBetween A\tand B.\nwide | c2\ntall | c4 | c5\n | c7 | c8\n\n"
        "After the table.\nPage footer"
    )


@pytest.mark.parametrize(
    ("xml", "text"),
    [
        (
            "<w:p><w:r><w:t>term: </w:t></w:r><w:del><w:r><w:delText>two</w:delText></w:r></w:del>"
            "<w:ins><w:r><w:t>three</w:t></w:r></w:ins><w:r><w:t> years</w:t></w:r></w:p>",
            "term: three years",
        ),
        (
            "<w:sdt><w:sdtContent><w:p><w:sdt><w:sdtContent><w:r><w:t>Tenant GmbH</w:t></w:r></w:sdtContent></w:sdt>"
            "</w:p></w:sdtContent></w:sdt>",
            "Tenant GmbH",
        ),
        (
            "<w:p><w:hyperlink><w:r><w:t>link</w:t></w:r></w:hyperlink><w:r><w:br/><w:t>next</w:t></w:r></w:p>",
            "link\nnext",
        ),
        (
            "<w:p><w:r><w:t>a</w:t></w:r><w:r><w:ptab w:alignment='right'/></w:r><w:r><w:t>b</w:t></w:r></w:p>",
            "a\tb",
        ),
        (
            "<w:p><w:r><mc:AlternateContent><mc:Choice><w:drawing><wps:txbx><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r>"
            "</w:p></w:txbxContent></wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:pict><w:txbxContent><w:p><w:r>"
            "<w:t>box</w:t></w:r></w:p></w:txbxContent></w:pict></mc:Fallback></mc:AlternateContent></w:r></w:p>",
            "box",
        ),
        (
            "<w:tbl><w:sdt><w:sdtContent><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p><w:p><w:r><w:t>b</w:t></w:r></w:p>"
            "</w:tc></w:tr></w:sdtContent></w:sdt></w:tbl>",
            "a b",
        ),
        ("<w:p><w:r><w:fldChar/><w:instrText>PAGE</w:instrText><w:t>7</w:t></w:r></w:p><!-- note -->", "7"),
    ],
)
def test_word_keeps_what_a_reader_sees(xml: str, text: str) -> None:
    assert docx_text.extract(word_with_body(xml), None)[0] == text


def bomb() -> bytes:
    return word_with_body(" " * (office_package.RATIO_FROM + 1))


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: word_bytes(docx.Document()), DocumentProblem.EMPTY),
        (lambda: OLE + "EncryptedPackage".encode("utf-16-le"), DocumentProblem.ENCRYPTED),
        (lambda: OLE + b"WordDocument", DocumentProblem.UNSUPPORTED),
        (lambda: b"", DocumentProblem.UNREADABLE),
        (lambda: b"plain text", DocumentProblem.UNREADABLE),
        (lambda: word_bytes(docx.Document())[:2000], DocumentProblem.UNREADABLE),
        (lambda: word_with_body("<w:p>"), DocumentProblem.UNREADABLE),
        (bomb, DocumentProblem.TOO_LARGE),
    ],
)
def test_what_is_wrong_with_a_word_document(tmp_path: Path, make: object, code: DocumentProblem) -> None:
    assert callable(make)
    assert code_of(tmp_path / "a.docx", make()) is code


@pytest.mark.slow
@given(st.data())
def test_no_damage_to_a_word_document_makes_the_reader_fail(data: st.DataObject) -> None:
    whole = WORD
    at = data.draw(st.integers(0, len(whole)))
    broken = whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 300)) :]
    try:
        docx_text.extract(broken, None)
    except ExtractionError as error:
        assert error.message  # noqa: PT017 (either outcome is right)


WORD = word_with_body("<w:p><w:r><w:t>text</w:t></w:r></w:p>")


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("LICENSE", b"Permission is granted.", None),
        ("server.log", "Zeile für Zeile\n".encode(), None),
        ("wide.log", "\ufeffwide".encode("utf-16"), None),
        ("photo.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", DocumentProblem.UNSUPPORTED),
        ("data.bin", bytes(range(256)), DocumentProblem.UNSUPPORTED),
        ("mostly.dat", b"text with a \0 in it", DocumentProblem.UNSUPPORTED),
        ("empty.log", b"", DocumentProblem.EMPTY),
    ],
)
def test_files_that_only_a_pattern_chose(
    tmp_path: Path, name: str, data: bytes, code: DocumentProblem | None
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_bytes(data)
    (found,) = read(DocumentSource(path="docs", include=("*",)), tmp_path)
    assert (found.code if isinstance(found, UnreadableDocument) else None) is code


def test_a_table_without_a_text_column_is_reported_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.csv").write_text("x,y\n1,2\n")
    (found,) = read(DocumentSource(path="docs"), tmp_path)
    assert isinstance(found, UnreadableDocument)
    assert found.code is DocumentProblem.NO_TEXT_COLUMN
    assert "set `text_column` of its source to the column with the text (columns there: x, y)" in found.message
