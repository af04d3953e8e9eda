"""A vector, a label and an answer from an engine of one's own: validated, tried, run, shown and fetched."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: mixed
documents: letters
tasks:
  - {id: vec, kind: embedding, model: small, dimensions: 16}
  - {id: sort, kind: classify, model: small, labels: {bill: asks for money, letter: anything else}, logprobs: true}
models: {small: some-model}
output: {path: out.parquet, format: parquet}
"""


def test_vectors_and_labels_from_an_engine_of_ones_own(
    run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    write_config(orch_home, [upstream.base_url])
    (tmp_path / "letters").mkdir()
    for name in "abc":
        (tmp_path / "letters" / f"{name}.txt").write_text(f"This is letter {name}.")
    (tmp_path / "job.yaml").write_text(JOB)

    tried = run_orch("try", "job.yaml", "-n", "1", "--no-estimate", timeout=90)
    assert tried.returncode == 0, tried.stderr
    assert "This is letter a." in tried.stdout
    assert "a vector of 16 numbers: " in tried.stdout
    ran = run_orch("run", "job.yaml", "--json", timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["requests"] == {**json.loads(ran.stdout)["requests"], "succeeded": 6, "total": 6}

    table = pl.read_parquet(tmp_path / "out.parquet")
    assert table.schema["vec.vector"] == pl.Array(pl.Float32, 16)
    assert table["vec.vector"].null_count() == table["sort.label"].null_count() == 3
    assert set(table["sort.label"].drop_nulls()) <= {"bill", "letter"}
    assert table["sort.probability"].drop_nulls().is_between(0, 1).all()
    assert table.filter(pl.col("task") == "vec")["output_tokens"].to_list() == [0, 0, 0]
