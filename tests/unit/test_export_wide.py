"""Tables of a row per document, of chosen columns, and for spreadsheets: everything answered is in them, once."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_calamine import CalamineWorkbook

from orchestrator.core.errors import UsageError
from orchestrator.pipeline.finish.outputs import formats
from orchestrator.pipeline.finish.outputs.formats import Format, TableShape, encode
from tests.support import merged

TASKS = {"facts": merged.SCHEMA, "gist": None}
WIDE = TableShape(wide=True)


def written(lines: list[bytes], form: Format = "csv", table: TableShape = WIDE, **tasks: Any) -> bytes:
    file = io.BytesIO()
    encode(file, lines, form, "letters-1", tasks or TASKS, table)
    return file.getvalue()


def rows(lines: list[bytes], table: TableShape = WIDE) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written(lines, table=table).decode("utf-8-sig"), newline="")))


def of(document: str, *given: tuple[str, str | None, dict[str, Any]]) -> list[bytes]:
    """The merged lines of one document: task, answer and other facts of each row."""
    return [
        merged.line(place, text, task=task, document=document, custom_id=f"{document}-{place}", **facts)
        for place, (task, text, facts) in enumerate(given)
    ]


def test_the_answers_about_a_document_stand_side_by_side() -> None:
    lines = [
        *of("a.txt", ("facts", json.dumps(merged.ANSWER), {}), ("gist", "Ann writes.", {})),
        *of("b.txt", ("facts", '{"topic": "rent"}', {}), ("gist", "Ben pays.", {})),
    ]
    first, second = rows(lines)
    assert (first["document"], first["facts.topic"], first["gist.answer"]) == (
        "a.txt", merged.ANSWER["topic"], "Ann writes.",
    )  # fmt: skip
    assert (first["facts.sender.name"], json.loads(first["facts.dates"])) == ("Ann", merged.ANSWER["dates"])
    assert (second["facts.topic"], second["gist.answer"], second["error"]) == ("rent", "Ben pays.", "")
    assert Decimal(first["cost_usd"]) == 2 * Decimal("0.000001847917")


def test_what_failed_is_told_and_what_does_not_fit_is_kept() -> None:
    odd = json.dumps({"topic": "x", "more": 1})
    facts = {"state": "failed", "error_code": "invalid_json", "error_message": "not JSON"}
    (one,) = rows(of("a.txt", ("facts", odd, {}), ("gist", None, {"state": "expired"})))
    assert one["error"].startswith("gist: expired")
    assert json.loads(one["other_answers"]) == {"facts": json.loads(odd)}
    (one,) = rows(of("a.txt", ("facts", "no JSON", facts), ("gist", "Ben pays.", {})))
    assert (one["error"], one["facts.topic"]) == ("facts: invalid_json: not JSON", "")
    assert json.loads(one["other_answers"]) == {"facts": "no JSON"}


def test_what_all_tasks_failed_for_is_told_once() -> None:
    locked = {"state": "failed", "error_code": "encrypted", "error_message": "It needs a password."}
    (one,) = rows(of("a.pdf", ("facts", None, locked), ("gist", None, locked)))
    assert one["error"] == "facts, gist: encrypted: It needs a password."


def test_documents_of_one_name_keep_their_rows() -> None:
    both = [*of("a.txt", ("facts", '{"topic": "x"}', {}), ("gist", "X", {})),
            *of("a.txt", ("facts", '{"topic": "y"}', {}), ("gist", "Y", {}))]  # fmt: skip
    assert [(one["facts.topic"], one["gist.answer"]) for one in rows(both)] == [("x", "X"), ("y", "Y")]


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=6), st.booleans())
def test_every_answer_is_in_one_cell(names: list[str], both: bool) -> None:
    lines, asked = [], []
    for place, name in enumerate(names):
        answers = [("gist", f"{name}{place}", {})]
        if both:
            answers.append(("facts", json.dumps({"topic": f"{place}{name}"}), {}))
        lines += of(name, *answers)  # type: ignore[arg-type]
        asked += [text if task == "gist" else json.loads(text)["topic"] for task, text, _ in answers]
    found = rows(lines)
    assert len(found) == len(names)
    assert [cell for one in found for cell in (one["gist.answer"], one["facts.topic"]) if cell] == asked


def test_chosen_columns_come_in_their_order() -> None:
    lines = of("a.txt", ("facts", '{"topic": "rent"}', {}), ("gist", "Ben pays.", {}))
    table = TableShape(True, ("gist.answer", "document"))
    assert written(lines, table=table) == b"gist.answer,document\r\nBen pays.,a.txt\r\n"
    assert json.loads(written(lines, "jsonl", table)) == {"gist.answer": "Ben pays.", "document": "a.txt"}
    long = TableShape(False, ("custom_id", "facts.topic"))
    assert written(lines[:1], table=long) == b"custom_id,facts.topic\r\na.txt-0,rent\r\n"
    meanings = {
        "facts.topik": "did you mean 'facts.topic'?",
        "Topic": "did you mean 'facts.topic'?",
        "why": "it is a column of the table with a row per answer: --long, or `shape: long`;",
        "zzz": "",
    }
    for name, meaning in meanings.items():
        with pytest.raises(UsageError) as refused:
            written(lines, table=TableShape(True, (name,)))
        assert refused.value.message == f"the table has no column {name!r}"
        assert str(refused.value.hint).startswith(f"{meaning} its columns: document, facts.topic, ".strip())
        assert "gist.answer, error, other_answers" in str(refused.value.hint)


def test_jsonl_and_parquet_of_documents_keep_what_is_nested() -> None:
    lines = of("a.txt", ("facts", json.dumps(merged.ANSWER), {}), ("gist", "Ann\u2028writes.", {}))
    raw = written(lines, "jsonl")
    assert (len(raw.splitlines()), raw.decode().count("\u2028")) == (1, 0)
    told = json.loads(raw)
    assert (told["facts.sender"], told["gist.answer"]) == (merged.ANSWER["sender"], "Ann\u2028writes.")
    table = pq.read_table(io.BytesIO(written(lines, "parquet"))).to_pylist()
    assert (table[0]["facts.sender"], table[0]["facts.pages"]) == (merged.ANSWER["sender"], 3)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r="])
def test_no_cell_of_csv_for_spreadsheets_is_a_formula(start: str) -> None:
    text = f"{start}1+1"
    lines = of(f"{start}a.txt", ("facts", json.dumps({"topic": text, "score": -0.5}), {}), ("gist", text, {}))
    raw = written(lines, table=TableShape(True, excel=True))
    assert raw.startswith(b"\xef\xbb\xbfdocument,")
    (one,) = rows(lines, TableShape(True, excel=True))
    assert (one["document"], one["facts.topic"], one["gist.answer"]) == (f"'{start}a.txt", f"'{text}", f"'{text}")
    assert one["facts.score"] == "-0.5"


def test_a_workbook_has_texts_as_texts_and_numbers_as_numbers() -> None:
    answer = {"topic": "=1+1", "pages": 2**60, "score": 0.5, "urgent": True, "dates": ["x"]}
    lines = of("Über http://a.txt", ("facts", json.dumps(answer), {}), ("gist", "x" * 40_000, {}))
    sheet = CalamineWorkbook.from_filelike(io.BytesIO(written(lines, "xlsx"))).get_sheet_by_index(0)
    header, row = sheet.to_python()
    one = dict(zip(header, row, strict=True))
    assert (one["document"], one["facts.topic"], one["facts.pages"]) == ("Über http://a.txt", "=1+1", str(2**60))
    assert (one["facts.score"], one["facts.urgent"], one["facts.dates"]) == (0.5, True, '["x"]')
    told = str(one["gist.answer"])
    assert (len(told), told.endswith("x … [40,000 characters]")) == (32_767, True)
    assert one["cost_usd"] == pytest.approx(2 * 0.000001847917)


def test_a_workbook_goes_on_in_a_second_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "SHEET_ROWS", 2)
    lines = [line for name in "abcde" for line in of(name, ("gist", name, {}))]
    book = CalamineWorkbook.from_filelike(io.BytesIO(written(lines, "xlsx", gist=None)))
    sheets = [book.get_sheet_by_index(place).to_python() for place in range(len(book.sheet_names))]
    assert [[row[0] for row in sheet] for sheet in sheets] == [
        ["document", "a", "b"], ["document", "c", "d"], ["document", "e"],
    ]  # fmt: skip


def test_a_long_document_has_the_answer_about_all_its_parts() -> None:
    lines = of(
        "long.txt",
        ("gist", "all of it", {"parts": 2}),
        *(("gist", f"part {part}", {"part": part, "parts": 2}) for part in (1, 2)),
        ("facts", '{"topic": "rent"}', {}),
    )
    (one, other) = rows([*lines, *of("next.txt", ("gist", "short", {}))])
    assert (one["gist.answer"], one["facts.topic"], one["other_answers"]) == ("all of it", "rent", "")
    assert Decimal(one["cost_usd"]) == 4 * Decimal("0.000001847917")
    assert other["gist.answer"] == "short"
