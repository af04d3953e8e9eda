"""A small file makes no more documents than its bytes allow, in whichever way its kind repeats itself."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import documents
from orchestrator.documents import Document, DocumentProblem, Readers, UnreadableDocument
from orchestrator.documents.tables import TableFile
from orchestrator.documents.tables import documents as rows_of
from orchestrator.documents.types import ExtractionError
from orchestrator.documents.unpacking import MAX_RATIO
from orchestrator.settings.config import ReadingSettings
from orchestrator.settings.job_spec import DocumentSource
from tests.support import bombs
from tests.support.office import calc_sheet, mail, packed, tarred, workbook, zipped

LEAST = 2_000_000
LONG = "x" * 20_000
NAME = "n" * 20_000
Found = Document | UnreadableDocument


def parquet(**columns: list[Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def nested(rows: int) -> bytes:
    """The name of a field, which is written once, stands in each of a row's objects."""
    return parquet(text=["x"] * rows, more=[[{NAME[:2000]: 1}] * 50] * rows)


def lines(rows: int) -> bytes:
    return b"".join(json.dumps({"text": LONG}).encode() + b"\n" for _ in range(rows))


def table(rows: int) -> bytes:
    return f"text,{NAME}\n".encode() + b"a,b\n" * rows


def words(number: int) -> dict[str, Any]:
    """Word documents, each of which unpacks to hundreds of times its bytes."""
    body = f"<w:p><w:r><w:t>{LONG * 100}</w:t></w:r></w:p>"
    return {f"{at}.docx": bombs.word(body) for at in range(number)}


BOMBS: dict[str, Callable[[], bytes]] = {
    "values.parquet": lambda: parquet(text=[LONG] * 2000),
    "fields.parquet": lambda: nested(400),
    "rows.parquet": lambda: parquet(text=["x"] * 500_000),
    "empty.parquet": lambda: parquet(text=pa.array([None] * 500_000, pa.string())),
    "strings.xlsx": lambda: workbook({"S": [["text"], *([[LONG]] * 2000)]}),
    "header.xlsx": lambda: workbook({"S": [["text", NAME], *([["a", "b"]] * 2000)]}),
    "header.ods": lambda: calc_sheet([["text", NAME], *([["a", "b"]] * 2000)]),
    "header.csv": lambda: table(4000),
    "rows.jsonl.gz": lambda: packed(lines(2000), "gz"),
    "header.csv.xz": lambda: packed(table(4000), "xz"),
    "table.zip": lambda: zipped({"t.csv": table(4000)}),
    "tables.tgz": lambda: tarred({f"{at}.csv": table(400) for at in range(10)}, "gz"),
    "words.zip": lambda: zipped(words(20)),
    "words.eml": lambda: mail("Offer", *[(name, data, "application/zip") for name, data in words(20).items()]),
}


def given(path: Path, least: int = LEAST, *, max_bytes: int = 50_000_000) -> list[Found]:
    source = DocumentSource.model_validate({"path": path.name, "text_column": "text", "max_bytes": max_bytes})
    with Readers.of(ReadingSettings(workers=1, max_unpacked=least)) as readers:
        return list(documents.read(source, path.parent, readers))


def size_of(found: Found) -> int:
    return 0 if isinstance(found, UnreadableDocument) else max(found.size, len(found.text))


@pytest.mark.thinned(7)
@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_what_repeats_itself_ends_where_the_file_may_unpack_to_no_more(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    most = max(LEAST, MAX_RATIO * path.stat().st_size)
    found = given(path)
    last = found[-1]
    assert sum(map(size_of, found)) <= most
    assert len(found) <= most / 100 + 2
    assert isinstance(last, UnreadableDocument)
    assert (last.code, last.key.partition("#")[0]) == (DocumentProblem.TOO_LARGE, name)
    assert last.message.startswith("It unpacks to more than ")
    assert "`max_unpacked`" in last.message


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["values.parquet", "header.csv", "words.zip"])
def test_one_who_means_it_says_so(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(BOMBS[name]())
    found = given(path, 10**9)
    assert all(isinstance(one, Document) for one in found)
    assert sum(map(size_of, found)) > 2 * MAX_RATIO * path.stat().st_size


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["values.parquet", "strings.xlsx", "wide.xlsx"])
def test_a_row_has_no_more_than_a_file_may(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    wide = workbook({"S": [["text", *(f"c{at}" for at in range(50))], [LONG] * 51, ["a"] * 51]})
    path.write_bytes(wide if name == "wide.xlsx" else BOMBS[name]())
    found = given(path, 10**9, max_bytes=100_000 if name == "wide.xlsx" else 10_000)
    assert {one.code for one in found if isinstance(one, UnreadableDocument)} == {DocumentProblem.TOO_LARGE}
    assert sum(map(size_of, found)) < 10_000


def test_where_reading_goes_on_changes_nothing(tmp_path: Path) -> None:
    """A table is read from the first row on that lacks an answer: the last row that is read is the same."""
    path = tmp_path / "header.csv"
    path.write_bytes(table(4000))
    file = TableFile(str(path), "csv", path.name, path.name, "text", None, None, 10**7, max_unpacked=LEAST)

    def last(first: int) -> str:
        found: list[str] = []
        with suppress(ExtractionError):
            found.extend(one.key for one in rows_of(file, None, first) if one is not None)
        return found[-1]

    assert last(0) == last(100) != "header.csv#4000"
