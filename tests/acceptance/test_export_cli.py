"""`orch fetch` as tables, through the command line."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: gist, model: some-model, prompt: Tell the gist.}
  - id: facts
    model: some-model
    prompt: What are the facts?
    schema:
      type: object
      properties: {topic: {type: string}, pages: {type: integer}}
      required: [topic, pages]
models: {some-model: some-model}
"""


def test_the_rows_of_a_job_as_tables(tmp_path: Path, run_orch: Orch, upstream: Upstream) -> None:
    write_config(run_orch.home, [upstream.base_url])
    (tmp_path / "documents").mkdir()
    for number in range(3):
        (tmp_path / "documents" / f"{number}.txt").write_text(f"Letter {number}.")
    (tmp_path / "job.yaml").write_text(JOB)
    ran = run_orch("run", str(tmp_path / "job.yaml"), "-q", "-o", str(tmp_path / "rows.csv"))
    assert ran.returncode == 0, ran.stderr
    [job] = [one.name for one in (run_orch.home / "jobs").iterdir()]

    # What a file ends in says what it is.
    done = run_orch("fetch", job, "-o", "rows.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("orch: 6 rows in rows.parquet, ")
    assert "(as JSONL " in done.stderr
    table = pl.read_parquet(tmp_path / "rows.parquet")
    assert table["task"].to_list() == ["gist", "facts"] * 3
    assert (table.schema["facts.topic"], table.schema["facts.pages"]) == (pl.String, pl.Int64)
    assert table["facts.pages"].is_null().to_list() == [True, False] * 3
    assert table["state"].unique().to_list() == ["succeeded"]
    assert set(table["job"]) == {job}

    text = run_orch("fetch", job, "--format", "csv")
    assert (text.returncode, text.stderr) == (0, "orch: 6 rows\n")
    assert pl.read_csv(text.stdout.encode())["custom_id"].to_list() == table["custom_id"].to_list()
    assert pl.read_csv(text.stdout.encode()).equals(pl.read_csv(tmp_path / "rows.csv"))

    for arguments, told in [
        (["--format", "parquet"], "--format parquet: cannot be written to stdout"),
        (["-o", "rows.docx"], "-o rows.docx: the ending names no format"),
        (["-o", "s3://me:secret@bucket/x.csv"], "-o: an address may carry no password and no query"),
        (["-o", str(tmp_path)], "is a folder"),
        (["-o", str(tmp_path / "job.yaml")], "is the job's own input file"),
    ]:
        refused = run_orch("fetch", job, *arguments)
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
        assert "secret" not in refused.stderr
    refused = run_orch("run", str(tmp_path / "job.yaml"), "-o", "s3://me:secret@bucket/x.csv")
    assert (refused.returncode, "-o: an address may carry no password" in refused.stderr) == (2, True), refused.stderr
