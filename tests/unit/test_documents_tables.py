"""CSV, JSONL and Parquet: every row comes once, as a document or as a problem."""

from __future__ import annotations

import codecs
import csv
import datetime
import hashlib
import io
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.documents import (
    Document,
    DocumentProblem,
    UnreadableDocument,
    csv_rows,
    lines,
    parquet_rows,
    tables,
)
from orchestrator.settings.job_spec import DocumentSource
from tests.support.documents import fields_of, read

EMPTY, BAD, LARGE = DocumentProblem.EMPTY, DocumentProblem.BAD_ROW, DocumentProblem.TOO_LARGE


def rows(path: Path, **settings: object) -> list[Document | UnreadableDocument]:
    source = DocumentSource.model_validate({"path": path.name, "text_column": "text", **settings})
    return list(read(source, path.parent))


def brief(found: Sequence[Document | UnreadableDocument]) -> list[tuple[str, object]]:
    """(what is after the file in the key, text or code)"""
    return [(d.key.partition("#")[2], d.text if isinstance(d, Document) else d.code) for d in found]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "t.csv"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"id,text\n1,one\n2,two\n", [("1", "one"), ("2", "two")]),
        (b"id;text\n1;one, two\n", [("1", "one, two")]),
        (b"id\ttext\n1\tone\n", [("1", "one")]),
        (b"id|text\n1|one;x,y\n", [("1", "one;x,y")]),
        (b"text\none\ntwo\n", [("1", "one"), ("2", "two")]),
        (b"text\none, two\n", [("1", BAD)]),
        (codecs.BOM_UTF8 + b'"text",id\r\n"one\r\nline",1\r\n', [("1", "one\nline")]),
        (codecs.BOM_UTF16_LE + "text,id\né,1\n".encode("utf-16-le"), [("1", "é")]),
        (b" text ,id\n\n x ,1\n\n\ny,2", [("1", " x "), ("2", "y")]),
        (b"text,id\rone,1\rtwo,2\r", [("1", "one"), ("2", "two")]),
        (b"text,id\none\ntwo,2,3\nthree,3\n", [("1", BAD), ("2", BAD), ("3", "three")]),
        (b"text,id\n  ,1\n,2\nx,3\n", [("1", EMPTY), ("2", EMPTY), ("3", "x")]),
        (b"text,id\na\0b,1\n", [("1", "ab")]),
        (b'text,id\n5" pipe,1\n6" pipe,2\n', [("1", '5" pipe'), ("2", '6" pipe')]),
        (b'text,id\none,1\n"never closed,2\nthree,3\n', [("1", "one"), ("2", BAD)]),
        (b'text,id\n"say ""x""",1\n', [("1", 'say "x"')]),
        (b"text,id,,\none,1,,\n", [("1", "one")]),
        (b"id,text\n1,one\n", [("1", "one")]),
    ],
)
def test_csv_dialects(table: Path, data: bytes, expected: list[tuple[str, object]]) -> None:
    table.write_bytes(data)
    assert brief(rows(table)) == expected


@pytest.mark.parametrize(
    ("data", "settings", "code", "words"),
    [
        (b"", {}, EMPTY, "empty"),
        (b"\n \n", {}, BAD, "no column 'text'"),
        (b"text,id\n", {}, EMPTY, "no rows"),
        (b"body,id\nx,1\n", {}, BAD, "only: body, id"),
        (b"text,text\nx,1\n", {}, BAD, "several columns"),
        (b"text,id\nx,1\n", {"id_column": "nr"}, BAD, "no column 'nr'"),
        (b"text,id\n\xc4\xd6,1\n\xc5\x81,2\n", {"encoding": "utf-8"}, DocumentProblem.ENCODING, "utf-8"),
        (b"text,id\nx,1\n", {"encoding": "utf-32-le"}, DocumentProblem.ENCODING, "utf-32"),
    ],
)
def test_what_is_wrong_with_a_whole_csv(
    table: Path, data: bytes, settings: dict[str, str], code: DocumentProblem, words: str
) -> None:
    table.write_bytes(data)
    (found,) = rows(table, **settings)
    assert isinstance(found, UnreadableDocument)
    assert (found.key, found.code) == ("t.csv", code)
    assert words in found.message


