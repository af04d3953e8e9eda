"""Files that are not of the kind that their ending names, and old forms of workbooks."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from orchestrator.documents import Document
from orchestrator.settings.job_spec import DocumentSource
from tests.support import office
from tests.support.documents import read
from tests.support.office import packed, workbook
from tests.unit.test_documents_kinds import found_in, told
from tests.unit.test_documents_sheets import old_workbook, text_of

CELLS = "<table><tr><td>1</td><td>Größe</td></tr></table>".encode()
PAGE = b'\n<html xmlns:x="urn:schemas-microsoft-com:office:excel">' + CELLS
SAVED = (
    b"MIME-Version: 1.0\nContent-Type: multipart/related; boundary=x\n\n--x\n"
    b"Content-Type: text/html; charset=utf-8\n\n" + CELLS + b"\n--x--\n"
)
TEXT = "article\tGröße\nRope\t12\n"
BOOK = workbook({"A": [["x"]]})


@pytest.mark.parametrize(
    ("name", "data", "text", "kind"),
    [
        ("a.xls", PAGE, "1 | Größe", "a web page"),
        ("a.xlsx", b"\xef\xbb\xbf<TABLE border=1>" + CELLS, "1 | Größe", "a web page"),
        ("a.doc", PAGE, "1 | Größe", "a web page"),
        ("a.xls", SAVED, "1 | Größe", "a saved web page"),
        ("a.xls", TEXT.encode(), TEXT, "plain text"),
        ("a.doc", TEXT.encode("utf-16"), TEXT, "plain text"),
        ("a.doc", office.RTF, "Price: 40 € for café\nSecond line", ".rtf"),
        ("a.doc", BOOK, "## A\nx", "a workbook"),
        ("a.doc", old_workbook({(0, 0): 1}), "## S\n1", "a workbook"),
        ("a.docx", old_workbook({(0, 0): 1}, version=0x500, stream="Book"), "## S\n1", "a workbook"),
        ("a.pdf", BOOK, "## A\nx", "a workbook"),
        ("a.txt", BOOK, "## A\nx", "a workbook"),
        ("a.html.gz", packed(BOOK, "gz"), "## A\nx", "a workbook"),
        ("notes", BOOK, "## A\nx", "a workbook"),
        ("a.docx", office.open_document("<text:p>Offer</text:p>"), "Offer", "OpenDocument"),
        ("a.pptx", office.calc_sheet([["id"]]), "## Data\nid", "a workbook"),
    ],
)
def test_the_content_tells_the_kind(tmp_path: Path, name: str, data: bytes, text: str, kind: str) -> None:
    [found] = found_in(tmp_path, {name: data}, include="**/*").values()
    assert isinstance(found, Document), found
    assert (found.text, found.notes) == (text, f"as its ending says (it is {kind})")


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.odt", "a.epub"])
@pytest.mark.parametrize("data", [PAGE, b"404 Not Found", b"%PDF-1.7 cut off", b"PK\x03\x04 cut off"])
def test_the_error_page_of_a_download_is_no_document(tmp_path: Path, name: str, data: bytes) -> None:
    assert told(found_in(tmp_path, {name: data})) == {name: "!unreadable"}


@pytest.mark.parametrize("data", [b"\0\1\2" * 99, b"<a>", b'{"rtf": 1}', b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
def test_what_is_no_text_is_not_read_as_one(tmp_path: Path, data: bytes) -> None:
    assert told(found_in(tmp_path, {"a.xls": data})) == {"a.xls": "!unreadable"}


def test_a_template_has_all_fields_of_the_ending(tmp_path: Path) -> None:
    (tmp_path / "a.xls").write_bytes(PAGE)
    [found] = read(DocumentSource(path="a.xls"), tmp_path)
    assert isinstance(found, Document)
    assert (found.fields["sheets"], found.fields["suffix"]) == ("", ".xls")


def xml_book(rows: str, about: str = "") -> bytes:
    """A workbook of Excel 2003 as XML."""
    return (
        '\ufeff<?xml version="1.0"?><?mso-application progid="Excel.Sheet"?><Workbook '
        'xmlns="urn:schemas-microsoft-com:office:spreadsheet" '
        'xmlns:ss="urn:schemas-microsoft-com:office:spreadsheet" xmlns:x="urn:schemas-microsoft-com:office:excel">'
        '<Styles><Style ss:ID="d"><NumberFormat '
        f'ss:Format="[h]:mm:ss"/></Style></Styles><Worksheet ss:Name="S"><Table>{rows}</Table>{about}</Worksheet>'
        "</Workbook>"
    ).encode()


def typed(kind: str, value: str, about: str = "") -> str:
    return f'<Cell {about}><Data ss:Type="{kind}">{value}</Data></Cell>'


RAISED = (
    '<Cell><ss:Data ss:Type="String" xmlns="http://www.w3.org/TR/REC-html40">1,200<Sup>3</Sup> <B>m</B></ss:Data>'
    '<Comment ss:Author="Ines"><ss:Data>Ines: checked</ss:Data></Comment></Cell>'
)


TIMES = (
    typed("DateTime", "2026-03-01T00:00:00.000"),
    typed("DateTime", "1899-12-31T08:30:00"),
    typed("DateTime", "1900-01-01T12:00:00.000", 'ss:StyleID="d"'),
    typed("Error", "#N/A"),
    typed("Boolean", "1"),
)
MERGED = typed("String", "a", 'ss:MergeAcross="1"') + typed("String", "b")
LAST = typed("String", "z", 'ss:Index="16384"')


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (f"<Row>{typed('Number', '9100')}{typed('String', 'Größe &amp; x')}</Row>", "9100 | Größe & x"),
        (f"<Row>{''.join(TIMES)}</Row>", "2026-03-01 | 08:30:00 | 36:00:00 | #N/A | TRUE"),
        (f'<Row ss:Index="3">{MERGED}</Row><Row>{typed("String", "c")}</Row>', "a |  | b\nc"),
        (f"<Row>{RAISED}</Row>", "1,200³ m\n[comment A1]: Ines: checked"),
        (f'<Row>{typed("String", "a")}</Row><Row ss:Index="1048576">{LAST}</Row>', "a\n | z"),
    ],
    ids=["values", "times", "places", "beside", "a stray cell"],
)
def test_what_is_in_a_workbook_of_xml(rows: str, text: str) -> None:
    assert text_of(xml_book(rows)) == f"## S\n{text}"


def test_a_hidden_sheet_of_a_workbook_of_xml() -> None:
    options = "<x:WorksheetOptions><x:Visible>SheetHidden</x:Visible></x:WorksheetOptions>"
    assert text_of(xml_book(f"<Row>{typed('Number', '1')}</Row>", options)) == "## S (hidden)\n1"


def formatted(*formats: bytes) -> bytes:
    """A workbook of Excel 5 with the number 1.5 once for each format."""
    about = [struct.pack("<HB", 164 + number, len(one)) + one for number, one in enumerate(formats)]
    first = b"".join(struct.pack("<HH", 0x41E, len(one)) + one for one in about)
    looks = [struct.pack("<HHHH", 0, 164 + number, 0, 0) + bytes(8) for number in range(len(formats))]
    first += b"".join(struct.pack("<HH", 0xE0, len(one)) + one for one in looks)
    cells = b"".join(struct.pack("<HHHHHd", 0x203, 14, 1, at, at, 1.5) for at in range(len(formats)))
    return old_workbook({(0, 0): 7.0, (3, len(formats)): 2.0}, cells, first, version=0x500, stream="Book")


@pytest.mark.parametrize(
    ("look", "shown"),
    [
        (b"[Red]0.00", "1.5"),
        (b'"DM "0.00', "1.5"),
        (b"\\D0.00", "1.5"),
        (b"[h]:mm:ss", "36:00:00"),
        (b"yyyy-mm-dd hh:mm", "1900-01-01 12:00:00"),
        (b"d/m", "1900-01-01 12:00:00"),
    ],
)
def test_formats_of_excel_5_tell_dates_from_numbers(look: bytes, shown: str) -> None:
    """Formats begin one byte earlier than since Excel 97: read alike, they lose a bracket or quote."""
    lines = text_of(formatted(b"0", look)).splitlines()
    assert lines[2].split(" | ") == ["1.5", shown]


RECORDS = {
    2: (0x09, 0x43, 0x1E, 0x03, 0x04, 0x05, 0x06, 0x07),
    3: (0x209, 0x243, 0x1E, 0x203, 0x204, 0x205, 0x206, 0x207),
    4: (0x409, 0x443, 0x41E, 0x203, 0x204, 0x205, 0x406, 0x207),
}


def excel_4(version: int, page: int = 1252, more: bytes = b"") -> bytes:
    """A sheet of Excel 2, 3 or 4 with a cell of each kind."""
    begin, look, form, number, text, truth, formula, result = RECORDS[version]

    def record(kind: int, data: bytes) -> bytes:
        return struct.pack("<HH", kind, len(data)) + data

    def words(value: bytes, is_long: bool = version > 2) -> bytes:
        return struct.pack("<H" if is_long else "<B", len(value)) + value

    def at(row: int, column: int, of: int = 0) -> bytes:
        return struct.pack("<HHH" if version > 2 else "<HHHx", row, column, of)

    formats = (b"General", b"dd/mm/yyyy", b"[h]:mm", b'[Red]0" days"', b"dd/mm/yyyy hh:mm")
    parts = [record(begin, struct.pack("<HH", version, 0x10)), more, record(0x42, struct.pack("<H", page))]
    parts += [record(form, b"\0\0" * (version == 4) + words(one, is_long=False)) for one in formats]
    for index in range(len(formats)):
        parts.append(record(look, bytes((0, 0, index, 0)) if version == 2 else bytes((0, index)) + bytes(10)))
    parts += [record(text, at(0, 0) + words(b"Gr\x94\xe1e" if page == 850 else b"Gr\xf6\xdfe"))]
    parts += [
        record(number, at(0, column, of) + struct.pack("<d", 36_950.5 if of in (1, 4) else 1.5))
        for column, of in enumerate((0, 4, 2, 3), 1)
    ]
    parts.append(record(number, at(1, 0, 1) + struct.pack("<d", 36_950)))
    parts.append(record(truth, at(1, 1) + b"\1\0") + record(truth, at(1, 2) + b"\x2a\1"))
    parts.append(record(formula, at(1, 3) + struct.pack("<d", 7) + bytes(4)))
    parts.append(record(formula, at(1, 4) + b"\0\0\0\0\0\0\xff\xff" + bytes(4)) + record(result, words(b"given")))
    if version > 2:
        parts.append(record(0x27E, at(2, 0) + struct.pack("<I", 1250 << 2 | 3)))
    else:
        parts.append(record(0x02, at(2, 0) + struct.pack("<H", 12)))
    return b"".join((*parts, record(0x0A, b"")))


@pytest.mark.parametrize("page", [1252, 850])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_is_in_a_workbook_of_before_excel_5(version: int, page: int) -> None:
    last = "12.5" if version > 2 else "12"
    assert text_of(excel_4(version, page)) == (
        f"## Sheet1\nGröße | 1.5 | 2001-02-28 12:00:00 | 36:00:00 | 1.5\n2001-02-28 | TRUE | #N/A | 7 | given\n{last}"
    )


def test_a_locked_workbook_of_before_excel_5_is_told_as_one(tmp_path: Path) -> None:
    lock = excel_4(4, more=struct.pack("<HHI", 0x2F, 4, 1))
    assert told(found_in(tmp_path, {"a.xls": lock, "b.xls": excel_4(3)[:60], "c.doc": excel_4(2)}, include="*")) == {
        "a.xls": "!encrypted",
        "b.xls": "!empty",
        "c.doc": text_of(excel_4(2)),
    }
