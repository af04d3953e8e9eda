"""What office documents show beside their paragraphs: charts, comments, boxes, equations, raised digits."""

from __future__ import annotations

import io
from pathlib import Path

import msoffcrypto.format.ooxml
import pypdfium2
import pytest

from orchestrator.documents import Document, Ignored
from orchestrator.documents.ignored import NotRead
from tests.support import bombs, office, pdfs
from tests.support.office import zipped
from tests.unit.test_documents_kinds import found_in, told
from tests.unit.test_documents_pictures import PROSE, mixed_pdf

CHART = (
    '<c:chartSpace xmlns:c="c" xmlns:a="a"><c:title><a:t>Sales</a:t></c:title><c:ser><c:tx><c:v>2025</c:v></c:tx>'
    '<c:cat><c:pt idx="0"><c:v>North</c:v></c:pt><c:pt idx="1"><c:v>South</c:v></c:pt></c:cat>'
    '<c:val><c:pt idx="0"><c:v>12.5</c:v></c:pt><c:pt idx="1"><c:v>7</c:v></c:pt></c:val></c:ser></c:chartSpace>'
)
TABLE = "[chart] Sales\n | 2025\nNorth | 12.5\nSouth | 7"
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


NEW_CHART = (
    '<cx:chartSpace xmlns:cx="c" xmlns:a="a"><cx:chartData><cx:data id="0"><cx:strDim type="cat">'
    '<cx:lvl><cx:pt idx="0">Fir</cx:pt><cx:pt idx="1">Oak</cx:pt><cx:pt idx="2">Bee</cx:pt></cx:lvl>'
    '<cx:lvl><cx:pt idx="0">Trees</cx:pt><cx:pt idx="2">Insects</cx:pt></cx:lvl></cx:strDim><cx:numDim type="size">'
    '<cx:lvl formatCode="General"><cx:pt idx="0">22</cx:pt><cx:pt idx="1">0.16400000000000001</cx:pt>'
    '<cx:pt idx="2">-7</cx:pt></cx:lvl></cx:numDim></cx:data></cx:chartData><cx:chart><cx:title><cx:tx><cx:txData>'
    "<cx:v>Finds</cx:v></cx:txData></cx:tx><cx:txPr><a:t>Finds</a:t></cx:txPr></cx:title><cx:series><cx:tx><cx:txData>"
    '<cx:v>2025</cx:v></cx:txData></cx:tx><cx:dataId val="0"/></cx:series></cx:chart></cx:chartSpace>'
)
NEW_TABLE = "[chart] Finds\n | 2025\nTrees / Fir | 22\nTrees / Oak | 0.164\nInsects / Bee | -7"


def series(categories: str) -> str:
    """A chart of one series; `categories` as its file has them."""
    values = "".join(f'<c:pt idx="{at}"><c:v>{at + 7}</c:v></c:pt>' for at in range(3))
    return (
        f'<c:chartSpace xmlns:c="c"><c:ser><c:cat>{categories}</c:cat><c:val>{values}</c:val></c:ser></c:chartSpace>'
    )


LEVELS = "".join(
    f"<c:lvl>{''.join(f'<c:pt idx={at!r}><c:v>{text}</c:v></c:pt>' for at, text in level)}</c:lvl>".replace("'", '"')
    for level in ([("0", "Q3"), ("1", "Q4"), ("2", "Q1")], [("0", "2024"), ("2", "2025")])
)
DAYS = "".join(f'<c:pt idx="{at}"><c:v>{45657 + at}</c:v></c:pt>' for at in range(3))


def related(*kinds_and_targets: tuple[str, str]) -> str:
    return RELATIONS.format(
        "".join(f'<Relationship Id="r{n}" Type="x/{k}" Target="{t}"/>' for n, (k, t) in enumerate(kinds_and_targets))
    )