def test_a_row_has_fields_digest_and_size(table: Path) -> None:
    table.write_text("id,text,total\n7,hello,3.50\n")
    (found,) = rows(table, id_column="id")
    canonical = b'{"id":"7","text":"hello","total":"3.50"}'
    assert found == Document(
        key="t.csv#7",
        name="t.csv#7",
        text="hello",
        digest=hashlib.sha256(canonical).hexdigest(),
        size=len(canonical),
        fields={"row": 1, "id": "7", "total": "3.50"},
    )


def test_a_digest_does_not_depend_on_the_order_of_columns(table: Path) -> None:
    table.write_text("id,text\n7,x\n")
    (first,) = rows(table)
    table.write_text("text;id\nx;7\n")
    (second,) = rows(table)
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert first.digest == second.digest


@pytest.mark.slow
def test_western_csv_is_read_also_when_the_accents_come_late(table: Path) -> None:
    plain = "text,id\n" + f"only ascii here{' and here' * 20},1\n" * 10_000
    assert len(plain) > lines.CHUNK
    table.write_bytes((plain + "Le café à Besançon où l'été a été déterminé par la société,2\n" * 9).encode("cp1252"))
    last = rows(table)[-1]
    assert isinstance(last, Document)
    assert last.text.startswith("Le café à Besançon")


def test_csv_that_changes_its_encoding_is_told_where(table: Path) -> None:
    # The last part alone could be read; but the file began as UTF-8, so it is two files in one.
    western = "Le café à Besançon où l'été a été déterminé par la société et les parties,2\n" * 9
    ascii_rows = b"ascii" * 40 + b",1\n"
    table.write_bytes("text,id\né,1\n".encode() + ascii_rows * 10_000 + western.encode("cp1252"))
    found = rows(table)
    assert isinstance(found[0], Document)
    assert isinstance(found[-1], UnreadableDocument)
    assert (found[-1].key, found[-1].code) == ("t.csv", DocumentProblem.ENCODING)


@pytest.mark.parametrize(
    "large", ['"' + "x\n" * 90 + '"', '"' + "x" * 150 + '"', '"' + "x" * 150 + "\n" + "y" * 150 + '\nz"', "x" * 150]
)
def test_a_large_csv_row_is_reported_and_the_next_is_read(table: Path, large: str) -> None:
    table.write_text(f"text,id\none,1\n{large},2\nthree,3\n")
    assert brief(rows(table, max_bytes=100)) == [("1", "one"), ("2", LARGE), ("3", "three")]


CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(
    st.lists(st.tuples(CELL, CELL, CELL), max_size=8), st.sampled_from(csv_rows.DELIMITERS), st.sampled_from("\r\n")
)
def test_any_csv_comes_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str, str]], delimiter: str, end: str
) -> None:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "b", "c"), *cells])
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(out.getvalue().encode())
    found = rows(path)
    filled = [row for row in cells if "".join(row).strip()]  # others are blank lines, however they are written
    if not filled:
        return
    assert len(found) == len(filled)
    for (text, b, _), document in zip(filled, found, strict=True):
        plain = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
        if isinstance(document, Document):
            assert document.text == plain
            assert document.fields["b"] == b.replace("\r\n", "\n").replace("\r", "\n")
        else:
            assert document.code is EMPTY
            assert not plain.strip()


@given(st.binary(max_size=300))
def test_no_bytes_make_the_csv_reader_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(b"text,id\n" + data)
    found = rows(path)
    assert len({d.key for d in found}) == len(found) > 0


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"text":"one"}\n{"text":"two"}', [("1", "one"), ("2", "two")]),
        (codecs.BOM_UTF8 + b'{"text":"one"}\r\n\r\n  \n{"text":"a\\r\\nb"}\r\n', [("1", "one"), ("4", "a\nb")]),
        (codecs.BOM_UTF16_LE + '{"text":"é"}\n'.encode("utf-16-le"), [("1", "é")]),
        (b'{"text":"a\\u0000b"}\n{"text":"a\0b"}\n\0\0\0', [("1", "ab"), ("2", "ab"), ("3", BAD)]),
        (
            b'{"text":\n{"text":"x"}\n{"text":"y"} 1\nnull\n[]\n"text"',
            [(str(n), "x" if n == 2 else BAD) for n in range(1, 7)],
        ),
        (b'{"text":null}\n{"x":1}\n{"text":1}\n{"text":["a"]}\n', [(str(n), BAD) for n in range(1, 5)]),
        (b'{"text":"  "}\n{"text":"\\u0000"}', [("1", EMPTY), ("2", EMPTY)]),
        (b'{"text":"\xff"}\n{"text":"x"}', [("1", DocumentProblem.ENCODING), ("2", "x")]),
        (b'{"text":"' + b"x" * 100 + b'"}\n{"text":"x"}', [("1", LARGE), ("2", "x")]),
        (b'{"a":' * 3000 + b'1\n{"text":"x"}', [("1", LARGE), ("2", "x")]),
        (b'{"text":"\\ud800"}\n{"text":"\\ud83d\\ude00"}', [("1", BAD), ("2", "😀")]),
    ],
)
def test_json_lines(jsonl: Path, data: bytes, expected: list[tuple[str, object]]) -> None:
    jsonl.write_bytes(data)
    assert brief(rows(jsonl, max_bytes=100)) == expected


