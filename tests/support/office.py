"""Real-looking files of every kind that is read, made as the programs make them that people save them with."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

import pptx
import pyarrow as pa
import xlsxwriter
from docx import Document as WordDocument

_ODF = (
    " ".join(
        f'xmlns:{prefix}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for prefix, name in (
            ("office", "office"),
            ("text", "text"),
            ("table", "table"),
            ("style", "style"),
            ("draw", "drawing"),
            ("presentation", "presentation"),
        )
    )
    + ' xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xlink="http://www.w3.org/1999/xlink"'
)


def presentation() -> bytes:
    """Two slides: a title with levels of text and notes; a table."""
    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[1])
    first.shapes.title.text = "Heat pumps in Leeds"
    frame = first.placeholders[1].text_frame
    frame.text = "Costs fell by 12 %"
    deeper = frame.add_paragraph()
    deeper.text, deeper.level = "mostly installation", 1
    first.notes_slide.notes_text_frame.text = "Mention the grant."
    second = deck.slides.add_slide(deck.slide_layouts[5])
    second.shapes.title.text = "Figures"
    table = second.shapes.add_table(2, 2, 0, 0, 999, 999).table
    for place, text in enumerate(("year", "units", "2025", "1,204")):
        table.cell(place // 2, place % 2).text = text
    box = second.shapes.add_textbox(0, 0, 999, 999)
    box.text_frame.text = "Source: city council"
    return _saved(deck)


def workbook(sheets: dict[str, list[list[Any]]]) -> bytes:
    """An Excel workbook."""
    out = io.BytesIO()
    book = xlsxwriter.Workbook(out, {"in_memory": True})
    for name, rows in sheets.items():
        sheet = book.add_worksheet(name)
        for at, row in enumerate(rows):
            for column, value in enumerate(row):
                sheet.write(at, column, value)
    book.close()
    return out.getvalue()


def open_document(body: str, *, kind: str = "text", styles: str = "", objects: dict[str, str] | None = None) -> bytes:
    """An OpenDocument file of this body; `styles` are automatic styles, `objects` its embedded parts by name."""
    content = (
        f"<office:document-content {_ODF}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    mimetype = f"application/vnd.oasis.opendocument.{kind}"
    manifest = (
        '<m:manifest xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">'
        f'<m:file-entry m:full-path="/" m:media-type="{mimetype}"/></m:manifest>'
    )
    entries = {"mimetype": mimetype, "META-INF/manifest.xml": manifest, "content.xml": content}
    return zipped(entries | {f"{name}/content.xml": part for name, part in (objects or {}).items()})


def flat_open_document(body: str) -> bytes:
    """An OpenDocument text of this body as one XML file."""
    inner = f"<office:body><office:text>{body}</office:text></office:body>"
    return f"<office:document {_ODF}>{inner}</office:document>".encode()


def open_chart(*rows: tuple[str, ...], title: str = "") -> str:
    """A chart as LibreOffice embeds it, with its data in a table of its own."""
    cells = "".join(
        "<table:table-row>"
        + "".join(f"<table:table-cell><text:p>{value}</text:p></table:table-cell>" for value in row)
        + "</table:table-row>"
        for row in rows
    )
    heading = f"<chart:title><text:p>{title}</text:p></chart:title>" if title else ""
    return (
        f'<office:document-content {_ODF} xmlns:chart="urn:oasis:names:tc:opendocument:xmlns:chart:1.0">'
        f"<office:body><office:chart><chart:chart>{heading}<chart:plot-area/>"
        f'<table:table table:name="local-table">{cells}</table:table></chart:chart></office:chart></office:body>'
        "</office:document-content>"
    )


def open_formula(mathml: str) -> str:
    """A formula as LibreOffice embeds it: MathML, and the same in its own language."""
    annotation = '<annotation encoding="StarMath 5.0">its own words</annotation>'
    return (
        '<math xmlns="http://www.w3.org/1998/Math/MathML">'
        f"<semantics><mrow>{mathml}</mrow>{annotation}</semantics></math>"
    )


def framed(name: str) -> str:
    """An embedded object, with the picture that shows it."""
    return (
        f'<draw:frame><draw:object xlink:href="./{name}"/><draw:image xlink:href="./ObjectReplacements/{name}"/>'
        "</draw:frame>"
    )


def letter() -> bytes:
    """A text document with a heading, a numbered list in two levels, a note, a comment, a table and a deletion."""
    styles = (
        '<text:list-style style:name="L1">'
        '<text:list-level-style-number text:level="1" style:num-format="1" style:num-suffix="."/>'
        '<text:list-level-style-number text:level="2" style:num-format="a" style:num-suffix=")"/>'
        "</text:list-style>"
    )
    body = (
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion>"
        "</text:changed-region></text:tracked-changes>"
        '<text:h text:outline-level="1">Offer</text:h>'
        "<text:p>Dear<text:s text:c='2'/>Ms Okafor,<text:line-break/>we offer"
        "<text:note text:note-class='footnote'><text:note-citation>1</text:note-citation><text:note-body>"
        "<text:p>Until May.</text:p></text:note-body></text:note> this"
        "<office:annotation><dc:creator>Jo</dc:creator><text:p>Check!</text:p></office:annotation>:</text:p>"
        '<text:list text:style-name="L1"><text:list-item><text:p>Boiler</text:p><text:list><text:list-item>'
        "<text:p>removed</text:p></text:list-item><text:list-item><text:p>recycled</text:p></text:list-item>"
        "</text:list></text:list-item><text:list-item><text:p>Pump</text:p></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>net</text:p></table:table-cell>"
        "<table:table-cell><text:p>9,100</text:p></table:table-cell>"
        '<table:table-cell table:number-columns-repeated="16384"/></table:table-row></table:table>'
    )
    return open_document(body, styles=styles)


def calc_sheet(rows: list[list[str]]) -> bytes:
    """An OpenDocument spreadsheet with one sheet, `Data`."""
    cells = "".join(
        "<table:table-row>"
        + "".join(
            f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>' for cell in row
        )
        + "</table:table-row>"
        for row in rows
    )
    return open_document(f'<table:table table:name="Data">{cells}</table:table>', kind="spreadsheet")


def book(more: str = "", **parts: str) -> bytes:
    """An EPUB book of two chapters, stored in another order than they are read in."""
    opf = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<dc:title>Field Notes</dc:title></metadata><manifest>"
        '<item id="b" href="b%20two.xhtml" media-type="application/xhtml+xml"/>'
        '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/>'
        f'<item id="c" href="c.css" media-type="text/css"/></manifest><spine><itemref idref="a"/>{more}'
        '<itemref idref="b"/></spine></package>'
    )
    page = "<html><head><title>x</title></head><body><h1>{}</h1><p>{}</p></body></html>"
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container><rootfile full-path="OEBPS/p.opf"/></container>',
            "OEBPS/p.opf": opf,
            "OEBPS/b two.xhtml": page.format("Two", "The river rose."),
            "OEBPS/a.xhtml": page.format("One", "It was dry."),
            **parts,
        }
    )


RTF = (
    rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Calibri;}}{\*\generator Word}\f0 Price: 40 \'80 for caf\'e9\par "
    rb"Second \b line\b0\par}"
)


def mail(subject: str = "Offer for March", *attached: tuple[str, bytes, str], html: bool = False) -> bytes:
    """A mail with attachments: (name, data, type)."""
    message = EmailMessage(policy=SMTP)
    message["From"], message["To"] = "Ada Grün <ada@example.org>", "ben@example.org"
    message["Date"], message["Subject"] = "Mon, 02 Mar 2026 09:15:00 +0100", subject
    message.set_content("Dear Ben,\n\nplease find the offer attached – 40 €.\n")
    if html:
        message.add_alternative("<p>Dear <b>Ben</b></p>", subtype="html")
    for name, data, kind in attached:
        main, _, sub = kind.partition("/")
        message.add_attachment(data, maintype=main, subtype=sub, filename=name)
    return message.as_bytes()


def mailbox(*mails: bytes) -> bytes:
    """An mbox file."""
    escaped = [one.replace(b"\r\n", b"\n").replace(b"\nFrom ", b"\n>From ") for one in mails]
    return b"".join(b"From ada@example.org Mon Mar  2 09:15:00 2026\n" + one + b"\n\n" for one in escaped)


def word_report() -> bytes:
    """A Word document with headings, numbered and bulleted lists in the styles that Word has for them, a comment."""
    document = WordDocument()
    document.add_heading("Report", 0)
    document.add_heading("Findings", 2)
    for text in ("first", "second"):
        document.add_paragraph(text, style="List Number")
    document.add_paragraph("aside", style="List Bullet")
    commented = document.add_paragraph("The total is wrong.")
    document.add_comment(commented.runs, "Which total?", author="Ines")
    return _saved(document)


def zipped(entries: dict[str, Any]) -> bytes:
    """A ZIP archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(entries: dict[str, bytes], packing: str = "") -> bytes:
    """A TAR archive, as `tar -cf` and `tar -czf` make it; a value of None is a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in entries.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return packed(out.getvalue(), packing) if packing else out.getvalue()


def packed(data: bytes, packing: str) -> bytes:
    """As gzip, bzip2, xz and zstd pack it."""
    if packing == "zst":
        out: bytes = pa.compress(data, codec="zstd", asbytes=True)
        return out
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[packing](data)


def outlook(subject: str, body: str, sender: str, *attached: tuple[str, bytes]) -> bytes:
    """A mail as Outlook saves it."""
    root: dict[str, Any] = _properties(
        {0x0037: subject, 0x1000: body, 0x0C1F: sender, 0x001A: "IPM.Note"}, 32, len(attached)
    )
    for number, (name, data) in enumerate(attached):
        inside = _properties({0x3707: name, 0x3701: data}, 8)
        root[f"__attach_version1.0_#{number:08X}"] = inside
    return compound(root)


def _properties(values: dict[int, str | bytes], head: int, attachments: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    table = bytes(16) + struct.pack("<II", 0, attachments) + bytes(head - 24) if head > 8 else bytes(8)
    for ident, value in values.items():
        kind = 0x1F if isinstance(value, str) else 0x102
        data = value.encode("utf-16-le") if isinstance(value, str) else value
        found[f"__substg1.0_{ident:04X}{kind:04X}"] = data
        table += struct.pack("<HHIII", kind, ident, 6, len(data) + (2 if kind == 0x1F else 0), 0)
    found["__properties_version1.0"] = table
    return found


def compound(root: dict[str, Any]) -> bytes:
    """An OLE compound file: streams are bytes, storages are dicts."""
    entries: list[list[Any]] = []  # name, type, child, sibling, data

    def add(name: str, value: Any) -> int:
        here = len(entries)
        entries.append(
            [name, 2 if isinstance(value, bytes) else 1, -1, -1, value if isinstance(value, bytes) else b""]
        )
        if not isinstance(value, bytes):
            before = -1
            for inner, inside in value.items():
                at = add(inner, inside)
                if before < 0:
                    entries[here][2] = at
                else:
                    entries[before][3] = at
                before = at
        return here

    add("Root Entry", root)
    entries[0][1] = 5
    big, small = _Sectors(512), _Sectors(64)
    starts = [(small if len(data) < 4096 else big).store(data) if data else -2 for *_, data in entries]
    starts[0] = big.store(small.data) if small.data else -2
    entries[0][4] = small.data
    folder = b""
    for (name, kind, child, sibling, data), start in zip(entries, starts, strict=True):
        wide = name.encode("utf-16-le")
        folder += wide.ljust(64, b"\0") + struct.pack("<HBB", len(wide) + 2, kind, 1)
        folder += struct.pack("<iii", -1, sibling, child) + bytes(36) + struct.pack("<iQ", start, len(data))
    folder += (bytes(68) + struct.pack("<iii", -1, -1, -1) + bytes(48)) * (-(len(folder) // 128) % 4)
    first_folder = big.store(folder)
    small_table = big.store(small.table()) if small.chain else -2
    small_count = -(-len(small.chain) // 128)
    fat_first = len(big.chain)
    fat_count = -(-(fat_first + 1) // 127)
    big.chain.extend([-3] * fat_count)
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    head += struct.pack("<IIiIIiIiI", 0, fat_count, first_folder, 0, 4096, small_table, small_count, -2, 0)
    places = [*range(fat_first, fat_first + fat_count)]
    head += struct.pack("<109i", *places, *[-1] * (109 - fat_count))
    return head + big.data + big.table()


class _Sectors:
    """Sectors of a compound file, and which one follows which."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = b""
        self.chain: list[int] = []

    def store(self, data: bytes) -> int:
        first, count = len(self.chain), -(-len(data) // self.size)
        self.data += data.ljust(count * self.size, b"\0")
        self.chain += [*range(first + 1, first + count), -2]
        return first

    def table(self) -> bytes:
        return struct.pack(f"<{len(self.chain)}i", *self.chain).ljust(-(-len(self.chain) // 128) * 512, b"\xff")


def _saved(document: Any) -> bytes:
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()