def deck(slide: str, *kinds_and_targets: tuple[str, str], **parts: str) -> bytes:
    """A presentation of one slide."""
    entries = {
        "_rels/.rels": related(("officeDocument", "p.xml")),
        "p.xml": '<p xmlns:r="r"><sldId r:id="r0"/></p>',
        "_rels/p.xml.rels": related(("slide", "s.xml"), ("commentAuthors", "authors.xml")),
        "authors.xml": '<a><cmAuthor id="1" name="Ines"/></a>',
        "s.xml": f'<s xmlns:a="{DRAWING}">{slide}</s>',
        "_rels/s.xml.rels": related(*kinds_and_targets),
    }
    return zipped(entries | {f"{name}.xml": text for name, text in parts.items()})


def locked(password: str, data: bytes) -> bytes:
    out = io.BytesIO()
    msoffcrypto.format.ooxml.OOXMLFile(io.BytesIO(data)).encrypt(password, out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("kind", "chart", "table"),
    [
        ("chart", CHART, TABLE),
        ("chartEx", NEW_CHART, NEW_TABLE),
        ("chart", series(LEVELS), "[chart]\n2024 / Q3 | 7\n2024 / Q4 | 8\n2025 / Q1 | 9"),
        (
            "chart",
            series(f"<c:formatCode>d/m/yyyy;@</c:formatCode>{DAYS}"),
            "[chart]\n2024-12-31 | 7\n2025-01-01 | 8\n2025-01-02 | 9",
        ),
        (
            "chart",
            series(f'<c:formatCode>[Red]0 "days"</c:formatCode>{DAYS}'),
            "[chart]\n45657 | 7\n45658 | 8\n45659 | 9",
        ),
    ],
)
def test_charts_of_every_form_are_rows(tmp_path: Path, kind: str, chart: str, table: str) -> None:
    found = found_in(tmp_path, {"a.pptx": deck("", (kind, "chart.xml"), chart=chart)})
    assert told(found) == {"a.pptx": table}


@pytest.mark.slow
@pytest.mark.parametrize("password", ["/01Hannes Ruescher/01", "VelvetSweatshop"])
def test_a_presentation_that_opens_without_a_password_is_read(tmp_path: Path, password: str) -> None:
    assert told(found_in(tmp_path, {"a.pptx": locked(password, office.presentation())})) == told(
        found_in(tmp_path, {"a.pptx": office.presentation()})
    )


@pytest.mark.slow
def test_a_presentation_with_a_password_is_told_as_locked(tmp_path: Path) -> None:
    assert told(found_in(tmp_path, {"a.pptx": locked("secret", office.presentation())})) == {"a.pptx": "!encrypted"}


RAISED = (
    "<sp><a:p><a:r><a:t>1,200</a:t></a:r><a:r><a:rPr baseline='30000'/><a:t>3</a:t></a:r><a:r><a:t> CO</a:t></a:r>"
    "<a:r><a:rPr baseline='-25000'/><a:t>2</a:t></a:r></a:p></sp>"
)
SPAN = '<text:span text:style-name="{}">{}</text:span>'
SPANS = f"<text:p>1,200{SPAN.format('up', 3)} CO{SPAN.format('down', 2)}</text:p>"
STYLES = "".join(
    f'<style:style style:name="{name}"><style:text-properties style:text-position="{position}"/></style:style>'
    for name, position in (("up", "super 58%"), ("down", "-33% 58%"))
)
SYMBOLS = "".join(f'<w:r><w:sym w:font="Wingdings" w:char="{one}"/></w:r>' for one in ("F0FE", "F0A8"))
MATH = (
    '<w:p xmlns:m="m"><w:r><w:t>x is </w:t></w:r><m:oMath><m:f><m:num><m:r><m:t>a+b</m:t></m:r></m:num><m:den>'
    "<m:r><m:t>2</m:t></m:r></m:den></m:f><m:sSup><m:e><m:r><m:t>c</m:t></m:r></m:e><m:sup><m:r><m:t>10</m:t></m:r>"
    "</m:sup></m:sSup></m:oMath></w:p>"
)


