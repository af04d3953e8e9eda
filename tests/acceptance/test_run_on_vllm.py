"""The licences job on a real vLLM: the whole way, with answers that the engine constrains and we check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.demo import JOB
from tests.acceptance.conftest import EngineInTest
from tests.support.cli import Orch, write_config

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.long
def test_the_licences_job_runs_on_a_real_vllm(
    vllm_engine: EngineInTest, run_orch: Orch, orch_home: Path, tmp_path: Path
) -> None:
    write_config(orch_home, [vllm_engine.base_url], idle=None, cost_per_hour=1, extra='[models]\nsmall = "default"\n')
    text = JOB.read_text(encoding="utf-8").replace("PACKAGES", str(ROOT / ".venv/lib"))
    job = tmp_path / "job.yaml"
    job.write_text(
        text.replace("sample: 40", "sample: 6").replace("max_tokens: 16", "max_tokens: 64"), encoding="utf-8"
    )
    out = tmp_path / "out.jsonl"

    done = run_orch("run", str(job), "-o", str(out), timeout=240)

    # A random model says nothing true, but the engine keeps it to the schema, or max_tokens cuts it off.
    assert done.returncode in (0, 1), done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 18
    families = [row for row in rows if row["task"] == "family"]
    assert {row["status"] for row in families} == {"succeeded"}
    allowed = {"MIT", "BSD", "Apache", "Mozilla", "Python", "GNU", "other"}
    assert all(row["output"]["license"] in allowed for row in families)
    assert {row["error"]["code"] for row in rows if row["status"] == "failed"} <= {"truncated", "schema_mismatch"}
    assert all(row["provenance"]["model"] == vllm_engine.model for row in rows)
    # The tasks of a document stand side by side, so its text is read once and found in the prefix cache twice.
    tokens = [row["provenance"]["tokens"] for row in rows]
    assert sum(count["cached"] for count in tokens) > 0.3 * sum(count["input"] for count in tokens)
    assert float(json.loads(run_orch("status", "--json").stdout)[0]["cost_usd"]) > 0

    again = run_orch("run", str(job))
    assert "nothing changed" in again.stderr


def test_labels_and_responses_of_a_real_vllm(
    vllm_engine: EngineInTest, run_orch: Orch, orch_home: Path, tmp_path: Path
) -> None:
    write_config(orch_home, [vllm_engine.base_url], extra='[models]\nsmall = "default"\n')
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("Please pay 20 dollars.")
    label = "kind: classify, model: small, labels: [bill, letter], logprobs: true"
    (tmp_path / "job.yaml").write_text(
        f"name: kinds\ndocuments: in\ntasks:\n  - {{id: sort, {label}}}\n"
        f"  - {{id: sorted, {label}, endpoint: responses}}\n"
        "  - {id: gist, model: small, prompt: 'What is it?', max_tokens: 8, endpoint: responses}\n"
    )
    out = tmp_path / "out.jsonl"
    done = run_orch("run", str(tmp_path / "job.yaml"), "-o", str(out), timeout=240)
    assert done.returncode == 0, done.stderr
    chat, responses, gist = (json.loads(line)["output"] for line in out.read_text().splitlines())
    assert 0 < chat["probability"] < 1, "a random model is not sure"
    assert responses["label"] in ("bill", "letter")
    assert isinstance(gist, str)