def test_json_nested_too_deep_is_a_bad_row(jsonl: Path) -> None:
    jsonl.write_bytes(b'{"text":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n")
    assert brief(rows(jsonl)) == [("1", BAD)]


def test_json_fields_lose_nul_and_keep_their_shape(jsonl: Path) -> None:
    jsonl.write_bytes(b'{"text":"x","a":{"b\\u0000":["c\\u0000",1,null]},"d":1.5}')
    (found,) = rows(jsonl)
    assert isinstance(found, Document)
    assert found.fields == {"row": 1, "a": {"b": ["c", 1, None]}, "d": 1.5}


LINE = st.one_of(
    st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")),
    st.dictionaries(st.sampled_from(["text", "id"]), st.one_of(st.text(), st.none(), st.integers())).map(
        lambda d: json.dumps(d).encode()
    ),
)


@given(st.lists(LINE, min_size=1, max_size=10), st.sampled_from([None, "id"]))
def test_each_json_line_is_reported_once(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], id_column: str | None
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "t.jsonl"
    path.write_bytes(b'{"text":"first","id":"first"}\n' + b"\n".join(written))
    found = rows(path, id_column=id_column)
    filled = [line for line in written if line.strip()]
    assert len(found) == 1 + len(filled)
    assert len({d.key for d in found}) == len(found)


@given(st.lists(st.binary(max_size=9), max_size=12), st.integers(1, 12))
def test_lines_are_cut_the_same_however_they_arrive(pieces: list[bytes], limit: int) -> None:
    whole = b"".join(pieces).split(b"\n")
    expected = [
        line if len(line) <= limit else lines.TooLong(len(line), line.count(b'"'))
        for i, line in enumerate(whole)
        if line or i < len(whole) - 1
    ]
    assert list(lines.lines(iter(pieces), limit)) == expected


@pytest.mark.parametrize(
    ("ids", "keys"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a", "b"], ["a", "row 2", "row 3", "b"]),
        ([1, "1", 2.5], ["1", "row 2", "2.5"]),
        ([None, "", " ", True, ["x"], {"y": 1}, "z"], [f"row {n}" for n in range(1, 7)] + ["z"]),
        (["a b/c#d", "é"], ["a b/c#d", "é"]),
    ],
)
def test_ids_make_the_keys_and_must_differ(jsonl: Path, ids: list[Any], keys: list[str]) -> None:
    jsonl.write_text("".join(json.dumps({"text": "x", "nr": nr}) + "\n" for nr in ids))
    found = rows(jsonl, id_column="nr")
    assert [d.key.partition("#")[2] for d in found] == keys
    for document in found:
        assert isinstance(document, UnreadableDocument) == ("#row " in document.key)


def test_a_row_without_the_id_column_is_a_bad_row(jsonl: Path) -> None:
    jsonl.write_bytes(b'{"text":"x"}\nbroken\n{"text":"y","nr":"1"}\n')
    assert brief(rows(jsonl, id_column="nr")) == [("row 1", BAD), ("row 2", BAD), ("1", "y")]


@given(st.lists(st.integers(0, 3000), max_size=4000))
def test_seen_is_a_set(numbers: list[int]) -> None:
    seen, real = tables.SeenTexts(), set()
    for number in numbers:
        assert seen.add(str(number)) == (number not in real)
        real.add(number)


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> None:
    pq.write_table(pa.table(columns), path, **options)


@pytest.mark.long
def test_parquet_values_of_every_kind(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 3, 1, 12, 30, tzinfo=datetime.UTC)
    write_parquet(
        tmp_path / "t.parquet",
        {
            "text": ["one", None, " ", "four\r\nlines\0"],
            "id": pa.array([1, 2, 3, 4]),
            "when": pa.array([moment] * 4, pa.timestamp("us", "UTC")),
            "nanos": pa.array([1_700_000_000_123_456_789] * 4, pa.timestamp("ns")),
            "price": pa.array([Decimal("1.50")] * 4),
            "kind": pa.array(["a"] * 4).dictionary_encode(),
            "tags": [["x"], [], None, ["y\0"]],
            "raw": [b"\xff"] * 4,
        },
    )
    found = rows(tmp_path / "t.parquet", id_column="id")
    assert brief(found) == [("1", "one"), ("2", BAD), ("3", EMPTY), ("4", "four\nlines")]
    assert isinstance(found[0], Document)
    assert found[0].fields == {
        "row": 1,
        "id": 1,
        "when": moment,
        "nanos": datetime.datetime(2023, 11, 14, 22, 13, 20, 123456),  # noqa: DTZ001
        "price": Decimal("1.50"),
        "kind": "a",
        "tags": ["x"],
        "raw": b"\xff",
    }
    assert isinstance(found[3], Document)
    assert found[3].fields["tags"] == ["y"]


def test_parquet_in_many_batches_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "BATCH_ROWS", 7)
    write_parquet(tmp_path / "t.parquet", {"text": [f"t{i}" for i in range(100)]}, row_group_size=13)
    assert brief(rows(tmp_path / "t.parquet")) == [(str(i + 1), f"t{i}") for i in range(100)]
    assert len(rows(tmp_path / "t.parquet", sample=5)) == 5


