"""Office documents, mail, archives and packed files: what comes out of each, and that nothing is lost of it."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msoffcrypto.format.ooxml
import pytest

from orchestrator.documents import Document, DocumentProblem, Ignored, UnreadableDocument, worker_functions
from orchestrator.documents.tables import TableFile
from orchestrator.settings.job_spec import DocumentSource
from tests.support import bombs, office
from tests.support.documents import fields_of, read
from tests.support.office import mail, packed, tarred, workbook, zipped

ROWS = [["id", "text", "price"], ["a", "Boiler", 12.5], ["b", "Pump", 9100.0]]
MAIL_TEXT = (
    "From: Ada Grün <ada@example.org>\nTo: ben@example.org\nDate: Mon, 02 Mar 2026 09:15:00 +0100\n"
    "Subject: Offer for March\n\nDear Ben,\n\nplease find the offer attached – 40 €."
)


def found_in(
    base: Path, files: dict[str, bytes], ignored: Ignored | None = None, **settings: Any
) -> dict[str, Document | UnreadableDocument]:
    """What is read of these files, by the end of its key."""
    for name, data in files.items():
        (base / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (base / "in" / name).write_bytes(data)
    found = list(read(DocumentSource.model_validate({"path": "in", **settings}), base, ignored))
    keys = [one.key.removeprefix("in/") for one in found]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, found, strict=True))


def told(found: dict[str, Document | UnreadableDocument]) -> dict[str, str]:
    """Text, or code."""
    return {key: one.text if isinstance(one, Document) else f"!{one.code}" for key, one in found.items()}


@pytest.mark.parametrize(
    ("name", "make", "text"),
    [
        (
            "deck.pptx",
            office.presentation,
            "# Heat pumps in Leeds\n- Costs fell by 12 %\n  - mostly installation\n\nNotes:\nMention the grant."
            "\n\f# Figures\nyear | units\n2025 | 1,204\nSource: city council",
        ),
        (
            "letter.odt",
            office.letter,
            "# Offer\nDear  Ms Okafor,\nwe offer[^1] this[comment 1]:\n1. Boiler\n  a) removed\n  b) recycled\n"
            "2. Pump\nnet | 9,100\n[^1]: Until May.\n[comment 1]: Check!",
        ),
        (
            "deck.odp",
            lambda: office.open_document(
                "".join(
                    f'<draw:page draw:master-page-name="m"><text:p>{text}</text:p><presentation:notes><text:p>'
                    f"say {text}</text:p></presentation:notes></draw:page>"
                    for text in ("One", "Two")
                ),
                kind="presentation",
            ),
            "One\nNotes:\nsay One\n\fTwo\nNotes:\nsay Two",
        ),
        ("book.epub", office.book, "One\n\nIt was dry.\n\fTwo\n\nThe river rose."),
        ("note.rtf", lambda: office.RTF, "Price: 40 € for café\nSecond line"),
        (
            "prices.xlsx",
            lambda: workbook({"Prices": ROWS, "Empty": [], "More": [["note"], ["x\ny"]]}),
            "## Prices\nid | text | price\na | Boiler | 12.5\nb | Pump | 9100\n\n## More\nnote\nx y",
        ),
        (
            "prices.ods",
            lambda: office.calc_sheet([["id", "text", "price"], ["a", "b", "c"]]),
            "## Data\nid | text | price\na | b | c",
        ),
        (
            "report.docx",
            office.word_report,
            "# Report\n## Findings\n1. first\n2. second\n- aside\nThe total is wrong.[comment 1]\n"
            "[comment 1]: Ines: Which total?",
        ),
        ("a.txt.gz", lambda: packed("Größe".encode(), "gz"), "Größe"),
        ("a.md.zst", lambda: packed(b"# a", "zst"), "# a"),
        ("a.html.xz", lambda: packed(b"<p>a", "xz"), "a"),
        ("deck.pptx.bz2", lambda: packed(b"no deck", "bz2"), "!unreadable"),
    ],
)
def test_what_a_document_says(tmp_path: Path, name: str, make: Callable[[], bytes], text: str) -> None:
    assert told(found_in(tmp_path, {name: make()})) == {name: text}


def test_a_mail_and_its_attachments_are_documents_of_their_own(tmp_path: Path) -> None:
    inner = mail("Forwarded", ("deep.txt", b"deep", "text/plain"))
    data = mail(
        "Offer for March",
        ("offer.docx", bombs.word("<w:p><w:r><w:t>12,000</w:t></w:r></w:p>"), "application/octet-stream"),
        ("offer.docx", bombs.word("<w:p><w:r><w:t>13,000</w:t></w:r></w:p>"), "application/octet-stream"),
        ("../../etc/passwd", b"root", "text/plain"),
        ("logo.png", b"\x89PNG", "image/png"),
        ("fwd.eml", inner, "application/octet-stream"),
        ("", b"a,b", "text/csv"),
        html=True,
    )
    ignored = Ignored()
    found = found_in(tmp_path, {"a.eml": data}, ignored)
    assert told(found) == {
        "a.eml#message": MAIL_TEXT,
        "a.eml#offer.docx": "12,000",
        "a.eml#offer.docx'": "13,000",
        "a.eml#passwd.txt": "root",
        "a.eml#fwd.eml#message": MAIL_TEXT.replace("Offer for March", "Forwarded"),
        "a.eml#fwd.eml#deep.txt": "deep",
        "a.eml#part-6.csv": "!no_text_column",
    }
    offer = found["a.eml#offer.docx"]
    assert isinstance(offer, Document)
    assert {name: offer.fields[name] for name in ("name", "inside", "subject", "sender", "date")} == {
        "name": "offer.docx",
        "inside": "a.eml",
        "subject": "Offer for March",
        "sender": "Ada Grün <ada@example.org>",
        "date": "2026-03-02T09:15:00+01:00",
    }
    assert ignored.to_json()["kinds"] == {".png": 1}
    assert {"subject", "inside", "text_column"} & (fields_of(DocumentSource(path="in"), tmp_path) or set()) == {
        "subject",
        "inside",
    }


def test_a_mailbox_gives_each_mail(tmp_path: Path) -> None:
    mails = office.mailbox(
        mail("One"), mail("Two", ("a.txt", b"From here\n\nFrom there", "text/plain")), b"Subject: Three\n\nFrom x\n"
    )
    found = told(found_in(tmp_path, {"box.mbox": mails}))
    assert list(found) == ["box.mbox#1#message", "box.mbox#2#message", "box.mbox#2#a.txt", "box.mbox#3#message"]
    assert found["box.mbox#2#a.txt"] == "From here\n\nFrom there"
    assert found["box.mbox#3#message"] == "Subject: Three\n\nFrom x"


def test_a_mail_of_outlook(tmp_path: Path) -> None:
    data = office.outlook("Invoice", "Please pay.", "ada@example.org", ("inv.txt", b"40 EUR"), ("x.exe", b"MZ"))
    assert told(found_in(tmp_path, {"a.msg": data})) == {
        "a.msg#message": "From: <ada@example.org>\nSubject: Invoice\n\nPlease pay.",
        "a.msg#inv.txt": "40 EUR",
    }


@pytest.mark.parametrize(
    ("declared", "text"), [("iso-2022-jp", "契約書です"), ("cp1252", "Größe"), ("no-such", "Größe")]
)
def test_a_mail_is_read_in_the_encoding_that_it_names(tmp_path: Path, declared: str, text: str) -> None:
    body = text.encode("utf-8" if declared == "no-such" else declared)
    data = (
        f"Subject: x\nContent-Type: text/plain; charset={declared}\nContent-Transfer-Encoding: 8bit\n\n".encode()
        + body
    )
    assert told(found_in(tmp_path, {"a.eml": data})) == {"a.eml#message": f"Subject: x\n\n{text}"}


@pytest.mark.parametrize(
    "name", ["p.zip", "p.tar", "p.tgz", "p.tar.gz", "p.tar.bz2", "p.tar.xz", "p.tar.zst", "p.zip.gz"]
)
def test_an_archive_gives_what_is_in_it(tmp_path: Path, name: str) -> None:
    entries = {
        "in/a.txt": b"alpha",
        "t.csv": b"id,text\nx,one\ny,two\n",
        "inner.zip": zipped({"b.html": "<p>beta"}),
        "c.jsonl.gz": packed(b'{"id":1,"text":"uno"}\n', "gz"),
        "__MACOSX/in/._a.txt": b"\0",
        "photo.heic": b"x",
        "../up.txt": b"gamma",
    }
    packing = {"p.tgz": "gz", "p.zip.gz": "gz"}.get(name) or (name.rpartition(".")[2] if name.count(".") > 1 else "")
    if name.startswith("p.zip"):
        data = packed(zipped(entries), packing) if packing else zipped(entries)
    else:
        data = tarred(entries, packing)
    ignored = Ignored()
    assert told(found_in(tmp_path, {name: data}, ignored, text_column="text", id_column="id")) == {
        f"{name}#in/a.txt": "alpha",
        f"{name}#t.csv#x": "one",
        f"{name}#t.csv#y": "two",
        f"{name}#inner.zip#b.html": "beta",
        f"{name}#c.jsonl.gz#1": "uno",
        f"{name}#../up.txt": "gamma",
    }
    assert ignored.to_json() == {**Ignored().to_json(), "total": 1, "kinds": {".heic": 1}}


def test_a_link_in_a_zip_archive_is_no_document(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("b.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    out, ignored = io.BytesIO(), Ignored()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "alpha")
        archive.writestr(link, "a.txt")
    assert told(found_in(tmp_path, {"p.zip": out.getvalue()}, ignored)) == {"p.zip#a.txt": "alpha"}
    assert ignored.to_json()["links"] == 1


def test_a_sample_of_an_archive_is_what_it_would_be_of_a_folder(tmp_path: Path) -> None:
    entries = {f"{n}.txt": f"text {n}" for n in range(20)}
    few = told(found_in(tmp_path, {"p.zip": zipped(entries)}, sample=5))
    more = told(found_in(tmp_path, {}, sample=9))
    assert len(few) == 5
    assert len(more) == 9
    assert few.items() <= more.items()


@pytest.mark.parametrize("name", ["t.xlsx", "t.ods", "t.csv.gz", "t.jsonl.zst", "t.xlsx.gz"])
def test_tables_give_rows_however_they_are_packed(tmp_path: Path, name: str) -> None:
    rows = [["Prices of 2026"], ["id", "text"], ["a", "Boiler"], ["", ""], ["b", "Pump"]]
    data = {
        "t.xlsx": lambda: workbook({"Notes": [["nothing here"]], "P": rows}),
        "t.ods": lambda: office.calc_sheet(rows),
        "t.csv.gz": lambda: packed(b"id,text\na,Boiler\n,\nb,Pump\n", "gz"),
        "t.jsonl.zst": lambda: packed(b'{"id":"a","text":"Boiler"}\n\n{"id":"b","text":"Pump"}\n', "zst"),
        "t.xlsx.gz": lambda: packed(workbook({"P": rows}), "gz"),
    }[name]()
    found = told(found_in(tmp_path, {name: data}, text_column="text", id_column="id"))
    assert found == {f"{name}#a": "Boiler", f"{name}#b": "Pump"}


def test_rows_of_sheets_go_by_sheet_and_row(tmp_path: Path) -> None:
    data = workbook({"A": [["text"], ["one"], [""], ["two"]], "B": [["x", "text"], [1, "three"]]})
    found = told(found_in(tmp_path, {"t.xlsx": data}, text_column="text"))
    assert found == {"t.xlsx#A!2": "one", "t.xlsx#A!4": "two", "t.xlsx#B!2": "three"}


LIST = (
    '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/>'
    '<w:lvlText w:val="§ %1"/></w:lvl><w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/>'
    '<w:lvlText w:val="%1.%2)"/></w:lvl><w:lvl w:ilvl="2"><w:start w:val="3"/><w:numFmt w:val="upperRoman"/>'
    '<w:lvlText w:val="(%3)"/></w:lvl></w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="7"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/>'
    "</w:lvlOverride></w:num>"
)


def item(level: int, text: str, number: int = 1) -> str:
    return (
        f'<w:p><w:pPr><w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr></w:pPr>'
        f"<w:r><w:t>{text}</w:t></w:r></w:p>"
    )


def test_clauses_keep_their_numbers(tmp_path: Path) -> None:
    body = "".join(
        (item(0, "Term"), item(1, "start"), item(1, "end"), item(2, "leap years"), item(0, "Price"), item(1, "rent"))
    )
    body += item(0, "Annex", 2) + item(0, "plain", 0) + '<w:p><w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:p>'
    body += '<w:p><w:r><w:t>see</w:t><w:footnoteReference w:id="9"/><w:endnoteReference w:id="2"/></w:r></w:p>'
    data = bombs.word(
        body,
        numbering=f"<w:hdr>{LIST}</w:hdr>",
        footnotes='<w:hdr><w:footnote w:id="9"><w:p><w:r><w:t>below</w:t></w:r></w:p></w:footnote></w:hdr>',
        endnotes='<w:hdr><w:endnote w:id="2"><w:p><w:r><w:t>last</w:t></w:r></w:p></w:endnote></w:hdr>',
    )
    assert told(found_in(tmp_path, {"a.docx": data}))["a.docx"].split("\n") == [
        "§ 1 Term",
        "  1.a) start",
        "  1.b) end",
        "    (III) leap years",
        "§ 2 Price",
        "  2.a) rent",
        "§ 5 Annex",
        "plain",
        "",
        "see[^1][^e1]",
        "[^1]: below",
        "[^e1]: last",
    ]


def locked_zip() -> bytes:
    data = bytearray(zipped({"a.txt": b"secret"}))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    return bytes(data)


def matryoshka(depth: int) -> bytes:
    data = zipped({"a.txt": "core"})
    for _ in range(depth):
        data = zipped({"a.zip": data})
    return data


P = DocumentProblem


def locked_office(data: bytes) -> bytes:
    out = io.BytesIO()
    msoffcrypto.format.ooxml.OOXMLFile(io.BytesIO(data)).encrypt("secret", out)
    return out.getvalue()


def test_an_archive_that_unpacks_to_far_more_than_it_is_ends_there(tmp_path: Path) -> None:
    inner = zipped({"a.txt": "x" * 1_000_000})
    (tmp_path / "p.zip").write_bytes(zipped({f"{n}.zip": inner for n in range(20)} | {"z.txt": "last"}))
    file = TableFile(
        str(tmp_path / "p.zip"), "zip", "p.zip", "p.zip", None, None, None, 50_000_000, max_unpacked=3_000_000
    )
    (*whole, last) = [
        found for batch in worker_functions.parts(file, None, 0, None) for found in batch if len(found) > 3
    ]
    assert [found[0] for found in whole] == [f"p.zip#{n}.zip#a.txt" for n in range(len(whole))]
    assert len(whole) in (3, 4)
    assert (last[0], last[2]) == ("p.zip", "too_large")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "codes"),
    [
        ("a.zip", lambda: b"PK\x03\x04 nothing", [P.UNREADABLE]),
        ("a.zip", lambda: zipped({}), [P.EMPTY]),
        ("a.zip", locked_zip, [P.ENCRYPTED]),
        ("a.zip", lambda: matryoshka(9), [P.TOO_LARGE]),
        ("a.zip", lambda: zipped({"a.txt": b"\0" * 60_000_000, "b.txt": b"ok"}), [P.TOO_LARGE, None]),
        ("a.tar", lambda: b"nothing" * 100, [P.UNREADABLE]),
        ("a.tar", lambda: tarred({"a.txt": b"x" * 5000})[:3000], [P.UNREADABLE, P.UNREADABLE]),
        ("a.tar.gz", lambda: tarred({"a.txt": bytes(range(256)) * 99}, "gz")[:300], [P.UNREADABLE]),
        ("a.txt.gz", lambda: packed(b"x" * 60_000_000, "gz"), [P.TOO_LARGE]),
        ("a.txt.zst", lambda: packed(b"x" * 60_000_000, "zst"), [P.TOO_LARGE]),
        ("a.txt.gz", lambda: b"\x1f\x8bno", [P.UNREADABLE]),
        ("a.txt.zst", lambda: b"no", [P.UNREADABLE]),
        ("a.txt.xz", lambda: packed(b"alpha" * 99, "xz")[:-9], [P.UNREADABLE]),
        ("a.eml", lambda: b"", [P.EMPTY]),
        ("a.mbox", lambda: b"no mail", [P.UNREADABLE]),
        ("a.msg", lambda: b"no mail", [P.UNREADABLE]),
        ("a.rtf", lambda: b"no rtf", [P.UNREADABLE]),
        ("a.epub", lambda: zipped({"x": "y"}), [P.UNREADABLE]),
        ("a.epub", lambda: office.book('<itemref idref="missing"/>'), [None]),
        ("a.odt", lambda: office.open_document("<text:p>" * 3), [P.UNREADABLE]),
        ("a.odt", lambda: zipped({"META-INF/manifest.xml": "<m:encryption-data/>"}), [P.ENCRYPTED]),
        ("a.odt", lambda: office.open_document("<text:p/>"), [P.EMPTY]),
        ("a.odt", lambda: office.open_document("<text:s text:c='999999999'/>" * 3), [P.EMPTY]),
        ("a.pptx", lambda: zipped({"x": "y"}), [P.UNREADABLE]),
        ("a.docx", lambda: locked_office(office.word_report()), [P.ENCRYPTED]),
        ("a.pptx", lambda: locked_office(office.presentation()), [P.ENCRYPTED]),
        ("a.ods", lambda: zipped({"META-INF/manifest.xml": "<m:encryption-data/>"}), [P.ENCRYPTED]),
        ("a.odp", lambda: zipped({"META-INF/manifest.xml": "<m:encryption-data/>"}), [P.ENCRYPTED]),
        ("a.xlsx", lambda: b"PK\x03\x04 nothing", [P.UNREADABLE]),
        ("a.xlsx", lambda: workbook({"A": []}), [P.EMPTY]),
        ("a.xlsx", lambda: zipped({"xl/workbook.xml": " " * 60_000_000}), [P.TOO_LARGE]),
        ("a.xls", lambda: office.compound({"EncryptedPackage": b"x" * 5000}), [P.ENCRYPTED]),
        ("a.xls", lambda: b"\xd0\xcf\x11\xe0", [P.UNREADABLE]),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path, name: str, make: Callable[[], bytes], codes: list[DocumentProblem | None]
) -> None:
    found = found_in(tmp_path, {name: make()})
    assert [one.code if isinstance(one, UnreadableDocument) else None for one in found.values()] == codes
