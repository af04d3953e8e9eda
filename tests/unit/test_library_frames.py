"""Frames of every kind: what of them is asked, and what comes back with them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pydantic import BaseModel, Field

import orchestrator as orch
from orchestrator.library.answers import AnswerType, answer_columns, answer_rows
from orchestrator.library.drafts import FrameDraft
from orchestrator.library.frames import CellType, frame_of
from orchestrator.library.job_folders import write_frame
from orchestrator.settings.home import Home

# `make dev` leaves them out.
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

ROWS = [{"text": "one", "n": 1}, {"text": "two", "n": 2}, {"text": "two", "n": 3}, {"text": None, "n": 4}]


def dataset(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(rows)


KINDS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "pandas": lambda rows: pandas.DataFrame(rows, index=list("abbz")[: len(rows)]),
    "polars": polars.DataFrame,
    "pyarrow": pyarrow.Table.from_pylist,
    "datasets": dataset,
    "list": list,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


class Term(BaseModel):
    end: date | None
    pages: int
    tags: list[str] = []


TYPE = AnswerType[Term](Term)


def line(document: str, output: Any, **more: Any) -> bytes:
    tokens = dict.fromkeys(("input", "cached", "cache_write", "output", "reasoning"), 0)
    origin = {
        "backend": "local", "upstream": None, "model": "m", "batch_id": None, "tier": None, "attempt": 1,
        "tokens": tokens, "cost_usd": "0.000012", "latency_ms": 1, "finish_reason": "stop", "prompt_version": "1",
        "document_cut_from_tokens": None, "carried_from": None, "why": None,
    }  # fmt: skip
    row = {"custom_id": document, "document": document, "task": "answer", "status": "succeeded", "output": output}
    return json.dumps(row | {"error": None, "provenance": origin} | more).encode()


FAILED = {"status": "failed", "error": {"code": "empty", "message": "no text"}}
LINES = [
    line("a", {"end": "2026-11-30", "pages": 2, "tags": ["x"]}),
    line("b", {"end": None, "pages": 3}),
    line("c", {"end": "soon", "pages": 3}),
    line("d", None, **FAILED),
]


def records_of(frame: Any) -> list[dict[str, Any]]:
    if isinstance(frame, pandas.DataFrame):
        return [{k: None if v is pandas.NA else v for k, v in row.items()} for row in frame.to_dict("records")]
    if isinstance(frame, list):
        return frame
    return list(frame.to_dicts() if isinstance(frame, polars.DataFrame) else frame.to_pylist() if isinstance(
        frame, pyarrow.Table) else frame)  # fmt: skip


@pytest.mark.slow
@each_kind
def test_the_same_kind_comes_back_with_typed_columns_and_each_row_at_its_place(kind: str) -> None:
    frame = KINDS[kind](ROWS)
    out = frame_of(frame).with_columns(answer_columns(list(answer_rows(LINES, TYPE)), TYPE, ""))

    assert type(out) is type(frame)
    found = records_of(out)
    assert [row["n"] for row in found] == [1, 2, 3, 4]
    assert [row["end"] for row in found] == [date(2026, 11, 30), None, None, None]
    assert [row["pages"] for row in found] == [2, 3, None, None]
    assert [row["tags"] for row in found][:2] == [["x"], []]
    errors = [row["error"] for row in found]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("schema_mismatch: "), "the model is stricter than its JSON Schema"
    assert errors[3] == "empty: no text"
    assert sum(row["cost"] for row in found) == Decimal("0.000048")
    assert "cost" not in records_of(frame)[0], "the caller's frame stays as it was"
    if isinstance(frame, pandas.DataFrame):
        assert out.index.tolist() == ["a", "b", "b", "z"]
        assert out["pages"].dtype == "Int64"


FORMATS: dict[str, dict[str, Any]] = {
    **{name: {"type": name} for name in ("arrow", "numpy", "pandas", "polars", "python")},
    "columns": {"type": "numpy", "columns": ["n"]},
    "more columns": {"type": None, "columns": ["n"], "output_all_columns": True},
}


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_dataset_are_the_same_in_every_format_which_stays(name: str) -> None:
    plain = dataset(ROWS)
    formatted = plain.with_format(**FORMATS[name])

    found = frame_of(formatted)

    assert found.columns == ["text", "n"]
    assert list(found.records(["text", "n"])) == ROWS
    out = found.with_columns(answer_columns(list(answer_rows(LINES, TYPE)), TYPE, ""))
    assert out.format["type"] == formatted.format["type"]
    rows = out.with_format(None).to_list()
    assert [(row["n"], row["pages"]) for row in rows] == [(1, 2), (2, 3), (3, None), (4, None)]


@each_kind
def test_rows_have_the_same_keys_in_every_kind_of_frame(kind: str, tmp_path: Path) -> None:
    folder = write_frame(
        Home(tmp_path),
        "map",
        {"name": "map", "documents": []},
        frame_of(KINDS[kind](ROWS)).records(["text"]),
        (),
        "text",
        is_named=False,
    )

    first, second, third, fourth = folder.keys
    assert third == f"{second}-2", "a repeat has a number"
    assert len({first, second, fourth}) == 3
    other = write_frame(
        Home(tmp_path),
        "map",
        {"name": "map", "documents": []},
        [{"text": "two"}, {"text": "one"}, {"text": "new"}],
        (),
        "text",
        is_named=False,
    )
    assert other.keys[:2] == [second, first], "its place says nothing"
    assert other.file.parent != folder.file.parent


def test_an_id_names_a_row_and_must_differ(tmp_path: Path) -> None:
    def keys(*rows: dict[str, Any]) -> Any:
        return write_frame(
            Home(tmp_path), "map", {"documents": []}, rows, ("case", "part"), None, is_named=False
        ).keys

    assert keys({"case": 1, "part": "a"}, {"case": 1, "part": "b"}) == ["1 a", "1 b"]
    with pytest.raises(orch.InputError, match="two rows have the id '1 a'"):
        keys({"case": 1, "part": "a"}, {"case": 1, "part": "a"})
    with pytest.raises(orch.InputError, match="has no id"):
        keys({"case": 1, "part": None})


def used(rows: Any, prompt: str, **more: Any) -> tuple[str | None, list[str]]:
    draft: FrameDraft[Any] = orch.frame(rows, prompt, **more)
    return draft._text, draft._used


def test_only_the_columns_that_the_prompt_uses_are_asked_about() -> None:
    rows = [{"text": "a", "title": "b", "secret": "c", "case": 1}]
    assert used(rows, "{{ text }}?") == ("text", ["text"])
    assert used(rows, "Which language?") == ("text", ["text"])
    assert used(rows, "{{ title }}?", id="case") == (None, ["title", "case"])
    assert used(rows, "{{ text }}?", text="title") == ("title", ["title"])
    assert used(rows, "{{ text }}?", system="About {{ title }}") == ("text", ["text", "title"])


@pytest.mark.parametrize(
    ("prompt", "more", "message"),
    [
        ("{{ titel }}?", {}, "no column 'titel'.*\n.*did you mean 'title'"),
        ("{{ title }}?", {"id": "case"}, "no column 'case'"),
        ("What is it?", {}, "names no column"),
        ("{{ title", {}, "not a Jinja2 template"),
        ("{{ text }}", {"text": "body"}, "no column 'body'"),
    ],
)
def test_a_wrong_column_is_told_before_anything_is_written(prompt: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(orch.InputError) as caught:
        orch.frame([{"title": "b"}], prompt, **more)
    assert re.search(message, str(caught.value))


NO_FRAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "number": (lambda: 7, "a list of dicts"),
    "folder": (lambda: "papers", "orch.documents(path).map(prompt)"),
    "path": (lambda: Path("papers"), "orch.documents(path).map(prompt)"),
    "list": (lambda: [1, 2], "every row is a dict"),
    "texts": (lambda: ["You owe us $120.", "How are you?"], '[{"text": text} for text in texts]'),
    "lazy": (lambda: polars.LazyFrame({"text": ["a"]}), "call .collect() first"),
    "series": (lambda: pandas.Series(["a"]), 'pandas.DataFrame({"text": column})'),
}


@pytest.mark.parametrize("kind", NO_FRAMES)
def test_what_is_no_frame_is_refused_with_its_cure(kind: str) -> None:
    rows, cure = NO_FRAMES[kind]
    with pytest.raises(orch.UsageError, match="is not a frame") as refused:
        orch.frame(rows(), "{{ text }}")
    assert cure in str(refused.value)


class Tree(BaseModel):
    name: str
    planted: date = Field(alias="on")
    branches: list[Tree] = []


def test_a_type_that_holds_itself_has_columns() -> None:
    type_ = AnswerType[Tree](Tree)
    assert type_.fields() == {"name": CellType.TEXT, "planted": CellType.DATE, "branches": CellType.ANY}
    answer = type_.parse(
        None, b'{"name": "oak", "on": "2026-11-28", "branches": [{"name": "x", "on": "2026-11-28"}]}'
    )
    name, planted, branches = type_.cells(answer, type_.fields())
    assert (name, planted, branches[0]["name"]) == ("oak", date(2026, 11, 28), "x")
    endless = AnswerType[Any]({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})
    assert endless.fields() == {"answer": CellType.ANY}


def test_failed_rows_are_raised_only_if_asked_for() -> None:
    from orchestrator.library.answers import Answers

    rows = Answers(list(answer_rows(LINES, TYPE)), TYPE)
    assert [row.document for row in rows.failed] == ["c", "d"]
    assert rows.cost == Decimal("0.000048")
    with pytest.raises(orch.RowError, match="2 of 4 rows failed") as caught:
        rows.raise_failed()
    assert caught.value.code == "schema_mismatch"
    rows[:2].raise_failed()


def test_a_table_in_a_notebook_shows_texts_as_texts() -> None:
    from orchestrator.library.answers import Answers

    text = AnswerType[str](None)
    rows = Answers(list(answer_rows([line("<b>a</b>", "<script>x</script>")] * 30, text)), text)
    shown = rows._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "10 more rows" in shown


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, orchestrator; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "sqlalchemy", "openai", "httpx2", "pandas", "polars", "pyarrow", "msgspec", "asyncio"}
    assert not heavy & {*done.stdout.split()}


def test_every_public_name_is_there_and_typed() -> None:
    tree = ast.parse(Path(orch.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {name.asname or name.name for node in imports for name in node.names}
    assert [name for name in orch.__all__ if name not in seen] == [], "a type checker sees what is imported"
    assert [name for name in orch.__all__ if getattr(orch, name) is None] == []
    assert dir(orch) == sorted(orch.__all__), "what Tab offers, before and after use"
    written = (Path(__file__).parents[1] / "soak/every_name.py").read_text(encoding="utf-8")
    assert [name for name in orch.__all__ if not re.search(rf"\b{name}\b", written)] == [], "type checkers see it"
    with pytest.raises(AttributeError):
        _ = orch.nothing_of_this_name
