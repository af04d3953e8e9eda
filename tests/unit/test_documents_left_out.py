"""What decision 0013 says that readers leave out is left out, and what stands beside it is read."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import py7zr
import pytest

from orchestrator.documents import Document, Ignored
from tests.support import mails, office, pdfs
from tests.support.mails import eml, mixed, msg, section
from tests.unit.test_documents_kinds import found_in, told

DECISION = next((Path(__file__).parents[2] / "docs/decisions").glob("0013*")).read_text("utf-8")
TABLE = DECISION.partition("**Tables on PDF pages**")[0].splitlines()
PAGE = b"""<title>no-title</title><nav>no-navigation</nav><p>Seen</p><img src=a.png alt=no-alt>
<a href=no-address>linked</a>
<input value=no-typed><textarea>area</textarea><button>no-button</button><select><option>no-option</select>
<h3><span><button>Question</button></span></h3><iframe src=x>no-frame</iframe><svg><text>no-drawing</text></svg>
<del>struck</del><style>.h{display:none}</style><p class=h>styled<p hidden>no-hidden<p title=no-tip>p</p>
<canvas>no-canvas</canvas><template>no-template</template><video src=x>film</video><object data=x>Instead</object>
<math><semantics><mi>E</mi><annotation encoding="application/x-tex">no-tex</annotation></semantics></math>
<img class="mwe-math-fallback-image-inline" alt="{\\displaystyle E=mc^{2}}"><dialog>dialog</dialog>"""
NOTE = {0x1A: "IPM.Note", 0x37: "Offer"}
OUTLOOK = msg(
    NOTE | {0x1000: "plain", 0x1013: b"<p>no-html", 0x17: 2, 0x7D: "Reply-To: no-reply@x.org\nReceived: no-received"},
    [],
    [
        {0x3707: "no-link", 0x3705: 7}, {0x3707: "no-object", 0x3705: 6, 0x3701: {"CONTENTS": b"no-content"}},
        {0x3707: "no-card.vcf", 0x3701: b"FN:no-name"}, {0x3707: "no-inline.png", 0x3701: b"x", 0x3712: "1"},
        {0x3707: "terms.txt", 0x3701: b"40 EUR"},
    ],
)  # fmt: skip
MEETING = msg({0x1A: "IPM.Appointment", 0x37: "Meeting", 0x1000: "Agenda", 0x8208: "no-room"})
WINMAIL = mails.tnef({0x37: "Offer", 0x1000: "The full text"}, {0x3707: "terms.txt", 0x3701: b"40 EUR"})
MAIL = mixed(
    section("text/plain", b"plain"),
    section("text/x-vcard; name=no-card.vcf", b"FN:no-name"),
    section('message/external-body; access-type=URL; URL="http://no-body/"', b"Content-Type: text/plain\n\nno-body"),
    section("image/png; name=no-inline.png", b"x", "Content-ID: <1>"),
)
FORMS = mixed(section("text/plain", b"plain"), section("text/html", b"<p>no-html"), kind="alternative").replace(
    b"Subject:", b"Reply-To: no-reply@x.org\nSubject:", 1
)
BEGIN = b"From a@x.org Mon Jan  1 00:00:00 2026\n"
MAILBOX = BEGIN + eml(b"one\n\nFrom here on it is text\n>From the start\n") + BEGIN + eml(b"two")
BOOK = (
    b'<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0"><description><title-info><author><last-name>'
    b"no-author</last-name></author><annotation><p>no-summary</p></annotation></title-info></description><body>"
    b"<section><p>Chapter</p></section></body></FictionBook>"
)
NOTEBOOK = {
    "metadata": {"title": "no-title"},
    "cells": [
        {"cell_type": "code", "source": "", "outputs": [{"data": form} for form in (
            {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>as HTML</b>"},
            {"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "as *Markdown*"},
            {"text/plain": "a  b", "text/html": "<table><td>no-table</table>"},
            {"text/plain": "<Figure size 640x480 with 1 Axes>", "image/png": "no-picture"},
            {"application/json": {"no-json": 1}},
        )]},
    ],
}  # fmt: skip
DRAWING = b"""<svg xmlns="http://www.w3.org/2000/svg"><metadata>no-metadata</metadata><style>no-style</style>
<text display="none">hidden <a href="no-address">linked</a></text><image href="no-picture.png"/>
<switch><foreignObject><div xmlns="http://www.w3.org/1999/xhtml"><p>Whole label</p></div></foreignObject>
<text>no-cut</text></switch><switch><g requiredFeatures="x"/><a><text>no-reason</text></a></switch>
<switch><text systemLanguage="de">Haus</text><text>House</text></switch>
<flowRoot><flowPara>Flowing</flowPara></flowRoot></svg>"""
SHEET = (
    '<table:table table:name="S"><table:table-row><table:table-cell office:value-type="percentage" '
    'office:value="0.19" table:formula="of:=no_formula"><text:p>no-19 %</text:p></table:table-cell>'
    "<table:table-cell><text:p>a "
    '<text:a xlink:href="no-address">link</text:a></text:p><draw:frame><draw:image xlink:href="no-picture"/>'
    "</draw:frame></table:table-cell></table:table-row><table:shapes>"
    + "".join(
        f"<draw:{name}><text:p>{name}</text:p></draw:{name}>"
        for name in "rect ellipse line connector caption polygon path custom-shape".split()
    )
    + "</table:shapes></table:table>"
)


def layers() -> bytes:
    """A PDF with text that is not shown, and with text outside its pages."""
    drawn = b"".join(
        b"%s BT /F 12 Tf 60 %d Td (%s) Tj ET %s\n" % (before, y, text, after)
        for y, before, text, after in (
            (780, b"", b"Seen", b""), (760, b"/OC /P BDC", b"layer", b"EMC"), (740, b"1 g", b"white", b"0 g"),
            (720, b"q 0 0 1 1 re W n", b"clipped", b"Q"), (-50, b"", b"outside", b""),
            (700, b"3 Tr", b"invisible", b"0 Tr"), (680, b"/Figure<</Alt(no-alt)>>BDC EMC", b"last", b""),
        )
    )  # fmt: skip
    made = [
        b"<</Type/Catalog/Pages 2 0 R/Outlines 6 0 R/OCProperties<</OCGs[8 0 R]/D<</OFF[8 0 R]>>>>"
        b"/Names<</EmbeddedFiles<</Names[(a)10 0 R]>>>>>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Annots[9 0 R]"
        b"/Resources<</Font<</F 5 0 R>>/Properties<</P 8 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(drawn), drawn),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        b"<</Type/Outlines/First 7 0 R/Last 7 0 R/Count 1>>",
        b"<</Title(no-bookmark)/Parent 6 0 R>>",
        b"<</Type/OCG/Name(no-layer)>>",
        b"<</Type/Annot/Subtype/Link/Rect[60 700 99 790]/A<</S/URI/URI(http://no-address)>>>>",
        b"<</Type/Filespec/F(no-name.txt)/EF<</F 11 0 R>>>>",
        b"<</Type/EmbeddedFile/Length 7>>stream\nno-file\nendstream",
    ]
    return pdfs.written(made).replace(b"/Root 1 0 R", b"/Root 1 0 R/Info<</Title(no-title)/Author(no-author)>>")


def archive() -> bytes:
    """A ZIP archive with what other programs put into archives."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.comment = b"no-comment"
        entry = zipfile.ZipInfo("a.txt")
        entry.comment = b"no-comment"
        link = zipfile.ZipInfo("no-link.txt")
        link.external_attr = 0o120777 << 16
        for name, text in (
            (entry, "alpha"), (link, "a.txt"), (".no-hidden.txt", "x"), ("d/.git/no.txt", "x"),
            ("__MACOSX/no.txt", "x"), ("no.json", "{}"),
        ):  # fmt: skip
            file.writestr(name, text)
    return made.getvalue()


