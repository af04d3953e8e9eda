"""Spreadsheets as they are: errors, durations, macro sheets, locks, and sheets of which most is empty."""

from __future__ import annotations

import datetime
import io
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from hashlib import md5
from pathlib import Path

import msoffcrypto.format.ooxml
import olefile
import pytest
import xlsxwriter
from msoffcrypto.method.rc4 import DocumentRC4

from orchestrator.documents import (
    Document,
    DocumentProblem,
    UnreadableDocument,
    office_package,
    sheets,
    workbook_repair,
)
from orchestrator.documents.office_package import Package
from orchestrator.documents.types import ExtractionError
from orchestrator.settings.job_spec import DocumentSource
from tests.support.documents import read
from tests.support.office import compound, workbook, zipped

Write = Callable[[xlsxwriter.Workbook, xlsxwriter.worksheet.Worksheet], object]


def book(write: Write) -> bytes:
    out = io.BytesIO()
    made = xlsxwriter.Workbook(out, {"in_memory": True})
    write(made, made.add_worksheet("S"))
    made.close()
    return out.getvalue()


def text_of(data: bytes) -> str:
    return sheets.extract(data, None)[0]


def errors(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
    for row, value in enumerate(("#N/A", "#DIV/0!", "#REF!")):
        sheet.write_formula(row, 0, "=1/0", None, value)
        sheet.write(row, 1, row)


def durations(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
    for row, hours in enumerate((36, 0.5, 100)):
        sheet.write_datetime(row, 0, datetime.timedelta(hours=hours), made.add_format({"num_format": "[h]:mm:ss"}))


def stray(row: int, column: int) -> Write:
    def write(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
        sheet.write(0, 0, "first")
        sheet.write(0, 2, "third")
        sheet.set_row(row // 2, 30)
        sheet.write(row, column, "stray")

    return write


def beside(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
    sheet.write_row(0, 0, ["North", 0.164])
    sheet.write_comment(0, 1, "Checked  twice", {"author": "Ines"})
    sheet.insert_textbox(3, 0, "Draft of March")
    chart = made.add_chart({"type": "pie"})
    chart.add_series(
        {"categories": "=S!$A$1:$A$1", "values": "=S!$B$1:$B$1", "categories_data": ["North"], "values_data": [0.164]}
    )
    chart.set_title({"name": "Sales"})
    sheet.insert_chart(5, 0, chart)
    hidden = made.add_worksheet("Costs")
    hidden.write(0, 0, "secret")
    hidden.hide()


def test_what_stands_beside_the_cells(tmp_path: Path) -> None:
    text, fields = sheets.extract(book(beside), None)
    assert text == (
        "## S\nNorth | 0.164\nDraft of March\n[chart] Sales\nNorth | 0.164\n[comment B1]: Ines: Checked twice\n\n"
        "## Costs (hidden)\nsecret"
    )
    assert fields == {"sheets": ["S", "Costs"]}


def test_what_stands_beside_the_cells_of_a_binary_workbook() -> None:
    with zipfile.ZipFile(io.BytesIO(book(beside))) as made:
        parts = {name: made.read(name) for name in made.namelist() if "drawing" in name or "chart" in name}
        related = made.read("xl/worksheets/_rels/sheet1.xml.rels").replace(b"comments1.xml", b"comments1.bin")
    words = binary_record(637, b"\0" + binary_text("Checked  twice"))
    comment = binary_record(635, struct.pack("<5I", 0, 0, 0, 1, 1) + bytes(16)) + words
    cell = binary_record(6, struct.pack("<II", 0, 0) + binary_text("North"))
    comments = binary_record(632, binary_text("Ines")) + comment
    with zipfile.ZipFile(io.BytesIO(binary_workbook(cell, bytes(8), comments1=comments))) as made:
        parts |= {name: made.read(name) for name in made.namelist()}
    assert text_of(zipped({**parts, "xl/worksheets/_rels/sheet1.bin.rels": related})) == (
        "## S\nNorth\nDraft of March\n[chart] Sales\nNorth | 0.164\n[comment B1]: Ines: Checked twice"
    )


def test_a_sheet_that_is_a_chart_is_read_in_its_place() -> None:
    def write(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
        sheet.write_row(0, 0, ["North", 0.164])
        chart = made.add_chart({"type": "column"})
        chart.add_series({"name": "2025", "values": "=S!$B$1:$B$1", "values_data": [0.164]})
        chart.set_title({"name": "Sales"})
        made.add_chartsheet("Graph").set_chart(chart)
        made.add_worksheet("Costs").write(0, 0, "rent")

    text, fields = sheets.extract(book(write), None)
    assert text == "## S\nNorth | 0.164\n\n## Graph\n[chart] Sales\n | 2025\n | 0.164\n\n## Costs\nrent"
    assert fields == {"sheets": ["S", "Graph", "Costs"]}


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        (b'sheetId="1"', b'sheetId="1" state="show"'),
        (b'<dimension ref="A1:B1"/>', b'<dimension ref="1:4"/>'),
        (b'<dimension ref="A1:B1"/>', b"<dimension ref='A:C'/>"),
    ],
)
def test_what_other_programs_write_and_excel_opens_is_read(usual: bytes, other: bytes) -> None:
    whole = book(lambda _, sheet: sheet.write_row(0, 0, ["North", 0.164]))
    written = changed(whole, lambda _, part: part.replace(usual, other))
    assert written != whole
    assert text_of(written) == "## S\nNorth | 0.164"


THREAD = (
    '<t xmlns="x"><threadedComment ref="A1" personId="p"><text>Why?</text></threadedComment>'
    '<threadedComment ref="A1" personId="q"><text>So.</text></threadedComment></t>'
)


def test_threads_of_comments_stand_once() -> None:
    """Excel keeps each a second time, with a text for old programs."""
    related = '<Relationships xmlns="r">{}</Relationships>'.format
    one = '<Relationship Id="{}" Type="x/{}" Target="{}"/>'.format
    data, out = (
        book(lambda made, sheet: sheet.write_comment(0, 0, "[Threaded comment] Your version ...")),
        io.BytesIO(),
    )
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            whole = old.read(entry)
            if entry.filename == "xl/worksheets/_rels/sheet1.xml.rels":
                whole = related(
                    one(1, "comments", "../comments1.xml") + one(2, "threadedComment", "../t.xml")
                ).encode()
            elif entry.filename == "xl/_rels/workbook.xml.rels":
                whole = whole.replace(b"</Relationships>", (one(99, "person", "p.xml") + "</Relationships>").encode())
            new.writestr(entry.filename, whole)
        new.writestr("xl/t.xml", THREAD)
        new.writestr("xl/p.xml", '<l xmlns="x"><person id="p" displayName="Ines"/></l>')
    assert text_of(out.getvalue()) == "## S\n[comment A1]: Ines: Why?\n[comment A1]: So."


def macros() -> bytes:
    """A workbook whose second sheet is one of macros."""
    data, out = workbook({"A": [["plain"]], "M": [["ALERT()"]]}), io.BytesIO()
    kind = b"http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet"
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            part, place = old.read(name), name
            if name == "xl/_rels/workbook.xml.rels":
                macro = b"http://schemas.microsoft.com/office/2006/relationships/xlMacrosheet"
                part = part.replace(kind + b'" Target="worksheets/sheet2', macro + b'" Target="macrosheets/sheet2')
            if name == "xl/worksheets/sheet2.xml":
                place = "xl/macrosheets/sheet2.xml"
                part = part.replace(b"<worksheet ", b'<xm:macrosheet xmlns:xm="x" ').replace(
                    b"</worksheet>", b"</xm:macrosheet>"
                )
            new.writestr(place, part)
    return out.getvalue()


def locked(password: str, data: bytes | None = None) -> bytes:
    out = io.BytesIO()
    plain = workbook({"A": [["inside"]]}) if data is None else data
    msoffcrypto.format.ooxml.OOXMLFile(io.BytesIO(plain)).encrypt(password, out)
    return out.getvalue()


def with_parts(data: bytes, **parts: bytes) -> bytes:
    """Return a workbook with other contents of the parts whose names end so."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            stem = entry.filename.rpartition("/")[2].partition(".")[0]
            new.writestr(entry.filename, parts.get(stem, old.read(entry)))
    return out.getvalue()


def changed(data: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """Return a workbook in which each part is what `change` makes of it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return out.getvalue()


def in_utf_16(encoding: str) -> bytes:
    def wide(name: str, part: bytes) -> bytes:
        text = part.decode().replace('encoding="UTF-8"', 'encoding="UTF-16"')
        return text.encode(encoding) if name.startswith(("xl/w", "xl/s", "_rels", "[")) else part

    return changed(workbook({"A": [["größer", 1.5]]}), wide)


def merged() -> bytes:
    """A workbook with whole columns merged into one."""

    def write(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
        sheet.write_row(0, 0, ["a", "b"])
        sheet.merge_range("D1:E9", "")

    return changed(book(write), lambda _, part: part.replace(b'"D1:E9"', b'"D:E"'))


def before_release() -> bytes:
    """The form of Excel 2007's test versions."""
    beta, final = b"http://schemas.microsoft.com/office/excel/2006/2", b"/spreadsheetml/2006/main"
    final = b"http://schemas.openxmlformats.org" + final

    def older(name: str, part: bytes) -> bytes:
        return part.replace(final, beta).replace(b"<si>", b"<sstItem>").replace(b"</si>", b"</sstItem>")

    return changed(workbook({"A": [["one", "two"], ["three"]]}), older)


def without_part() -> bytes:
    """A workbook with a module of Visual Basic in the list of its sheets, which has no part."""
    module = b'<sheet name="Module" sheetId="2" r:id=""/></sheets>'
    return changed(workbook({"A": [["x"]]}), lambda _, part: part.replace(b"</sheets>", module))


def binary_text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode("utf-16-le")


def binary_record(kind: int, data: bytes = b"") -> bytes:
    name = bytes((kind & 0x7F | 0x80, kind >> 7)) if kind > 0x7F else bytes((kind,))
    return name + bytes((len(data),)) + data


def binary_before_release() -> bytes:
    """A binary workbook in the form of Excel 2007's test versions: its list of sheets has four bytes more."""
    cell = binary_record(6, struct.pack("<II", 0, 0) + binary_text("from 2006"))
    return binary_workbook(cell, struct.pack("<III", 0, 1, 1))


def binary_macros() -> bytes:
    """A binary workbook whose only sheet is a macro sheet, in a folder of another name."""

    def moved(name: str) -> str:
        for old, new in (("worksheets/", "macrosheets/"), ('/worksheet"', '/xlMacrosheet"'), ("xl/", "book/")):
            name = name.replace(old, new)
        return name

    with zipfile.ZipFile(io.BytesIO(binary_before_release())) as package:
        return zipped(
            {moved(one): moved(package.read(one).decode("latin-1")).encode("latin-1") for one in package.namelist()}
        )


def twins() -> bytes:
    """Two parts whose names differ in case: the workbook means the first."""
    made = workbook({"A": [["right"]]})
    with zipfile.ZipFile(io.BytesIO(made)) as package:
        parts = {name: package.read(name) for name in package.namelist()}
    return zipped({**parts, "xl/worksheets/Sheet1.xml": b"<worksheet/>"})


def scripts() -> bytes:
    """Raised and lowered digits in shared texts, a text in its cell and a comment."""

    def write(made: xlsxwriter.Workbook, sheet: xlsxwriter.worksheet.Worksheet) -> None:
        raised, lowered = (made.add_format({"font_script": script}) for script in (1, 2))
        sheet.write_rich_string(0, 0, "1,200", raised, "3")
        sheet.write_rich_string(0, 1, "CO", lowered, "2")
        sheet.write_rich_string(0, 2, "4", raised, "th")
        sheet.write_string(0, 3, "here")
        sheet.write_comment(0, 0, "106")

    run = b"<r><t>%s</t></r><r><rPr><sz val='9'/><vertAlign val='superscript'/></rPr><t>%s</t></r>"

    def inside(name: str, part: bytes) -> bytes:
        part = part.replace(b't="s"><v>3</v>', b't="inlineStr"><is>%s</is>' % run % (b"5", b"3"))
        return re.sub(rb"<r>(?:(?!</r>).)*106</t></r>", run % (b"10", b"6"), part)

    return changed(book(write), inside)


def binary_errors() -> bytes:
    """A binary workbook with an error that was typed in, one that a formula gives, and a text."""
    cells = binary_record(3, struct.pack("<IIB", 0, 0, 0x2A))
    cells += binary_record(11, struct.pack("<IIBHII", 1, 0, 0x07, 0, 0, 0))
    return binary_workbook(cells + binary_record(6, struct.pack("<II", 2, 0) + binary_text("kept")), bytes(8))


def rich_text(text: str, *runs: tuple[int, int]) -> bytes:
    """A formatted text; each run begins at a character and has the number of a font."""
    places = struct.pack("<I", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs)
    return bytes((bool(runs),)) + binary_text(text) + (places if runs else b"")


FONTS = b"".join(binary_record(43, struct.pack("<4H", 200, 0, 400, script) + bytes(17)) for script in (0, 1, 2))
"""Of a binary workbook: plain, raised, lowered."""
FONTS += binary_record(617, struct.pack("<I", 1)) + binary_record(47, bytes(16)) + binary_record(618)


@pytest.mark.parametrize(("styles", "area"), [({"styles": FONTS}, "1,200³ m"), ({}, "1,2003 m")])
def test_texts_with_formats_in_the_cells_of_a_binary_workbook(styles: dict[str, bytes], area: str) -> None:
    cells = binary_record(6, struct.pack("<II", 0, 0) + binary_text("plain"))
    for column, text in enumerate(
        (rich_text("1,2003 m", (0, 0), (5, 1), (6, 0)), rich_text("no runs"), rich_text("")), 1
    ):
        cells += binary_record(62, struct.pack("<II", column, 0) + text)
    cells += binary_record(6, struct.pack("<II", 4, 0) + binary_text("last"))
    assert text_of(binary_workbook(cells, bytes(8), **styles)) == f"## S\nplain | {area} | no runs |  | last"


def binary_scripts() -> bytes:
    """A binary workbook with raised and lowered digits in its shared texts."""

    rich = (("1,2003 m", (0, 0), (5, 1), (6, 0)), ("CO2", (2, 2)), ("plain 42",), ("106", (2, 1)))
    texts = b"".join(binary_record(19, rich_text(*one)) for one in rich)
    texts = binary_record(159, struct.pack("<II", 4, 4)) + texts + binary_record(160)
    cells = b"".join(binary_record(7, struct.pack("<III", column, 0, column)) for column in range(4))
    return binary_workbook(cells, bytes(8), sharedStrings=texts, styles=FONTS)


def binary_stray(row: int, column: int) -> bytes:
    """A binary workbook with a cell far from the others, and a formatted one without content beside it."""
    cell = binary_record(6, struct.pack("<II", 0, 0) + binary_text("here"))
    far = binary_record(0, struct.pack("<I", row) + bytes(21)) + binary_record(1, struct.pack("<II", column // 2, 0))
    far += binary_record(6, struct.pack("<II", column, 0) + binary_text("far"))
    blank = binary_record(0, struct.pack("<I", row // 2) + bytes(21)) + binary_record(1, struct.pack("<II", 0, 0))
    return binary_workbook(cell + blank + far, bytes(8), size=struct.pack("<4I", 0, row, 0, column))


def binary_workbook(cells: bytes, about: bytes, size: bytes = bytes(16), **parts: bytes) -> bytes:
    """A binary workbook with one row; `about` are the first numbers of its sheet's description."""
    text, record = binary_text, binary_record
    sheet = record(156, about + text("rId1") + text("S"))
    whole = record(131) + record(143) + sheet + record(144) + record(132)
    cell = record(0, bytes(25)) + cells
    rows = record(129) + record(148, size) + record(145) + cell + record(146) + record(130)
    kinds = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"

    def related(ident: str, kind: str, to: str) -> str:
        return (
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="{ident}" Type="{kinds}{kind}" Target="{to}"/></Relationships>'
        )

    return zipped(
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
            "_rels/.rels": related("r", "officeDocument", "xl/workbook.bin"),
            "xl/_rels/workbook.bin.rels": related("rId1", "worksheet", "worksheets/sheet1.bin"),
            "xl/workbook.bin": whole,
            "xl/worksheets/sheet1.bin": rows,
            **{f"xl/{name}.bin": part for name, part in parts.items()},
        }
    )


def test_what_stands_beside_the_cells_of_a_workbook_without_a_real_lock() -> None:
    text, _ = sheets.extract(locked("VelvetSweatshop", book(beside)), None)
    assert "[comment B1]: Ines: Checked twice" in text


@pytest.mark.parametrize("part", ["drawing1", "comments1", "chart1"])
def test_cells_are_read_if_what_stands_beside_them_is_damaged(part: str) -> None:
    text, fields = sheets.extract(with_parts(book(beside), **{part: b"<open"}), None)
    assert text.startswith("## S\nNorth | 0.164")
    assert fields["notes"] == "1 damaged part"


def test_a_part_that_nothing_reads_is_unpacked_only_if_it_may_be_a_bomb() -> None:
    limit = office_package.RATIO_FROM
    small = with_parts(book(beside), theme1=bytes(limit // 2))
    assert text_of(small).startswith("## S")
    with pytest.raises(ExtractionError) as raised:
        text_of(with_parts(book(beside), theme1=bytes(limit + 1)))
    assert raised.value.code is DocumentProblem.TOO_LARGE


def old_workbook(
    cells: dict[tuple[int, int], float],
    more: bytes = b"",
    first: bytes = b"",
    version: int = 0x600,
    stream: str = "Workbook",
) -> bytes:
    """A workbook of Excel 97-2003 with numbers on one sheet; `first` stands at its beginning, `more` at its end."""
    return compound({stream: old_stream(cells, more, first, version)})


def old_stream(
    cells: dict[tuple[int, int], float], more: bytes = b"", first: bytes = b"", version: int = 0x600
) -> bytes:
    """The stream of records of such a workbook."""

    def record(kind: int, data: bytes) -> bytes:
        return struct.pack("<HH", kind, len(data)) + data

    def beginning(what: int) -> bytes:
        return record(0x809, struct.pack("<HHHHII", version, what, 0, 0, 0, 0))

    rows, columns = (max(place[axis] for place in cells) + 1 for axis in (0, 1))
    sheet = beginning(0x10) + record(0x200, struct.pack("<IIHHH", 0, rows, 0, columns, 0))
    sheet += b"".join(
        record(0x203, struct.pack("<HHHd", row, column, 0, value)) for (row, column), value in cells.items()
    )
    sheet += record(0x208, struct.pack("<8H", rows // 2, 0, 1, 255, 0, 0, 0, 0)) + more + record(0x0A, b"")
    name = b"\1\0S" if version == 0x600 else b"\1S"
    at = len(beginning(5) + first) + len(record(0x85, bytes(6) + name)) + 4
    whole = beginning(5) + first + record(0x85, struct.pack("<IH", at, 0) + name) + record(0x0A, b"") + sheet
    return whole.ljust(8192, b"\0")


@pytest.mark.parametrize(("version", "name"), [(0x600, "Workbook"), (0x500, "Book"), (0x600, "WorkBook")])
@pytest.mark.parametrize("is_first", [False, True])
def test_an_old_workbook_is_read_and_not_one_that_is_embedded_in_it(version: int, name: str, is_first: bool) -> None:
    """The library takes the first stream with the name that it looks for, wherever the stream stands."""
    own = old_stream({(0, 0): 1, (0, 1): 2}, version=version)
    streams: dict[str, object] = {name: own, "MBD1": {"Workbook": old_stream({(0, 0): 9}), "Book": b"x" * 5000}}
    assert text_of(compound(dict(sorted(streams.items(), reverse=not is_first)))) == "## S\n1 | 2"


@pytest.mark.parametrize(
    ("page", "encoding", "text"),
    [
        (1251, "cp1251", "Счёт"), (932, "cp932", "日本の家賃"), (936, "gbk", "房租"), (949, "cp949", "임대료"),
        (950, "big5", "租金"), (437, "cp437", "größer"), (852, "cp852", "Źródło"), (10000, "mac_roman", "größer"),
        (10001, "cp932", "家賃"), (10006, "mac_greek", "Ωμέγα"), (10029, "mac_latin2", "Źródło"),
        (0x8001, "cp1252", "größer"), (0, "cp1252", "größer"),
    ],
)  # fmt: skip
def test_texts_of_excel_5_are_read_in_the_code_page_that_the_workbook_states(
    page: int, encoding: str, text: str
) -> None:
    coded = text.encode(encoding)
    label = struct.pack("<HHHHHH", 0x204, 8 + len(coded), 0, 1, 0, len(coded)) + coded
    stated = struct.pack("<HHH", 0x42, 2, page)
    data = old_workbook({(0, 0): 1.5, (1, 1): 2}, label, stated, 0x500, "Book")
    assert text_of(data) == f"## S\n1.5 | {text}\n | 2"


@pytest.mark.parametrize(
    ("charsets", "stated", "text"),
    [
        ((204, 204), b"", "Счёт"), ((0, 204, 2), b"", "Счёт"), ((238,), b"", "Ń÷¸ň"), ((0,), b"", "Ñ÷¸ò"),
        ((204, 238), b"", "Ñ÷¸ò"), ((204,), struct.pack("<HHH", 0x42, 2, 1252), "Ñ÷¸ò"),
    ],
)  # fmt: skip
def test_texts_of_excel_5_without_a_code_page_are_read_as_the_fonts_say(
    charsets: tuple[int, ...], stated: bytes, text: str
) -> None:
    coded = "Счёт".encode("cp1251")
    label = struct.pack("<HHHHHH", 0x204, 8 + len(coded), 0, 1, 0, len(coded)) + coded
    fonts = b"".join(
        struct.pack("<HH5HBBBBB", 0x31, 20, 160, 0, 0x7FFF, 400, 0, 0, 2, charset, 0, 5) + b"Arial"
        for charset in charsets
    )
    data = old_workbook({(0, 0): 1.5, (1, 1): 2}, label, fonts + stated, 0x500, "Book")
    assert text_of(data) == f"## S\n1.5 | {text}\n | 2"


@pytest.mark.parametrize("page", [0, 437, 932, 1200, 1252, 10000, 10029])
def test_texts_since_excel_97_do_not_depend_on_the_code_page(page: int) -> None:
    narrow, wide = b"a\xf6b", "日本".encode("utf-16-le")
    labels = b"".join(
        struct.pack("<HHHHHHB", 0x204, 9 + len(coded), 0, column, 0, len(coded) >> width, width) + coded
        for column, coded, width in ((1, narrow, 0), (2, wide, 1))
    )
    data = old_workbook({(0, 0): 1.5, (1, 2): 2}, labels, struct.pack("<HHH", 0x42, 2, page))
    assert text_of(data) == "## S\n1.5 | aöb | 日本\n |  | 2"


def old_locked(password: str, cells: dict[tuple[int, int], float]) -> bytes:
    """A workbook of Excel 97-2003 locked by RC4 ([MS-XLS] 2.2.10), except heads of records and places of sheets."""
    salt, proof = bytes(range(16)), bytes(range(16, 32))
    stream = bytearray(8192)
    keys = DocumentRC4.decrypt(password, salt, io.BytesIO(bytes(len(stream))), blocksize=1024).read()
    told = bytes(one ^ key for one, key in zip(proof + md5(proof).digest(), keys, strict=False))
    lock = struct.pack("<HHHHH", 0x2F, 54, 1, 1, 1) + salt + told
    with olefile.OleFileIO(io.BytesIO(old_workbook(cells, first=lock))) as file:
        stream[:] = file.openstream("Workbook").read()
    at = 0
    while at + 4 <= len(stream):
        kind, size = struct.unpack_from("<HH", stream, at)
        begin, at = at + 4, at + 4 + size
        if kind not in (0x809, 0x2F):
            for place in range(begin + 4 * (kind == 0x85), at):
                stream[place] ^= keys[place]
    return compound({"Workbook": bytes(stream[:at])})


@pytest.mark.parametrize(("password", "told"), [("VelvetSweatshop", "## S\n1 | 2\n3"), ("secret", "!encrypted")])
def test_an_old_workbook_that_excel_opens_without_asking_is_read(tmp_path: Path, password: str, told: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.xls").write_bytes(old_locked(password, {(0, 0): 1, (0, 1): 2, (2, 0): 3}))
    [found] = read(DocumentSource(path="in"), tmp_path)
    assert (found.text if isinstance(found, Document) else f"!{found.code}") == told


def old_scripts(
    *texts: tuple[str, int, list[tuple[int, int]]], cut: int = 8224, between: Sequence[bytes] = ()
) -> bytes:
    """A workbook of Excel 97-2003 with texts in one row: characters, bytes of each, and runs of place and font.

    Fonts 1 and 5 raise, 2 lowers. A record of texts ends after `cut` bytes, and a text goes on in the next, behind
    the records `between`.
    """

    def record(kind: int, data: bytes) -> bytes:
        return struct.pack("<HH", kind, len(data)) + data

    scripts = [0, 1, 2, 0, 1]
    fonts = b"".join(record(0x31, struct.pack("<5H", 200, 0, 0, 400, script) + bytes(6)) for script in scripts)
    pieces = [struct.pack("<II", len(texts), len(texts))]
    for text, width, runs in texts:
        pieces[-1] += struct.pack("<HB", len(text), (width > 1) | 8 * bool(runs))
        pieces[-1] += struct.pack("<H", len(runs)) if runs else b""
        data = text.encode("utf-16-le" if width > 1 else "latin-1")
        while data:
            room = max(cut - len(pieces[-1]), 0) // width * width
            pieces[-1] += data[:room]
            data = data[room:]
            pieces += [bytes((width > 1,))] if data else []
        pieces[-1] += b"".join(struct.pack("<HH", *run) for run in runs)
    pieces[1:1] = between
    shared = b"".join(record(0x3C if number else 0xFC, piece) for number, piece in enumerate(pieces))
    cells = b"".join(record(0xFD, struct.pack("<HHHI", 0, column, 0, column)) for column in range(len(texts)))
    return old_workbook({(1, 0): 7.0}, more=cells, first=fonts + shared)


SCRIPTS_OF_OLD = [
    ("1,2003 m", 1, [(0, 0), (5, 1), (6, 0)]),
    ("1,2004", 1, [(5, 5)]),
    ("CO2", 1, [(2, 2)]),
    ("5€3", 2, [(2, 1)]),
    ("5€106", 2, [(2, 3), (4, 1)]),
    ("4th", 1, [(1, 1)]),
    ("plain 42", 1, []),
]


@pytest.mark.parametrize("cut", [8224, 40, 17])
def test_raised_and_lowered_digits_of_old(cut: int) -> None:
    """A text of one byte a character has no room for ⁴, and a font's number is one more from the fifth on."""
    assert text_of(old_scripts(*SCRIPTS_OF_OLD, cut=cut)) == (
        "## S\n1,200³ m | 1,200^4 | CO_2 | 5€³ | 5€10⁶ | 4th | plain 42\n7"
    )


@pytest.mark.parametrize("cut", [8224, 40, 17])
@pytest.mark.parametrize("between", [[b""], [b"", b""]])
def test_records_of_texts_without_a_text_are_passed_over(cut: int, between: Sequence[bytes]) -> None:
    texts = [("first", 1, []), ("second, which is longer than a record", 1, []), ("1,2003", 1, [(5, 1)])]
    assert text_of(old_scripts(*texts, cut=cut, between=between)) == (
        "## S\nfirst | second, which is longer than a record | 1,200³\n7"
    )


@pytest.mark.parametrize("length", [8_100, 8_213, 20_000, 70_000])
@pytest.mark.parametrize("width", [1, 2])
def test_raised_digits_of_old_behind_a_text_of_several_records(length: int, width: int) -> None:
    long = "x" * (length // 2)
    found = text_of(old_scripts((long, width, []), ("1,2003", 1, [(5, 1)]), (long, width, []), ("end", 1, [])))
    assert found == f"## S\n{long} | 1,200³ | {long} | end\n7"


def test_formats_behind_the_end_of_a_text_of_old_harm_nothing() -> None:
    whole = old_scripts(("1,2003", 1, [(9, 1)]), ("24", 1, [(1, 1), (0, 77), (9, 2)]), ("x", 1, []))
    assert text_of(whole) == "## S\n1,2003 | 24 | x\n7"


def long_text(text: str, *, is_wide: bool) -> bytes:
    """The records of a formula that gives a text of more than a record."""
    data = text.encode("utf-16-le" if is_wide else "latin-1")
    pieces = [data[:8220], *(data[at : at + 8222] for at in range(8220, len(data), 8222))]
    formula = struct.pack("<HHH", 2, 0, 0) + b"\0\0\0\0\0\0\xff\xff" + bytes(6) + b"\0\0"
    first = struct.pack("<HHH", 0x207, len(pieces[0]) + 3, len(text)) + bytes([is_wide]) + pieces[0]
    return (
        struct.pack("<HH", 6, len(formula))
        + formula
        + first
        + b"".join(struct.pack("<HH", 0x3C, len(piece) + 1) + bytes([is_wide]) + piece for piece in pieces[1:])
    )


@pytest.mark.parametrize(("version", "stream"), [(0x600, "Workbook"), (0x500, "Book")])
def test_errors_of_formulas_of_old(version: int, stream: str) -> None:
    codes = {0: "#NULL!", 7: "#DIV/0!", 15: "#VALUE!", 23: "#REF!", 29: "#NAME?", 36: "#NUM!", 42: "#N/A"}
    formulas = b"".join(
        struct.pack("<HH3H", 6, 22, 1, column, 0) + bytes((2, 0, code)) + b"\0\0\0\xff\xff" + bytes(8)
        for column, code in enumerate(codes)
    )
    made = old_workbook({(0, 0): 1.0, (3, 6): 2.0}, formulas, version=version, stream=stream)
    shown = " | ".join(codes.values())
    assert text_of(made) == f"## S\n1\n{shown}\n" + " | " * 6 + "2"


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_long_text_of_a_formula_of_old(is_wide: bool) -> None:
    text = " ".join(f"{number:05}" for number in range(3000))
    cells = {(0, 0): 1.0, (3, 0): 2.0}
    assert text_of(old_workbook(cells, long_text(text, is_wide=is_wide))) == f"## S\n1\n{text}\n2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (lambda: book(errors), "## S\n#N/A | 0\n#DIV/0! | 1\n#REF! | 2"),
        (lambda: book(durations), "## S\n36:00:00\n0:30:00\n100:00:00"),
        (lambda: book(stray(1_048_575, 5)), "## S\nfirst | third\n |  | stray"),
        (lambda: book(stray(19_999, 16_383)), "## S\nfirst | third\n |  | stray"),
        (macros, "## A\nplain\n\n## M\nALERT()"),
        (lambda: locked("VelvetSweatshop"), "## A\ninside"),
        (lambda: in_utf_16("utf-16"), "## A\ngrößer | 1.5"),
        (lambda: in_utf_16("utf-16-be"), "## A\ngrößer | 1.5"),
        (before_release, "## A\none | two\nthree"),
        (binary_before_release, "## S\nfrom 2006"),
        (lambda: binary_stray(1_048_575, 16_383), "## S\nhere\n | far"),
        (lambda: binary_stray(3, 2), "## S\nhere\n |  | far"),
        (binary_scripts, "## S\n1,200³ m | CO₂ | plain 42 | 10⁶"),
        (binary_errors, "## S\n#N/A | #DIV/0! | kept"),
        (without_part, "## A\nx"),
        (merged, "## S\na | b"),
        (scripts, "## S\n1,200³ | CO₂ | 4th | 5³\n[comment A1]: 10⁶"),
        (binary_macros, "## S\nfrom 2006"),
        (twins, "## A\nright"),
        (lambda: old_workbook({(0, 0): 1, (1, 1): 2}), "## S\n1\n | 2"),
        (lambda: old_workbook({(0, 0): 1, (65_535, 0): 3, (65_535, 255): 2}), "## S\n1\n3" + " | " * 255 + "2"),
    ],
    ids=[
        "errors",
        "durations",
        "a stray row",
        "a stray column",
        "macros",
        "no real lock",
        "utf-16",
        "utf-16-be",
        "before release",
        "binary before release",
        "a binary stray cell",
        "a binary cell nearby",
        "binary scripts",
        "binary errors",
        "without part",
        "merged",
        "scripts",
        "binary macro sheets",
        "twins",
        "old",
        "an old stray row",
    ],
)
def test_what_is_in_the_cells(data: Callable[[], bytes], text: str) -> None:
    assert text_of(data()) == text


@pytest.mark.parametrize("lock", [None, bytes.fromhex("2f000400d107ab12"), bytes.fromhex("2f0006000000d107ab12")])
def test_a_lock_is_told_as_one(lock: bytes | None) -> None:
    """The older locks hide the cells behind an exclusive-or; the oldest is not known to the library for locks."""
    with pytest.raises(ExtractionError) as raised:
        text_of(locked("secret") if lock is None else old_workbook({(0, 0): 1.0}, first=lock))
    assert raised.value.code is DocumentProblem.ENCRYPTED


@pytest.mark.slow
def test_a_workbook_that_needs_no_repair_is_left_alone() -> None:
    data = workbook({"A": [[f"cell {row}"] * 20 for row in range(2000)]})
    assert workbook_repair.repaired(data, Package(data)) is data


def test_sheets_that_are_full_far_and_wide_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbook_repair, "MOST_CELLS", 100)
    with pytest.raises(ExtractionError, match="11 rows and 10 columns") as raised:
        text_of(workbook({"A": [["x"] * 10] * 11}))
    assert raised.value.code is DocumentProblem.TOO_LARGE


def test_a_reader_that_panics_takes_nothing_with_it(tmp_path: Path) -> None:
    """A binary workbook that names a sheet which it has not: the library in Rust panics at that."""
    bundle = (
        struct.pack("<BBB", 0x9C, 0x01, 20)
        + struct.pack("<II", 0, 1)
        + struct.pack("<I", 2)
        + "r9".encode("utf-16-le")
    )
    bundle += struct.pack("<I", 0)
    parts = {
        "[Content_Types].xml": b"<Types/>",
        "xl/workbook.bin": b"\x83\x01\x00\x8f\x01\x00" + bundle + b"\x90\x01\x00\x84\x01\x00",
        "xl/_rels/workbook.bin.rels": b"<Relationships/>",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.xlsb").write_bytes(out.getvalue())
    (tmp_path / "in/b.xlsx").write_bytes(workbook({"A": [["fine"]]}))
    bad, good = read(DocumentSource(path="in"), tmp_path)
    assert isinstance(bad, UnreadableDocument)
    assert bad.code is DocumentProblem.UNSUPPORTED
    assert isinstance(good, Document)


def in_a_circle() -> bytes:
    """A workbook of Excel 97-2003 whose list of streams goes on where it begins, and names none that is known."""
    data = bytearray(
        old_workbook({(0, 0): 1.0}).replace("Workbook".encode("utf-16-le"), "Workbonk".encode("utf-16-le"))
    )
    (directory,), (table,) = (struct.unpack_from("<I", data, at) for at in (48, 76))
    struct.pack_into("<I", data, 512 * (1 + table) + 4 * directory, directory)
    return bytes(data)


def far_column() -> bytes:
    """A binary workbook with a damaged number of a column."""
    cells = (binary_record(6, struct.pack("<II", column, 0) + binary_text("a")) for column in (0, 2**31))
    return binary_workbook(b"".join(cells), bytes(8))


@pytest.mark.long
def test_a_reader_that_aborts_takes_nothing_with_it(tmp_path: Path) -> None:
    """For damage the library in Rust asks for more memory than there is, and ends its process at once."""
    bad, good = (far_column(), in_a_circle()), (workbook({"S": [["fine"]]}), old_workbook({(0, 0): 1.0}))
    files = {"a.xlsx": good[0], "b.xlsb": bad[0], "c.xls": good[1], "d.xls": bad[1], "e.xlsb": bad[0]}
    crash = DocumentProblem.READER_CRASHED
    for folder, names in (("one", [*files]), ("two", [*files][::-1])):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            (tmp_path / folder / f"{number}-{name}").write_bytes(files[name])
        found = {one.key.partition("-")[2]: one for one in read(DocumentSource(path=folder), tmp_path)}
        told = {name: one.code if isinstance(one, UnreadableDocument) else one.text for name, one in found.items()}
        assert told == {"a.xlsx": "## S\nfine", "b.xlsb": crash, "c.xls": "## S\n1", "d.xls": crash, "e.xlsb": crash}


NAMES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{about}:1.0"'
    for name, about in (
        ("office", "office"),
        ("table", "table"),
        ("text", "text"),
        ("style", "style"),
        ("draw", "drawing"),
    )
)
CALC = 'xmlns:calc="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"'


def flat(table: str, name: str = "S") -> str:
    """A spreadsheet of OpenDocument as one XML file."""
    hidden = '<style:style style:name="h"><style:table-properties table:display="false"/></style:style>'
    hidden += '<style:style style:name="up"><style:text-properties style:text-position="super 58%"/></style:style>'
    return (
        f'<office:document {NAMES} {CALC} xmlns:dc="http://purl.org/dc/elements/1.1/">{hidden}<office:body>'
        f'<office:spreadsheet><table:table table:name="{name}" table:style-name="{name.lower()}">{table}'
        "</table:table></office:spreadsheet></office:body></office:document>"
    )


def row(*cells: str, repeated: int = 1) -> str:
    return f'<table:table-row table:number-rows-repeated="{repeated}">{"".join(cells)}</table:table-row>'


def cell(about: str = "", text: str = "", more: str = "") -> str:
    return f"<table:table-cell {about}>{more}<text:p>{text}</text:p></table:table-cell>"


WORDS = 'office:value-type="string"'
BY_INES = "<dc:creator>Ines</dc:creator><text:p>Checked</text:p><text:p>twice</text:p>"
NOTE = f"<office:annotation>{BY_INES}</office:annotation>"
DATE = 'office:date-value="2026-03-01T00:00:00"'
BOX = "<table:shapes><draw:frame><draw:text-box><text:p>Draft</text:p></draw:text-box></draw:frame></table:shapes>"


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (row(cell('office:value-type="float" office:value="9100"', "9,100.00"), cell(WORDS, "x")), "9100 | x"),
        (row("\n  ", cell(WORDS, "a"), "\n  ", cell(WORDS, "b"), "\n"), "a | b"),
        (row(cell('office:value-type="string" office:string-value="" calc:value-type="error"', "#N/A")), "#N/A"),
        (row(cell('office:value-type="time" office:time-value="PT36H05M00S"'), cell("", "x")), "36:05:00 | x"),
        (row(cell(DATE)) + row(cell('office:boolean-value="true"')), "2026-03-01\nTRUE"),
        (row(cell(WORDS, "1,200<text:span text:style-name='up'>3</text:span> m")), "1,200³ m"),
        (row(cell(WORDS, "a<text:line-break/>b<text:s text:c='2'/>c")), "a b c"),
        (
            row(cell('table:number-columns-repeated="1"'), cell(WORDS, "x", NOTE)) + BOX,
            " | x\nDraft\n[comment B1]: Ines: Checked twice",
        ),
        (
            row(cell(WORDS, "first")) + row(cell(), repeated=1_048_574) + row(
                '<table:table-cell table:number-columns-repeated="16383"/>', cell(WORDS, "stray")),
            "first\n | stray",
        ),
        (row(cell(f'{WORDS} table:number-columns-repeated="3"', "x"), repeated=2), "x | x | x\nx | x | x"),
    ],
    ids="values indented errors durations dates scripts breaks beside stray repeated".split(),
)  # fmt: skip
def test_what_is_in_sheets_of_opendocument(table: str, text: str) -> None:
    assert text_of(flat(table).encode()) == f"## S\n{text}"
    assert text_of(zipped({"content.xml": flat(table)})) == f"## S\n{text}"  # without a `mimetype`


def test_hidden_and_locked_sheets_of_opendocument() -> None:
    table = row(cell(WORDS, "x"))
    assert text_of(flat(table, "H").encode()) == "## H (hidden)\nx"
    with pytest.raises(ExtractionError) as raised:
        text_of(zipped({"content.xml": flat(table), "META-INF/manifest.xml": "<m:encryption-data/>"}))
    assert raised.value.code is DocumentProblem.ENCRYPTED


def test_sheets_of_opendocument_that_are_full_far_and_wide_are_refused() -> None:
    with pytest.raises(ExtractionError) as raised:
        text_of(flat(row(cell(f'{WORDS} table:number-columns-repeated="99"', "x"), repeated=999_999)).encode())
    assert raised.value.code is DocumentProblem.TOO_LARGE


def test_rows_of_opendocument_have_all_columns(tmp_path: Path) -> None:
    table = row(cell(WORDS, "id"), cell(WORDS, "text"), cell(WORDS, "note")) + row(
        cell(WORDS, "7"), cell(WORDS, "hello")
    )
    (tmp_path / "a.fods").write_text(flat(table))
    [one] = read(DocumentSource(path="a.fods", text_column="text", id_column="id"), tmp_path)
    assert isinstance(one, Document)
    assert (one.key, one.text, one.fields["note"]) == ("a.fods#7", "hello", "")