def test_a_broken_parquet_string_is_one_bad_row(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffc")]
    )
    write_parquet(tmp_path / "t.parquet", {"text": broken})
    assert brief(rows(tmp_path / "t.parquet")) == [("1", "a"), ("2", BAD), ("3", "c")]


def test_a_large_parquet_row_is_reported(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["a", "x" * 500, "c"]})
    assert brief(rows(tmp_path / "t.parquet", max_bytes=100)) == [("1", "a"), ("2", LARGE), ("3", "c")]


def test_parquet_text_must_be_text(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": [1, 2]})
    assert brief(rows(tmp_path / "t.parquet")) == [("1", BAD), ("2", BAD)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: b"", DocumentProblem.UNREADABLE),
        (lambda data: b"not parquet at all", DocumentProblem.UNREADABLE),
        (lambda data: data[: len(data) // 2], DocumentProblem.UNREADABLE),
        (lambda data: data[:4] + b"\xff" * 60 + data[64:], DocumentProblem.UNREADABLE),
        (lambda data: b"PARE" + data[4:], DocumentProblem.ENCRYPTED),
    ],
)
def test_what_is_wrong_with_a_whole_parquet_file(tmp_path: Path, change: Any, code: DocumentProblem) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, {"text": [f"text {i}" for i in range(200)]})
    path.write_bytes(change(path.read_bytes()))
    last = rows(path)[-1]
    assert isinstance(last, UnreadableDocument)
    assert (last.key, last.code) == ("t.parquet", code)


def test_fields_are_known_from_the_header(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/t.csv").write_text("id;text;a\n1;x;y\n")
    write_parquet(tmp_path / "docs/t.parquet", {"text": ["x"], "p": [1]})
    (tmp_path / "docs/t.jsonl").write_text('{"text":"x"}\n')
    (tmp_path / "docs/page.html").write_text("x")

    def known(path: str, **settings: Any) -> frozenset[str] | None:
        return fields_of(DocumentSource(path=path, text_column="text", **settings), tmp_path)

    files = {"name", "path", "stem", "suffix", "folder", "size", "title"}
    assert known("docs/t.csv") == {"id", "a", "row"}
    assert known("docs/t.parquet") == {"p", "row"}
    assert known("docs/t.jsonl") is None
    assert known("docs") is None
    assert known("docs", exclude=("*.jsonl",)) == {"id", "a", "row", "p"} | files
    assert fields_of(DocumentSource(path="docs"), tmp_path) == files
    with pytest.raises(InputError):
        known("missing")


def test_a_lone_table_needs_its_text_column(table: Path) -> None:
    table.write_text("id,text\n1,x\n")
    with pytest.raises(InputError, match="text_column") as told:
        read(DocumentSource(path="t.csv"), table.parent)
    assert told.value.field == "text_column"