def seven_zip() -> bytes:
    """The same as 7z."""
    made = io.BytesIO()
    with py7zr.SevenZipFile(made, "w") as file:
        for name in ("a.txt", ".no-hidden.txt", "__MACOSX/no.txt", "no.json"):
            file.writestr("alpha", name)
    return made.getvalue()


# Kind in the table, what it says, files, what is read of it, notes, and how many others are counted as unread.
SAYS: list[tuple[str, str, dict[str, bytes], dict[str, str], str, int]] = [
    (
        "HTML", "addresses of links; what was typed into a form, but for text areas; buttons, but for headings;",
        {"a.html": PAGE},
        {"": "Seen\n\nlinked\narea\n\nQuestion\n\nstruck\n\nstyled\n\np\n\nfilm\nInstead\nE {\\displaystyle E=mc^{2}}"
         "\ndialog"}, "", 0,
    ),
    ("HTML", "buttons, but for headings", {"a.html": b"<p>a<button>b<p>rest"}, {"": "a\nb\n\nrest"}, "", 0),
    ("PDF", "attached files, which notes count", {"a.pdf": layers()},
     {"": "Seen\nlayer\nwhite\nclipped\noutside\ninvisible\nlast"}, "1 attached file", 0),
    ("MSG", "embedded objects and links to files kept elsewhere", {"a.msg": OUTLOOK},
     {"#message": "Subject: Offer\n\nplain", "#terms.txt": "40 EUR"}, "", 4),
    ("MSG", "fields of appointments, contacts and tasks", {"a.msg": MEETING},
     {"#message": "Subject: Meeting\n\nAgenda"}, "", 0),
    ("winmail.dat (TNEF)", "outside a mail", {"a.txt": b"x", "winmail.dat": WINMAIL}, {"": "x"}, "", 1),
    ("EML", "bodies kept elsewhere (`message/external-body`)", {"a.eml": MAIL},
     {"#message": "From: ann@example.org\nSubject: Offer\n\nplain"}, "", 3),
    ("EML", "other headers (`Reply-To`", {"a.eml": FORMS},
     {"#message": "From: ann@example.org\nSubject: Offer\n\nplain"}, "", 0),
    ("MBOX", "as EML", {"a.mbox": b"\xef\xbb\xbf" + MAILBOX.replace(b"\n", b"\r\n")},
     {"#1#message": "From: ann@example.org\nSubject: Offer\n\none\n\nFrom here on it is text\nFrom the start",
      "#2#message": "From: ann@example.org\nSubject: Offer\n\ntwo"}, "", 0),
    ("ZIP, TAR, 7z", "links, hidden files, `__MACOSX`, comments", {"a.zip": archive()}, {"#a.txt": "alpha"}, "", 2),
    ("ZIP, TAR, 7z", "kinds that only a pattern chooses", {"a.7z": seven_zip()}, {"#a.txt": "alpha"}, "", 1),
    ("ZIP, TAR, 7z", "archives in volumes", {"a.zip": archive()[20:], "a.z01": b"", "b.7z.001": b"x"},
     {"#a.txt": "!unreadable"}, "", 4),
    ("gzip", "the name that it states", {"a.txt.gz": office.packed(b"alpha", "gz")}, {"": "alpha"}, "", 0),
    ("FB2, notebooks, SVG", "author and summary of a book", {"a.fb2": BOOK}, {"": "Chapter"}, "", 0),
    ("FB2, notebooks, SVG", "results of a notebook that are JSON alone", {"a.ipynb": json.dumps(NOTEBOOK).encode()},
     {"": "as HTML\n\nas *Markdown*\n\na  b\n\n<Figure size 640x480 with 1 Axes>"}, "", 0),
    ("FB2, notebooks, SVG", "other choices of a `<switch>`", {"a.svg": DRAWING},
     {"": "hidden linked\nWhole label\nHaus\nHouse\nFlowing"}, "", 0),
    ("ODS", "pictures, addresses of links, number formats, formulas",
     {"a.ods": office.open_document(SHEET, kind="spreadsheet")},
     {"": "## S\n0.19 | a link\nrect\nellipse\nline\nconnector\ncaption\npolygon\npath\ncustom-shape"}, "", 0),
]  # fmt: skip


