"""A canary as its users have it: the command line before a local engine whose model answers badly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - id: facts
    model: small
    max_tokens: 100
    prompt: What are the facts?
    schema: {type: object, properties: {topic: {type: string}}, required: [topic]}
models: {small: some-model}
canary: {rows: 3}
"""
BAD = " [[fault:notjson]]"


@pytest.mark.parametrize(("fault", "code"), [("", 0), (BAD, 1)], ids=["well", "badly"])
def test_the_others_are_sent_only_behind_rows_that_came_back_well(
    run_orch: Orch, upstream: Upstream, tmp_path: Path, fault: str, code: int
) -> None:
    write_config(run_orch.home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "documents").mkdir()
    for number in range(8):
        (tmp_path / "documents" / f"{number}.txt").write_text(f"Letter {number}.{fault}", encoding="utf-8")
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB, encoding="utf-8")

    ran = run_orch("run", str(job_file), "--deadline", "1h", "--json")
    assert ran.returncode == code, ran.stderr
    job = json.loads(ran.stdout)
    assert [shard["rows"] for shard in job["shards"]] == ([3] if fault else [3, 5])
    told = [event["reason"] for event in job["events"] if event["kind"] in ("canary", "stopped")]
    assert told == (
        ["3 rows go first", "canary: 3 of 3 rows that went first failed (3 invalid_json), more than 25%"]
        if fault
        else ["3 rows go first", "0 of 3 rows that went first failed: the others follow"]
    )
    if fault:
        shown = run_orch("status", job["job"]).stdout
        assert "canary: 3 of 3 rows that went first failed" in " ".join(shown.split())
