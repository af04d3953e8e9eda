"""Known answers as users have them: what status says of a job whose answers are too far from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import run
from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - id: facts
    model: small
    prompt: What are the facts?
    schema: {type: object, properties: {kind: {const: letter}, pages: {const: 1}}, required: [kind, pages]}
models: {small: some-model}
gold: gold.jsonl
quality_threshold: 0.9
output: {path: out.jsonl}
"""


def test_answers_below_the_threshold_are_flagged_and_not_delivered(
    run_orch: Orch, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = write_config(run_orch.home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("Dear reader.", encoding="utf-8")
    gold = {"document": "documents/a.txt", "task": "facts", "expect": {"kind": "Letter", "pages": 2}}
    (tmp_path / "gold.jsonl").write_text(json.dumps(gold), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")

    ran = run_orch("run", str(tmp_path / "job.yaml"), "--json")
    assert ran.returncode == 1, ran.stderr
    job = json.loads(ran.stdout)
    assert (job["state"], job["requests"]["succeeded"]) == ("completed", 1)
    why = "50.0% is below the threshold of 90.0%"
    assert job["quality"] == {"share": 0.5, "right": 1, "fields": 2, "rows": 1, "absent": 0, "withheld": why}
    assert not (tmp_path / "out.jsonl").exists()

    monkeypatch.setenv("ORCH_HOME", str(run_orch.home))
    monkeypatch.setenv("ORCH_CONFIG", str(config))
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["status", job["job"]]) == 0
    assert f"50.0%: 1 of 2 known fields right; not delivered: {why}" in capsys.readouterr().out
    assert run(["fetch", job["job"]]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == {"kind": "letter", "pages": 1}
