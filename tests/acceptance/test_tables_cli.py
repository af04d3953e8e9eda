"""`orch fetch` and `orch run` write tables in the shape that is asked for, and refuse what cannot be one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from python_calamine import CalamineWorkbook

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config

JOB = """\
name: letters
documents: {path: documents}
models: {m: m}
tasks:
  - {id: gist, model: m, prompt: Tell the gist., max_tokens: 20}
  - {id: mood, model: m, prompt: Tell the mood., max_tokens: 20}
output: {path: rows.csv, shape: wide, columns: [document, mood.answer]}
"""


@pytest.fixture
def folder(tmp_path: Path, orch_home: Path, make_upstream: MakeUpstream) -> Path:
    write_config(orch_home, [make_upstream().base_url])
    (tmp_path / "documents").mkdir()
    for name in ("a", "b"):
        (tmp_path / "documents" / f"{name}.txt").write_text(f"Letter {name}.")
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.long
def test_a_table_has_the_shape_of_the_job_file_unless_options_say_otherwise(run_orch: Orch, folder: Path) -> None:
    ran = run_orch(
        "run", "job.yaml", "-q", "-o", "mine.xlsx", "--wide", "--columns", "gist.answer,document", cwd=folder
    )
    assert ran.returncode == 0, ran.stderr
    header, *rows = CalamineWorkbook.from_path(folder / "mine.xlsx").get_sheet_by_index(0).to_python()
    assert (header, [row[1] for row in rows]) == (["gist.answer", "document"], ["documents/a.txt", "documents/b.txt"])
    assert all(row[0] for row in rows)

    header, *rows = table(folder / "rows.csv")
    assert (header, [row[0] for row in rows]) == (["document", "mood.answer"], ["documents/a.txt", "documents/b.txt"])

    def fetched(name: str, *options: str) -> list[list[str]]:
        done = run_orch("fetch", "letters", "-o", name, *options, cwd=folder)
        assert done.returncode == 0, done.stderr
        return table(folder / name)

    assert fetched("same.csv")[0] == ["document", "mood.answer"]
    assert [row[1:3] for row in fetched("long.csv", "--long")[1:]] == [
        [name, task] for name in ("documents/a.txt", "documents/b.txt") for task in ("gist", "mood")
    ]  # fmt: skip
    fetched("excel.csv", "--excel")
    assert (folder / "excel.csv").read_bytes().startswith(b"\xef\xbb\xbfdocument")
    assert len(run_orch("fetch", "letters", cwd=folder).stdout.splitlines()) == 4  # merged rows keep their form


def test_a_limited_run_writes_a_table_in_the_shape_of_the_job_file_and_names_it(run_orch: Orch, folder: Path) -> None:
    ran = run_orch("run", "job.yaml", "--limit", "1", "-o", "one.csv", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert "orch: 1 row in one.csv" in ran.stderr
    assert [row[0] for row in table(folder / "one.csv")] == ["document", "documents/a.txt"]
    assert not (folder / "rows.csv").exists(), "the table of all documents is not replaced"


@pytest.mark.long
def test_a_document_asked_in_parts_is_one_row(run_orch: Orch, folder: Path) -> None:
    (folder / "documents" / "b.txt").write_text("a word " * 2000)
    job = JOB.replace("max_tokens: 20}", "max_tokens: 20, long: {part_tokens: 1000, reduce: Make one.}}", 1)
    (folder / "job.yaml").write_text(job.replace(", columns: [document, mood.answer]", ""))
    ran = run_orch("run", "job.yaml", "-q", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert len(run_orch("fetch", "letters", cwd=folder).stdout.splitlines()) > 4  # with the parts
    header, *rows = table(folder / "rows.csv")
    assert [row[header.index("document")] for row in rows] == ["documents/a.txt", "documents/b.txt"]
    assert all(row[header.index(name)] for row in rows for name in ("gist.answer", "mood.answer"))


def test_a_table_that_cannot_be_is_refused_and_leaves_no_job(run_orch: Orch, folder: Path) -> None:
    job = folder / "job.yaml"
    job.write_text(JOB.replace("mood.answer", "mod.answer"))
    refused = run_orch("run", "job.yaml", cwd=folder)
    assert refused.returncode == 2
    for told in ("job.yaml:7", "output.columns", "'mod.answer'", "did you mean 'mood.answer'?"):
        assert told in refused.stderr.replace("\n", " ")
    job.write_text(JOB)
    for options, told in {
        ("-o", "x.csv", "--columns", "gits.answer"): "did you mean 'gist.answer'?",
        ("-o", "x.jsonl", "--excel"): "--excel is for CSV",
        ("-o", "x.docx"): ".xlsx",
    }.items():
        refused = run_orch("run", "job.yaml", *options, cwd=folder)
        assert (refused.returncode, told in refused.stderr.replace("\n", " ")) == (2, True), refused.stderr
    assert "letters" not in run_orch("status").stdout
    assert run_orch("fetch", "letters", "--format", "xlsx", cwd=folder).returncode == 2