RUN = "<w:r><w:t xml:space='preserve'>{}</w:t></w:r>"
FORM = "<w:p>{}</w:p>".format(
    "".join(
        RUN.format(text) + f'<w:r><w:fldChar w:fldCharType="begin"><w:ffData>{data}</w:ffData></w:fldChar></w:r>'
        for text, data in (
            ("new ", "<w:checkBox><w:default w:val='0'/><w:checked/></w:checkBox>"),
            (" old ", "<w:checkBox><w:default w:val='1'/><w:checked w:val='0'/></w:checkBox>"),
            (" preset ", "<w:checkBox><w:default w:val='1'/></w:checkBox>"),
            (" ", "<w:ddList><w:result w:val='1'/><w:listEntry w:val='Ulm'/><w:listEntry w:val='Bonn'/></w:ddList>"),
            (", end", "<w:textInput/>"),
        )
    )
)
HIDDEN = (
    f"<w:p>{RUN.format('seen')}<w:r><w:rPr><w:vanish/></w:rPr><w:t>gone</w:t></w:r>"
    "<w:r><w:rPr><w:vanish w:val='0'/></w:rPr><w:t xml:space='preserve'> also seen</w:t></w:r></w:p>"
)
ART = f'<d:m xmlns:d="d" xmlns:a="{DRAWING}"><a:p><a:t>Plan</a:t></a:p><a:p><a:t>Build</a:t></a:p></d:m>'


def kept_in_word(name: str, data: bytes) -> bytes:
    """A Word document that keeps a part of another format."""
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    text = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>".format
    body = f"{text('before')}<w:altChunk id='r0'/>{text('after')}"
    entries = {
        "_rels/.rels": related(("officeDocument", "d.xml")),
        "d.xml": f'<w:document xmlns:w="{space}"><w:body>{body}</w:body></w:document>',
        "_rels/d.xml.rels": related(("aFChunk", name)),
    }
    return zipped({**entries, name: data})


PICTURE = f'<w:p><w:r><w:drawing><a:blip xmlns:a="{DRAWING}"/></w:drawing></w:r></w:p>'
OBJECT = (
    '<w:p><w:r><w:object><v:imagedata xmlns:v="v"/><o:OLEObject xmlns:o="o" ProgID="Excel.Sheet"/></w:object></w:r>'
    "</w:p>"
)
SHOWN = "<w:p><w:r><w:t>x</w:t></w:r></w:p>"


def pdf_with_a_file() -> bytes:
    document = pypdfium2.PdfDocument(pdfs.latin(["It was agreed."]))
    document.new_attachment("a.csv").set_data(b"a,b")
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


MISSING = '<item id="m" href="m.xhtml" media-type="application/xhtml+xml"/><itemref idref="m"/>'
"""A chapter of a book that is not in its file."""


