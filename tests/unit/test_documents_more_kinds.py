"""The same formats under other names, kinds that are read only where they are chosen, 7z archives, and secrets."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import py7zr
import pytest

from orchestrator.core.errors import InputError
from orchestrator.documents import Document, Ignored
from orchestrator.settings.job_spec import DocumentSource
from tests.support import bombs, office
from tests.support.documents import read
from tests.support.office import workbook, zipped
from tests.unit.test_documents_kinds import found_in, told

WORD = bombs.word("<w:p><w:r><w:t>Heat pumps</w:t></w:r></w:p>")
FLAT = (
    '<?xml version="1.0"?><office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:draw="urn:oasis:names:tc:opendocument:xmlns:drawing:1.0"><office:meta><x>no text</x></office:meta>'
    '<office:body><office:text><text:h text:outline-level="1">Offer</text:h><text:p>12,000 €<draw:frame><draw:image>'
    "<office:binary-data>AAAA</office:binary-data></draw:image></draw:frame></text:p></office:text></office:body>"
    "</office:document>"
).encode()
BOOK = (
    '<?xml version="1.0" encoding="windows-1251"?><FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0">'
    "<description><title-info><book-title>Вий</book-title></title-info></description><body><title><p>Вий</p></title>"
    "<section><title><p>Глава 1</p></title><p>Как <emphasis>только</emphasis> ударил</p><empty-line/><poem><stanza>"
    "<v>стих</v></stanza></poem><table><tr><td>a</td><td>b</td></tr></table></section></body>"
    "<binary>AAAA</binary></FictionBook>"
).encode("cp1251")
PAGE = (
    b"From: <Saved by Blink>\r\nSubject: x\r\nMIME-Version: 1.0\r\nContent-Type: multipart/related; "
    b'type="text/html"; boundary="b"\r\n\r\n--b\r\nContent-Type: text/html; charset=iso-8859-1\r\n'
    b"Content-Transfer-Encoding: quoted-printable\r\n\r\n<title>Prices</title><p>caf=E9 =3D 3\r\n--b\r\n"
    b"Content-Type: text/html\r\n\r\n<p>a frame\r\n--b\r\nContent-Type: image/png\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\nAAAA\r\n--b--\r\n"
)
SAME = {
    **dict.fromkeys(("a.docm", "a.dotx", "a.DOTM"), (WORD, "Heat pumps")),
    **dict.fromkeys(
        ("a.pptm", "a.ppsx", "a.potx"),
        (office.presentation(), "# Heat pumps in Leeds\n- Costs fell by 12 %\n  - mostly installation\n\nNotes:\n"
         "Mention the grant.\n\f# Figures\nyear | units\n2025 | 1,204\nSource: city council"),
    ),
    **dict.fromkeys(("a.xltx", "a.xltm"), (workbook({"P": [["id"], ["x"]]}), "## P\nid\nx")),
    "a.ots": (office.calc_sheet([["id"], ["x"]]), "## Data\nid\nx"),
    "a.fodt": (FLAT, "# Offer\n12,000 €"),
    "a.fb2": (BOOK, "# Вий\n# Глава 1\nКак только ударил\n\nстих\na | b"),
    "a.fb2.zip#a.fb2": (zipped({"a.fb2": BOOK}), "# Вий\n# Глава 1\nКак только ударил\n\nстих\na | b"),
    "a.mhtml": (PAGE, "café = 3"),
    "a.mht": (PAGE, "café = 3"),
}  # fmt: skip


@pytest.mark.parametrize("key", SAME)
def test_the_same_formats_under_other_names(tmp_path: Path, key: str) -> None:
    data, text = SAME[key]
    assert told(found_in(tmp_path, {key.partition("#")[0]: data})) == {key: text}


def test_raised_digits_and_pictures_of_a_book(tmp_path: Path) -> None:
    data = BOOK.decode("cp1251").replace(
        "<v>стих</v>", "<v>1,200<sup>3</sup> CO<sub>2</sub> 4<sup>th</sup></v><image/>"
    )
    [found] = found_in(tmp_path, {"a.fb2": data.encode("cp1251")}).values()
    assert isinstance(found, Document)
    assert ("1,200³ CO₂ 4th" in found.text.splitlines(), found.notes) == (True, "1 picture")


def test_titles_are_fields(tmp_path: Path) -> None:
    found = found_in(tmp_path, {"a.fb2": BOOK, "a.mhtml": PAGE})
    assert [one.fields["title"] for one in found.values() if isinstance(one, Document)] == ["Вий", "Prices"]


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Prices\n", "of 2026"]},
        {"cell_type": "code", "source": "1 + 1", "outputs": [
            {"output_type": "execute_result", "data": {"text/plain": ["2"], "image/png": "AAAA"}},
            {"output_type": "stream", "text": "done\n"}, {"output_type": "error", "ename": "E", "evalue": "bad"}]},
        {"cell_type": "code", "source": ""},
    ]
}  # fmt: skip
OLD_NOTEBOOK = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"], "outputs": [{"text": "1"}]}]}]}
SVG = (
    b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY n "x">]><svg xmlns="http://www.w3.org/2000/svg"><style>.a{}</style>'
    b'<title>Plan</title><g><text x="1">Ground <tspan font-weight="bold">floor</tspan><tspan x="1" dy="9">North'
    b"</tspan></text></g><path d='M0'/></svg>"
)
CHOSEN: dict[str, tuple[bytes, str]] = {
    "a.ipynb": (json.dumps(NOTEBOOK).encode(), "# Prices\nof 2026\n\n```\n1 + 1\n```\n\n2\n\ndone\n\nE: bad"),
    "b.ipynb": (json.dumps(OLD_NOTEBOOK).encode(), "```\nx = 1\n```\n\n1"),
    "c.ipynb": (b'{"cells": 3}', "!unreadable"),
    "a.svg": (SVG, "Plan\nGround floor\nNorth"),
    "a.xml": ('<?xml version="1.0" encoding="ISO-8859-2"?><a>zażółć</a>'.encode("iso8859-2"),
              '<?xml version="1.0" encoding="ISO-8859-2"?><a>zażółć</a>'),
    "a.ics": (b"SUMMARY:Meet\r\n ing\r\nEND:VEVENT\r\n", "SUMMARY:Meeting\nEND:VEVENT\n"),
    "a.vcf": (b"FN:Ada\r\n Green\r\n", "FN:AdaGreen\n"),
    **dict.fromkeys(
        ("a.vtt", "a.srt", "a.tex", "a.rst", "a.org", "a.yaml", "a.log", "a.json"),
        (b"as it is: 1\n", "as it is: 1\n"),
    ),
}  # fmt: skip


def test_other_kinds_are_read_where_a_pattern_names_them_and_nowhere_else(tmp_path: Path) -> None:
    files = {name: data for name, (data, _) in CHOSEN.items()}
    ignored = Ignored()
    assert told(found_in(tmp_path, {**files, "a.txt": b"yes"}, ignored)) == {"a.txt": "yes"}
    assert ignored.to_json()["kinds"][".ipynb"] == 3
    assert told(found_in(tmp_path, {}, include=["**/a.*", "**/*.ipynb"])) == {
        **{name: text for name, (_, text) in CHOSEN.items()}, "a.txt": "yes"}  # fmt: skip
    for name, (_, text) in CHOSEN.items():
        [one] = read(DocumentSource(path=f"in/{name}"), tmp_path)
        assert (one.text if isinstance(one, Document) else f"!{one.code}") == text
    packed = Ignored()
    assert told(found_in(tmp_path / "z", {"all.zip": zipped({**files, "a.txt": b"yes"})}, packed)) == {
        "all.zip#a.txt": "yes"}  # fmt: skip
    assert packed.to_json()["total"] == len(files)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'\xef\xbb\xbf [{"id": "x", "text": "one"},\n {"id": "y", "text": "two"}]', {"#x": "one", "#y": "two"}),
        (b'{"id": "x", "text": "one"}', {"#x": "one"}),
        (b'[{"id": "x", "text": "one"}, 3]', {"#x": "one", "#row 2": "!bad_row"}),
        (b'[{"id": "x", "text": "one"}', {"": "!unreadable"}),
        (b"[]", {"": "!empty"}),
        ('[{"id": "x", "text": "Größe"}]'.encode("utf-16"), {"#x": "Größe"}),
    ],
)
def test_a_list_in_json_is_a_table(tmp_path: Path, data: bytes, found: dict[str, str]) -> None:
    settings: dict[str, Any] = {"text_column": "text", "id_column": "id", "include": ["*.json"]}
    wanted = {f"t.json{key}": text for key, text in found.items()}
    assert told(found_in(tmp_path, {"t.json": data}, **settings)) == wanted
    assert told(found_in(tmp_path / "folder", {"t.csv": b"id,text\na,b\n", "t.json": data}, text_column="text")) == {
        "t.csv#1": "b"
    }


def seven_zipped(entries: dict[str, bytes], **settings: Any) -> bytes:
    made = io.BytesIO()
    with py7zr.SevenZipFile(made, "w", **settings) as archive:
        for name, data in entries.items():
            archive.writestr(data, name)
    return made.getvalue()


@pytest.mark.slow
def test_a_7z_archive_gives_what_is_in_it(tmp_path: Path) -> None:
    entries = {
        "in/a.txt": b"alpha",
        "empty.txt": b"",
        "b.html": b"<p>beta",
        "c.png": b"x",
        "in/z.zip": zipped({"d.txt": "d"}),
    }
    ignored = Ignored()
    assert told(found_in(tmp_path, {"p.7z": seven_zipped(entries)}, ignored)) == {
        "p.7z#in/a.txt": "alpha",
        "p.7z#empty.txt": "!empty",
        "p.7z#b.html": "beta",
        "p.7z#in/z.zip#d.txt": "d",
    }
    assert ignored.to_json()["kinds"] == {".png": 1}


def test_a_7z_archive_is_unpacked_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.documents import seven_zip

    monkeypatch.setattr(seven_zip, "_MOST_AT_ONCE", 100)
    entries = {f"{n}.txt": f"{n} ".encode() * 20 for n in range(10, 30)}
    source = DocumentSource(path="in", max_bytes=200)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "p.7z").write_bytes(seven_zipped({**entries, "long.txt": b"x" * 201}))
    from orchestrator.documents.parts import documents
    from orchestrator.documents.tables import TableFile

    table = TableFile(f"{tmp_path}/in/p.7z", "7z", "p.7z", "p.7z", None, None, None, source.max_bytes)
    found = {
        one.key: one.text if isinstance(one, Document) else one.code
        for one in documents(table)
        if hasattr(one, "name")
    }
    assert found == {
        **{f"p.7z#{name}": data.decode() for name, data in entries.items()},
        "p.7z#long.txt": "too_large",
    }


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: b"7z\xbc\xaf\x27\x1c" + b"\0" * 40, "!unreadable"),
        (lambda: b"no archive", "!unreadable"),
        (partial(seven_zipped, {"a.txt": b"x"}, password="p"), "!encrypted"),
        (partial(seven_zipped, {"a.txt": b"x"}, password="p", header_encryption=True), "!encrypted"),
    ],
)
def test_a_7z_archive_that_cannot_be_read(tmp_path: Path, made: Callable[[], bytes], problem: str) -> None:
    assert told(found_in(tmp_path, {"p.7z": made()})) == {"p.7z": problem}


def test_what_is_damaged_in_a_7z_archive_is_not_sent_and_what_comes_before_it_is(tmp_path: Path) -> None:
    data = bytearray(
        seven_zipped(
            {"a.txt": b"alpha" * 9, "b.txt": b"beta" * 9, "c.txt": b"c"}, filters=[{"id": py7zr.FILTER_COPY}]
        )
    )
    at = data.index(b"betabeta")
    data[at] = 0
    assert told(found_in(tmp_path, {"p.7z": bytes(data)})) == {
        "p.7z#a.txt": "alpha" * 9, "p.7z#b.txt": "!unreadable", "p.7z#c.txt": "!unreadable"}  # fmt: skip


def test_what_a_7z_archive_packs_in_a_way_that_is_not_read_harms_nothing_else(tmp_path: Path) -> None:
    """7-Zip packs programs by BCJ2, and texts beside them by another method."""
    made = io.BytesIO()
    for mode, method, name in (("w", {"id": py7zr.FILTER_COPY}, "x"), ("a", {"id": py7zr.FILTER_LZMA2}, "y")):
        made.seek(0)
        with py7zr.SevenZipFile(made, mode, filters=[method]) as archive:
            archive.set_encoded_header_mode(False)
            archive.writestr(b"setup", f"{name}.html")
            archive.writestr(b"alpha", f"{name}.txt")
    data = bytearray(made.getvalue())
    begin = 32 + struct.unpack_from("<Q", data, 12)[0]
    head = bytes(data[begin:]).replace(b"\x0b\2\0\1\1\0", b"\x0b\2\0\1\4\3\3\1\x1b")
    data[begin:] = head
    struct.pack_into("<QI", data, 20, len(head), zlib.crc32(head))
    struct.pack_into("<I", data, 8, zlib.crc32(data[12:32]))
    assert told(found_in(tmp_path, {"p.7z": bytes(data)})) == {
        "p.7z#x.html": "!unreadable", "p.7z#x.txt": "!unreadable", "p.7z#y.html": "setup", "p.7z#y.txt": "alpha",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["server.key", "cert.PEM", "store.p12", "id_ed25519", "a.pfx"])
def test_keys_and_certificates_are_never_documents(tmp_path: Path, name: str) -> None:
    ignored = Ignored()
    files = {name: b"-----BEGIN PRIVATE KEY-----", "a.txt": b"yes", "p.zip": zipped({name: b"secret", "b.txt": b"b"})}
    assert told(found_in(tmp_path, files, ignored, include=["**/*"])) == {"a.txt": "yes", "p.zip#b.txt": "b"}
    assert ignored.to_json()["secrets"] == 2
    with pytest.raises(InputError, match="key or certificate"):
        list(read(DocumentSource(path=f"in/{name}"), tmp_path))
