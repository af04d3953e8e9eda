"""A column that no table of a source has is a mistake of the job file: file, line, field, and the columns there."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, text

from orchestrator.cli import run
from orchestrator.core.errors import InputError
from tests.integration.test_limited_runs import Desk, opened
from tests.integration.test_remote_sources import Site, serving
from tests.support.databases import new_sqlite
from tests.support.mistakes import no_job_from
from tests.support.office import workbook

TOML = """
[backends.local]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true
"""
ROWS = [{"Name": "n", "Text": "Letter."}, {"Name": "m", "Text": "Another."}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "Name,Text\nn,Letter.\nm,Another.\n"
THERE = "columns there: Name, Text"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "orch.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "in").mkdir()
    with no_job_from(tmp_path, monkeypatch):
        yield tmp_path


def asked(folder: Path, source: str) -> Path:
    """A job file whose source begins in line 3."""
    file = folder / "job.yaml"
    task = "  - {id: who, model: small, prompt: Who}\n"
    file.write_text(f"name: letters\ndocuments:\n{source}tasks:\n{task}models: {{small: m}}\n", encoding="utf-8")
    return file


def parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "in" / "rows.parquet")


TABLES: dict[str, Callable[[Path], object]] = {
    "csv": lambda folder: (folder / "in/rows.csv").write_text(CSV),
    "jsonl": lambda folder: (folder / "in/rows.jsonl").write_text(LINES),
    "json": lambda folder: (folder / "in/rows.json").write_text(json.dumps(ROWS)),
    "xlsx": lambda folder: (folder / "in/rows.xlsx").write_bytes(
        workbook({"Empty": [], "Rows": [["Name", "Text"], ["n", "Letter."]]})
    ),
    "parquet": parquet,
}


@pytest.mark.thinned(10)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("command", [["validate"], ["plan"], ["run"], ["submit"]], ids=lambda given: given[0])
def test_every_command_names_line_and_columns(
    folder: Path, kind: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    TABLES[kind](folder)
    file = asked(folder, f"  - path: in/rows.{kind}\n    text_column: text\n    id_column: number\n")
    assert run([*command, str(file)]) == 2
    told = capsys.readouterr()
    rows = " in its first 1,000 rows" if kind.startswith("json") else ""
    assert f"{file}:4: documents[0].text_column: in/rows.{kind} has no column 'text'{rows}" in told.err
    assert f"did you mean 'Text'? {THERE}" in told.err
    assert told.out == ""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_table_whose_text_is_not_named_tells_its_columns(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TABLES[kind](folder)
    assert run(["plan", str(asked(folder, f"  - path: in/rows.{kind}\n"))]) == 2
    told = capsys.readouterr().err
    assert f"documents[0].text_column: in/rows.{kind} is a table; say which of its columns holds the text" in told
    assert THERE in told


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_table_in_a_folder_whose_text_is_not_named_is_called_a_table(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TABLES[kind](folder)
    (folder / "in" / "letter.txt").write_text("Dear reader", encoding="utf-8")
    file = asked(folder, "  - path: in\n")
    assert run(["validate", str(file), "--list"]) == 0
    told = capsys.readouterr().out
    assert "read 1; 1 table without `text_column`" in told
    assert f"not read: in/rows.{kind}: a table; set `text_column` of its source to the column with the text" in told
    assert f"in/rows.{kind}: no_text_column: This is a table: set `text_column`" in told
    assert THERE in told
    assert "format that is not read" not in told


def test_the_column_of_ids_is_checked_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TABLES["csv"](folder)
    file = asked(folder, "  - path: in/rows.csv\n    text_column: Text\n    id_column: number\n")
    assert run(["plan", str(file)]) == 2
    assert f"{file}:5: documents[0].id_column: in/rows.csv has no column 'number'" in capsys.readouterr().err


@pytest.mark.long
def test_a_table_in_an_archive_names_the_field_and_the_column_that_is_meant(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(folder / "in/rows.zip", "w") as archive:
        archive.writestr("rows.csv", CSV)
    file = asked(folder, "  - path: in/rows.zip\n    text_column: text\n")
    assert run(["validate", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"{file}:4: documents[0].text_column: no document can be used" in told
    assert "The table has no column 'text', only: Name, Text; did you mean 'Text'? Correct the job file" in told
    file = asked(folder, "  - path: in/rows.zip\n    text_column: Text\n    id_column: number\n")
    assert run(["validate", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"{file}:5: documents[0].id_column: no document can be used" in told
    assert "The table has no column 'number', only: Name, Text; did you mean 'Name'? Correct" in told


def test_a_column_that_is_there_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in/rows.csv").write_text("Text,Text\na,b\n")
    file = asked(folder, "  - path: in/rows.csv\n    text_column: Text\n")
    assert run(["plan", str(file)]) == 2
    assert "documents[0].text_column: in/rows.csv has several columns named 'Text'" in capsys.readouterr().err


def test_no_table_of_a_folder_has_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TABLES["csv"](folder)
    TABLES["jsonl"](folder)
    (folder / "in/empty.csv").write_text("")
    (folder / "in/letter.txt").write_text("A letter.")
    file = asked(folder, "  - path: in\n    text_column: body\n")
    assert run(["run", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"{file}:4: documents[0].text_column: none of the 2 tables in in has a column 'body'" in told
    assert THERE in told


@pytest.mark.thinned(2)
@pytest.mark.parametrize("column", ["Text", "Later"])
def test_a_table_that_has_it_is_enough(folder: Path, column: str, capsys: pytest.CaptureFixture[str]) -> None:
    TABLES["csv"](folder)
    (folder / "in/others.jsonl").write_text('broken\n{"Name": "n"}\n{"Later": "A letter."}\n')
    file = asked(folder, f"  - path: in\n    text_column: {column}\n")
    assert run(["validate", str(file)]) == 0
    capsys.readouterr()


def test_where_nothing_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = asked(folder, "  - name: x\n    path: ins\n")
    assert run(["run", str(file)]) == 2
    assert f"{file}:4: documents[0].path: There is no file or folder ins" in capsys.readouterr().err
    file = asked(folder, "  - path: in\n    include: '*.pfd'\n")
    assert run(["run", str(file)]) == 2
    assert f"{file}:4: documents[0].include: There are no documents in 'in'" in capsys.readouterr().err


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    (tmp_path / "desk").mkdir()
    with opened(tmp_path / "desk", new_sqlite(tmp_path / "orch.db"), monkeypatch) as desk:
        yield desk


def refused(desk: Desk, source: dict[str, Any]) -> InputError:
    desk.spec["documents"] = source
    with pytest.raises(InputError) as told:
        desk.submit()
    assert not desk.store.jobs.newest()
    return told.value


def test_a_query_and_a_table_at_a_web_server(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine(f"sqlite:///{desk.folder / 'letters.db'}")
    with engine.begin() as tx:
        tx.execute(text("CREATE TABLE letters (id INTEGER, body TEXT)"))
        tx.execute(text("INSERT INTO letters VALUES (1, 'Letter.')"))
    engine.dispose()
    monkeypatch.setenv("LETTERS_URL", f"sqlite:///{desk.folder / 'letters.db'}")
    query = {"name": "mail", "query": "SELECT id, body FROM letters", "url_env": "LETTERS_URL", "text_column": "text"}
    told = refused(desk, query)
    assert (told.field, told.hint) == ("documents[0].text_column", "columns there: id, body")
    assert "mail has no column 'text'" in told.message
    with serving(Site()) as site:
        site.pages["/rows.csv"] = CSV.encode()
        told = refused(desk, {"path": f"{site.url}/rows.csv", "text_column": "Body"})
    assert told.field == "documents[0].text_column"
    assert f"{site.url}/rows.csv has no column 'Body'" in told.message