WHOLE = {
    "a.docx": office.word_report(), "a.pptx": office.presentation(), "a.odt": office.letter(),
    "a.epub": office.book(), "a.xlsx": office.workbook({"S": [["x"]]}), "a.ods": office.calc_sheet([["x"]]),
    "a.zip": office.zipped({"a.txt": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_package_without_the_directory_at_its_end_is_refused(tmp_path: Path, name: str) -> None:
    """Its first parts could be read, but nothing says what was cut off."""
    data = WHOLE[name][: WHOLE[name].rindex(b"PK\1\2")]
    assert "without the directory at its end" in DECISION
    assert told(found_in(tmp_path, {name: data})) == {name: "!unreadable"}


@pytest.mark.parametrize(
    ("kind", "says", "files", "texts", "notes", "unread"), SAYS, ids=[f"{one[0]}: {one[1]}" for one in SAYS]
)
def test_a_reader_leaves_out_what_the_decision_says(
    tmp_path: Path, kind: str, says: str, files: dict[str, bytes], texts: dict[str, str], notes: str, unread: int
) -> None:
    [line] = [line for line in TABLE if line.startswith(f"| {kind} |")]
    assert says in line
    ignored = Ignored()
    chosen = [name for name in files if name.endswith((".ipynb", ".svg"))]
    found = found_in(tmp_path, files, ignored, **({"include": chosen} if chosen else {}))
    assert told(found) == {f"{next(iter(files))}{key}": text for key, text in texts.items()}
    assert [one.notes for one in found.values() if isinstance(one, Document) and one.notes] == list(
        filter(None, [notes])
    )
    assert ignored.to_json()["total"] == unread
