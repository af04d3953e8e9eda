"""The samples are sound: they validate, they run, and each gold answer belongs to a row of them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from orchestrator.settings.job_spec import json_schema
from orchestrator.settings.yaml_files import load_yaml
from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("contracts", "invoices", "reports")


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_runs_and_its_gold_answers_fit(
    name: str, run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    write_config(orch_home, [upstream.base_url])
    job = ROOT / "samples" / name / "job.yaml"
    out = tmp_path / "out.jsonl"

    assert run_orch("validate", str(job)).returncode == 0
    done = run_orch("run", str(job), "-o", str(out))

    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["document"], row["task"]) for row in map(json.loads, out.read_text().splitlines())}
    with (job.parent / "gold.csv").open(encoding="utf-8", newline="") as file:
        gold = list(csv.DictReader(file))
    assert {(line["document"], line["task"]) for line in gold} <= rows
    spec, _ = load_yaml(job)
    schemas = {task["id"]: Draft202012Validator(task["schema"]) for task in spec["tasks"] if "schema" in task}
    for line in gold:
        if line["task"] in schemas:
            schemas[line["task"]].validate(json.loads(line["expected"]))


@pytest.mark.long
def test_the_inbox_is_validated_tried_and_run(
    run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    write_config(orch_home, [upstream.base_url])
    folder = shutil.copytree(ROOT / "samples/inbox", tmp_path / "inbox")
    checked = run_orch("validate", str(folder / "job.yaml"), "--json")
    assert checked.returncode == 0, checked.stderr
    assert (json.loads(checked.stdout)["documents"], json.loads(checked.stdout)["requests"]) == (4, 8)
    tried = run_orch("try", str(folder / "job.yaml"), "claim.eml", "--json", "--no-estimate", timeout=90)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    sent = {(row["document"], row["task"]): row for row in json.loads(tried.stdout)["rows"]}
    receipt = sent["documents/claim.eml#receipt.png", "kind"]
    assert receipt["provenance"]["document_sent_as"] == "page 1 as image"
    assert receipt["output"]["label"] in ("claim", "receipt", "price list", "complaint")
    vectors = run_orch("validate", str(folder / "vectors.yaml"), "--json")
    assert (vectors.returncode, json.loads(vectors.stdout)["requests"]) == (0, 2)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{name}/job.yaml" for name in (*SAMPLES, "inbox")),
        "contracts/quotes.yaml",
        "../orchestrator/cli/demo_job.yaml",
    ],
)
def test_the_published_schema_accepts_the_samples(name: str) -> None:
    spec, _ = load_yaml(ROOT / "samples" / name)
    Draft202012Validator(json_schema()).validate(spec)


def test_the_published_schema_is_the_current_one() -> None:
    published = json.loads((ROOT / "docs" / "reference" / "job.schema.json").read_text(encoding="utf-8"))
    assert published == json_schema(), "write it anew: orch validate --schema > docs/reference/job.schema.json"
