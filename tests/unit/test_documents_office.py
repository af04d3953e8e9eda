"""What office documents show beside their paragraphs: charts, comments, boxes, equations, raised digits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import bombs, office
from tests.support.office import zipped
from tests.unit.test_documents_kinds import found_in, told

CHART = (
    '<c:chartSpace xmlns:c="c" xmlns:a="a"><c:title><a:t>Sales</a:t></c:title><c:ser><c:tx><c:v>2025</c:v></c:tx>'
    '<c:cat><c:pt idx="0"><c:v>North</c:v></c:pt><c:pt idx="1"><c:v>South</c:v></c:pt></c:cat>'
    '<c:val><c:pt idx="0"><c:v>12.5</c:v></c:pt><c:pt idx="1"><c:v>7</c:v></c:pt></c:val></c:ser></c:chartSpace>'
)
TABLE = "[chart] Sales\n | 2025\nNorth | 12.5\nSouth | 7"
RELATIONS = '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{}</Relationships>'
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"


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


def test_a_slide_shows_no_placeholders_of_its_master(tmp_path: Path) -> None:
    master = "<style:master-page><draw:frame><text:p>Click to edit</text:p></draw:frame></style:master-page>"
    data = office.open_document(f"{master}<draw:page><text:p>Only this</text:p></draw:page>", kind="presentation")
    assert told(found_in(tmp_path, {"a.odp": data})) == {"a.odp": "Only this"}
