"""Write the PDF and Word samples from their texts, and what is in the inbox: `python samples/make.py`.

A source is `sources/<kind>-<name>.txt`: paragraphs between blank lines, `#` and `##` headings, and tables of
lines that begin with `|`. The same source gives the same bytes, so that a second run changes nothing.
"""

from __future__ import annotations

import datetime
import io
import textwrap
import zipfile
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import docx
import xlsxwriter
from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
FORMATS = {
    "contracts-service-agreement": "docx",
    "contracts-supply-agreement": "docx",
    "contracts-office-lease": "pdf",
    "contracts-loan-agreement": "pdf",
    "invoices-printing": "pdf",
    "invoices-freight": "pdf",
    "invoices-architect": "docx",
    "reports-warehouse-outage": "docx",
    "reports-payment-outage": "pdf",
    "reports-quarter-ferries": "pdf",
}
LETTER = """\
Harbour Street Residents
Port Ellis, 9 November 2026

To the Ferry Office

For three weeks the early boat has left before
its time. We ask you to keep to the timetable,
and to answer this letter in writing.

R. Abara, on behalf of 31 residents"""
RECEIPT = """\
WICK & SONS, GLAZIERS
Receipt 2291, 6 November 2026

1 window pane, fitted        184.00
1 call-out                    40.00
Total, paid in cash          224.00"""
CLAIM = """\
From: Ines Marrow <ines@marrow.example>
To: claims@ferries.example
Subject: Broken window on the Tern
Date: Sun, 08 Nov 2026 10:12:00 +0000
Message-ID: <1@marrow.example>

Dear Sir or Madam,

On 5 November a rope of your ferry Tern broke and smashed the window of my shop at Pier 2. The repair cost 224.00, and
the glazier's receipt is attached. Please pay this amount into my account, and confirm it.

Ines Marrow
"""
STOCK: list[list[str | float]] = [
    ["Article", "Unit", "Price"],
    ["Rope, 12 mm", "metre", 2.4],
    ["Rope, 18 mm", "metre", 4.1],
    ["Fender, large", "piece", 61],
    ["Lamp, green", "piece", 27.5],
]
EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
PAGE_LINES = 52
LINE_WIDTH = 92  # characters of Helvetica 10 that surely fit between the margins


def main() -> None:
    for source, suffix in FORMATS.items():
        kind, _, name = source.partition("-")
        blocks = list(blocks_of((HERE / f"sources/{source}.txt").read_text(encoding="utf-8")))
        data = pdf_of(blocks) if suffix == "pdf" else word_of(blocks)
        (HERE / kind / "documents" / f"{name}.{suffix}").write_bytes(data)
    inbox = HERE / "inbox/documents"
    (inbox / "letter.png").write_bytes(scan_of(LETTER))
    (inbox / "stock.xlsx").write_bytes(sheet_of("Prices 2026", STOCK))
    (inbox / "claim.eml").write_bytes(mail_of(CLAIM, {"receipt.png": scan_of(RECEIPT)}))


def scan_of(text: str) -> bytes:
    """A page of print in black and white, as a scanner gives it: without a text."""
    lines = text.split("\n")
    page = Image.new("L", (760, 60 + 40 * len(lines)), 255)
    font = ImageFont.load_default(22)
    for number, line in enumerate(lines):
        ImageDraw.Draw(page).text((40, 30 + 40 * number), line, 0, font)
    out = io.BytesIO()
    page.rotate(0.4, fillcolor=255).convert("1").save(out, "PNG", optimize=True)
    return out.getvalue()


def sheet_of(name: str, rows: list[list[str | float]]) -> bytes:
    out = io.BytesIO()
    with xlsxwriter.Workbook(out, {"in_memory": True}) as book:
        book.set_properties({"author": "orch samples", "created": EPOCH.replace(tzinfo=None)})
        sheet = book.add_worksheet(name)
        for number, row in enumerate(rows):
            sheet.write_row(number, 0, row)
    return out.getvalue()


def mail_of(text: str, attached: dict[str, bytes]) -> bytes:
    mail = EmailMessage()
    head, _, body = text.partition("\n\n")
    for line in head.split("\n"):
        name, _, value = line.partition(": ")
        mail[name] = value
    mail.set_content(body)
    for name, data in attached.items():
        mail.add_attachment(data, maintype="image", subtype="png", filename=name)
    mail.set_boundary("=-orch-samples")
    return mail.as_bytes()


def blocks_of(text: str) -> Iterator[list[str]]:
    """Paragraphs, headings and tables as lists of lines."""
    for block in text.strip().split("\n\n"):
        yield block.split("\n")


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("| ").split("|")]


def word_of(blocks: list[list[str]]) -> bytes:
    document = docx.Document()
    document.core_properties.created = document.core_properties.modified = EPOCH
    document.core_properties.author = "orch samples"
    for lines in blocks:
        if lines[0].startswith("|"):
            rows = [cells_of(line) for line in lines]
            table = document.add_table(rows=0, cols=len(rows[0]), style="Table Grid")
            for row in rows:
                for cell, text in zip(table.add_row().cells, row, strict=True):
                    cell.text = text
        elif lines[0].startswith("#"):
            marks, _, text = lines[0].partition(" ")
            document.add_heading(text, len(marks))
        else:
            document.add_paragraph("\n".join(lines))
    return same_every_time(document)


def same_every_time(document: docx.document.Document) -> bytes:
    """The package with fixed times, which python-docx takes from the clock."""
    raw, out = io.BytesIO(), io.BytesIO()
    document.save(raw)
    with zipfile.ZipFile(raw) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name, EPOCH.timetuple()[:6]), old.read(name), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def pdf_of(blocks: list[list[str]]) -> bytes:
    lines = [line for block in blocks for line in (*typeset(block), ("F1", 10, ""))]
    pages = [lines[i : i + PAGE_LINES] for i in range(0, len(lines), PAGE_LINES)]
    kids = b" ".join(b"%d 0 R" % (5 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
    ]
    for i, page in enumerate(pages):
        fonts = b"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >>"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] %s /Contents %d 0 R >>" % (fonts, 6 + 2 * i)
        )
        stream = b"BT 14 TL 60 780 Td\n" + b"\n".join(shown(*line) for line in page) + b"\nET"
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    return assembled(objects)


def typeset(block: list[str]) -> Iterator[tuple[str, int, str]]:
    """(font, size, text) for each line."""
    if block[0].startswith("#"):
        marks, _, text = block[0].partition(" ")
        yield "F2", 14 if len(marks) == 1 else 11, text
    elif block[0].startswith("|"):
        for row in block:
            yield "F1", 10, "    ".join(cells_of(row))
    else:
        for line in block:
            for piece in textwrap.wrap(line, LINE_WIDTH, break_on_hyphens=False):
                yield "F1", 10, piece


def shown(font: str, size: int, text: str) -> bytes:
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").encode("cp1252")
    return b"/%s %d Tf (%s) Tj T*" % (font.encode(), size, escaped)


def assembled(objects: list[bytes]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1) + b"".join(places)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, len(out))
    return out + table + end


if __name__ == "__main__":
    main()