@pytest.mark.parametrize(
    ("name", "data", "notes"),
    [
        ("none.docx", bombs.word(SHOWN), ""),
        ("one.docx", bombs.word(SHOWN + PICTURE), "1 picture"),
        ("more.docx", bombs.word(SHOWN + 2 * PICTURE + OBJECT), "2 pictures, 1 embedded file"),
        ("chart.docx", bombs.word(SHOWN, chart="<c/>"), "1 chart as a picture only"),
        ("kept.docx", kept_in_word("k.bin", b"\x89PNG\0\xff\xfe\0"), "1 part in another format"),
        ("a.pptx", deck(f"{RAISED}<pic><a:blip/></pic><a:videoFile/>"), "1 picture, 1 video"),
        (
            "a.odt",
            office.open_document('<text:p>x<draw:frame xmlns:draw="d"><draw:image/></draw:frame></text:p>'),
            "1 picture",
        ),
        ("a.rtf", rb"{\rtf1 x{\*\shppict{\pict 00}}{\nonshppict{\pict 00}}{\pict 00}}", "2 pictures"),
        ("a.epub", office.book(**{"OEBPS/a.xhtml": "<p>x<img src='a.png'/></p>"}), "1 picture"),
        ("b.epub", office.book(MISSING), "1 missing chapter"),
        ("a.pdf", pdf_with_a_file(), "1 attached file"),
        ("b.pdf", mixed_pdf("", PROSE, "", ""), "pages 1, 3-4 without text"),
    ],
)
def test_what_is_lost_is_noted(tmp_path: Path, name: str, data: bytes, notes: str) -> None:
    ignored = Ignored(lists=True)
    found = found_in(tmp_path, {name: data})[name]
    assert isinstance(found, Document)
    assert (found.notes, "notes" in found.fields) == (notes, False)
    ignored.document(found.key, None, found.notes)
    assert (ignored.read, ignored.in_part) == (1, int(bool(notes)))
    assert ignored.listed == ([NotRead(found.key, "in_part", notes)] if notes else [])


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("chart.pptx", deck("", ("chart", "c.xml"), c=CHART), TABLE),
        (
            "old.pptx",
            deck("", ("comments", "m.xml"), m='<l><cm authorId="1"><text>Why  so?</text></cm><cm><text/></cm></l>'),
            "[comment 1]: Ines: Why so?",
        ),
        (
            "new.pptx",
            deck(
                "",
                ("comments", "m.xml"),
                m='<l xmlns:a="a"><cm authorId="1"><a:p><a:t>Why?</a:t></a:p><reply><a:p><a:t>So.</a:t></a:p></reply>'
                "</cm></l>",
            ),
            "[comment 1]: Ines: Why?\n[comment 2]: So.",
        ),
        ("up.pptx", deck(RAISED), "1,200³ CO₂"),
        ("up.odt", office.open_document(STYLES + SPANS), "1,200³ CO₂"),
        ("box.docx", bombs.word(f"<w:p>{SYMBOLS}<w:r><w:t>x</w:t></w:r></w:p>"), "☒☐x"),
        ("math.docx", bombs.word(MATH), "x is (a+b)/2c^(10)"),
        ("form.docx", bombs.word(FORM), "new ☒ old ☐ preset ☒ Bonn, end"),
        ("chart.docx", bombs.word("<w:p/>", chart=CHART), TABLE),
        ("art.docx", bombs.word("<w:p/>", diagramData=ART), "Plan\nBuild"),
        ("hidden.docx", bombs.word(HIDDEN), "seen also seen"),
        ("kept.docx", kept_in_word("k.html", b"<ol><li>Rent</ol>"), "before\n1. Rent\nafter"),
        ("kept.docx", kept_in_word("k.rtf", b"{\\rtf1 Rent}"), "before\nRent\nafter"),
        ("kept.docx", kept_in_word("k.docx", kept_in_word("k.txt", b"Rent")), "before\nbefore\nRent\nafter\nafter"),
    ],
)
def test_what_stands_beside_the_paragraphs(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    assert told(found_in(tmp_path, {name: data})) == {name: text}


def test_a_list_that_writes_its_numbers_in_another_way(tmp_path: Path) -> None:
    lists = (
        '<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
        '<w:lvlText w:val="%1."/></w:lvl></w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
        '<w:num w:numId="2"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:lvl w:ilvl="0">'
        '<w:start w:val="1"/><w:numFmt w:val="upperLetter"/><w:lvlText w:val="Annex %1"/></w:lvl>'
        "</w:lvlOverride></w:num>"
    )
    body = "".join(
        f'<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="{number}"/></w:numPr></w:pPr>'
        f"<w:r><w:t>{text}</w:t></w:r></w:p>"
        for number, text in ((1, "Term"), (2, "Prices"), (2, "Map"), (1, "Rent"))
    )
    data = bombs.word(body, numbering=f"<w:hdr>{lists}</w:hdr>")
    assert told(found_in(tmp_path, {"a.docx": data}))["a.docx"] == "1. Term\nAnnex A Prices\nAnnex B Map\n2. Rent"


def test_a_footer_of_the_master_is_read_once_if_slides_show_it(tmp_path: Path) -> None:
    def frame(kind: str, text: str) -> str:
        return f'<draw:frame presentation:class="{kind}"><text:p>{text}</text:p></draw:frame>'

    def master(name: str, text: str) -> str:
        frames = frame("title", "Click") + frame("footer", text)
        return f'<style:master-page style:name="{name}">{frames}</style:master-page>'

    shown = '<style:drawing-page-properties presentation:display-footer="true"/>'
    styles = f'<style:style style:name="on">{shown}</style:style><style:style style:name="off"/>'
    masters = (
        master("a", "ACME") + master("b", "unused") + master("c", "<presentation:footer>x</presentation:footer>")
    )
    slides = "".join(
        f'<draw:page draw:master-page-name="{name}" draw:style-name="{style}"><text:p>{at}</text:p></draw:page>'
        for at, (name, style) in enumerate((("a", "on"), ("a", "on"), ("b", "off"), ("c", "on")))
    )
    data = office.open_document(styles + masters + slides, kind="presentation")
    assert told(found_in(tmp_path, {"a.odp": data})) == {"a.odp": "0\n\f1\n\f2\n\f3\nACME"}


def test_a_slide_shows_no_placeholders_of_its_master(tmp_path: Path) -> None:
    master = "<style:master-page><draw:frame><text:p>Click to edit</text:p></draw:frame></style:master-page>"
    field = "<draw:frame><text:p><presentation:header/></text:p></draw:frame>"
    handout = f"<style:handout-master>{field}</style:handout-master>"
    notes = "<presentation:notes><draw:frame/></presentation:notes>"
    page = f"<draw:page><text:p>Only this<presentation:footer/></text:p><text:p>and that</text:p>{notes}</draw:page>"
    data = office.open_document(handout + master + handout + page, kind="presentation")
    assert told(found_in(tmp_path, {"a.odp": data})) == {"a.odp": "Only this\nand that"}


FIELD = '<a:fld type="slidenum"><a:t>7</a:t></a:fld>'


def test_a_date_that_was_typed_on_a_slide_is_read_and_fields_are_not(tmp_path: Path) -> None:
    """A placeholder for the date or the number of a slide may hold any text."""

    def shape(kind: str, *texts: str) -> str:
        paragraphs = "".join(f"<a:p>{text}</a:p>" for text in texts)
        return f'<sp><nvPr><ph type="{kind}"/></nvPr>{paragraphs}</sp>'

    typed = "<a:r><a:t>{}</a:t></a:r>".format
    day, numbers = shape("dt", typed("Spring term"), FIELD), (FIELD, typed("Page ") + FIELD)
    slide = day + "".join(shape("sldNum", number) for number in numbers)
    assert told(found_in(tmp_path, {"a.pptx": deck(slide)})) == {"a.pptx": "Spring term\nPage 7"}


def test_hidden_text_of_an_open_document_is_left_out(tmp_path: Path) -> None:
    hidden = '<style:style style:name="h"><style:text-properties text:display="none"/></style:style>'
    body = (
        f"<text:p>seen{SPAN.format('h', 'gone')}, too</text:p><text:p text:style-name='h'>gone</text:p>"
        "<text:section text:display='none'><text:p>gone</text:p></text:section>"
        "<text:section text:display='true'><text:p>end<text:hidden-text text:is-hidden='true'>gone</text:hidden-text>"
        "</text:p></text:section>"
    )
    assert told(found_in(tmp_path, {"a.odt": office.open_document(hidden + body)})) == {"a.odt": "seen, too\nend"}


def test_what_describes_a_picture_of_an_open_document_does_not_join_its_words(tmp_path: Path) -> None:
    """The title of the document is a field that has the same name."""
    space = "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0"
    words = f"<svg:title xmlns:svg='{space}'>a cat</svg:title><svg:desc xmlns:svg='{space}'>on a mat</svg:desc>"
    described = f"<draw:frame><draw:image/>{words}</draw:frame>"
    data = office.open_document(f"<text:p>be{described}fore <text:title>Lease</text:title></text:p>")
    assert told(found_in(tmp_path, {"a.odt": data})) == {"a.odt": "before Lease"}


SALES = office.open_chart(("", "2025"), ("North", "12.5"), ("South", "7"), title="Sales")


@pytest.mark.parametrize(
    ("body", "objects", "text", "notes"),
    [
        (f"<text:p>See {office.framed('Object 1')}below</text:p><text:p>End</text:p>", {"Object 1": SALES},
         f"See below\n{TABLE}\nEnd", ""),
        (office.framed("Object 1"), {"Object 1": SALES}, TABLE, ""),
        (f"<text:p>a{office.framed('Object 1')}b</text:p>", {"Object 1": office.open_chart(("", "")) }, "ab",
         "1 embedded file"),
        (f"<text:p>a{office.framed('Object 2')}b</text:p>", {}, "ab", "1 embedded file"),
        (f"<text:p>a{office.framed('Object 1')}b</text:p>", {"Object 1": "<math><mfrac>"}, "ab", "1 embedded file"),
        (f"<text:p>a{office.framed('../content')}b</text:p>", {}, "ab", "1 embedded file"),
        ("<text:p>\uf0fe yes \uf0a8 no</text:p>", {}, "☒ yes ☐ no", ""),
    ],
    ids=["chart in a line", "chart on a page", "empty chart", "no object", "damaged", "no part of it", "boxes"],
)  # fmt: skip
def test_objects_that_an_open_document_embeds(
    tmp_path: Path, body: str, objects: dict[str, str], text: str, notes: str
) -> None:
    data = office.open_document(body, objects=objects)
    [one] = found_in(tmp_path, {"a.odt": data}).values()
    assert isinstance(one, Document)
    assert (one.text, one.notes) == (text, notes)


@pytest.mark.parametrize(
    ("mathml", "text"),
    [
        ("<mi>x</mi><mo>=</mo><mn>550</mn>", "x=550"),
        ("<mfrac><mn>1</mn>\n<mrow><mn>2</mn><mi>a</mi></mrow></mfrac>", "1/(2a)"),
        ("<msup><mi>m</mi><mn>2</mn></msup><msub><mi>v</mi><mn>10</mn></msub>", "m^2v_(10)"),
        ("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>", "x_i^2"),
        ("<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover>", "∑_(i=1)^n"),
        ("<msqrt><mi>x</mi><mo>+</mo><mn>1</mn></msqrt><mroot><mi>y</mi><mn>3</mn></mroot>", "root (x+1)root 3(y)"),
        ("<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd></mtr></mtable>",
         "1, 2; 3"),
    ],
)  # fmt: skip
def test_formulas_of_an_open_document_are_a_line_of_text(tmp_path: Path, mathml: str, text: str) -> None:
    body = f"<text:p>At {office.framed('Object 1')} units</text:p>"
    data = office.open_document(body, objects={"Object 1": office.open_formula(mathml)})
    assert told(found_in(tmp_path, {"a.odt": data})) == {"a.odt": f"At {text} units"}


def test_a_formula_with_the_document_type_of_openoffice_does_not_refuse_its_document(tmp_path: Path) -> None:
    doctype = '<!DOCTYPE math PUBLIC "-//OpenOffice.org//DTD Modified W3C MathML 1.01//EN" "math.dtd">'
    body = f"<text:p>At {office.framed('Object 1')} units</text:p>"
    formula = doctype + office.open_formula("<mi>x</mi><mo>=</mo><mn>550</mn>")
    data = office.open_document(body, objects={"Object 1": formula})
    assert told(found_in(tmp_path, {"a.odt": data})) == {"a.odt": "At x=550 units"}


def test_objects_of_a_flat_open_document_stand_where_they_are(tmp_path: Path) -> None:
    formula = office.open_formula("<mi>x</mi><mo>=</mo><mn>550</mn>")
    inner = f"<draw:frame><draw:object>{formula}</draw:object><draw:image/></draw:frame>"
    data = office.flat_open_document(f"<text:p>At {inner} units</text:p>")
    [one] = found_in(tmp_path, {"a.fodt": data}).values()
    assert isinstance(one, Document)
    assert (one.text, one.notes) == ("At x=550 units", "")


def test_charts_of_an_open_spreadsheet_stand_behind_its_rows(tmp_path: Path) -> None:
    table = "<table:table table:name='S'><table:table-row><table:table-cell><text:p>x</text:p></table:table-cell>"
    shapes = f"<table:shapes>{office.framed('Object 1')}{office.framed('Object 2')}</table:shapes>"
    body = f"{table}</table:table-row>{shapes}</table:table>"
    data = office.open_document(body, kind="spreadsheet", objects={"Object 1": SALES})
    [one] = found_in(tmp_path, {"a.ods": data}).values()
    assert isinstance(one, Document)
    assert (one.text, one.notes) == (f"## S\nx\n{TABLE}", "1 embedded file")
