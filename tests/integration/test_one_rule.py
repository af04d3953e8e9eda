"""`orch plan`, `orch submit --dry-run` and `orch submit` refuse the same files, with the same exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run

TOML = """\
[backends.cloud]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "CLOUD_KEY"
[prices.m]
input = 4
output = 16
batch = {input = 2, output = 8}
[backends.gpu]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
cost_per_hour = 36
rows_per_second = 1.0
"""
CLOUD: dict[str, Any] = {"allow": {"backends": ["cloud"]}}
PAST = "2020-01-01T00:00+00:00"


def nothing(folder: Path) -> None:
    pass


def written(folder: Path) -> None:
    (folder / "out.jsonl").write_text("mine\n", encoding="utf-8")


def submitted(folder: Path) -> None:
    assert run(["submit", "job.yaml", "-q"]) == 0


Case = tuple[dict[str, Any], Callable[[Path], None], list[str], int]
CASES: dict[str, Case] = {
    "in-time": ({**CLOUD, "deadline": "30h"}, nothing, [], 0),
    "late-by-an-assumed-turnaround": ({**CLOUD, "deadline": "2m"}, nothing, [], 0),
    "over-the-budget": ({**CLOUD, "budget": 0.000001}, nothing, [], 3),
    "stopped-by-its-budget": ({"allow": {"backends": ["gpu"]}, "budget": 0.01}, nothing, [], 0),
    "a-deadline-that-has-passed": ({**CLOUD, "deadline": PAST}, nothing, [], 3),
    "no-backend-has-the-model": ({"models": {"small": {"other": "m"}}}, nothing, [], 2),
    "no-backend-may-take-it": ({"allow": {"backends": ["cloud"], "location": "local"}}, nothing, [], 3),
    "an-output-of-someone-else": ({**CLOUD, "output": {"path": "out.jsonl"}}, written, [], 2),
    "an-output-that-may-be-overwritten": ({**CLOUD, "output": {"path": "out.jsonl"}}, written, ["--force"], 0),
    "after-a-job-that-is-not-there": ({**CLOUD, "after": "nobody"}, nothing, [], 2),
    "unfinished": ({**CLOUD, "deadline": "30h"}, submitted, [], 0),
    "unfinished-with-a-budget-that-is-less-now": ({**CLOUD, "budget": 5}, submitted, ["--budget", "0.000001"], 3),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUD_KEY", "sk-test-0123456789abcdef")
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents").mkdir()
    for number in range(20):
        (tmp_path / "documents" / f"{number}.txt").write_text(f"Letter {number}.", encoding="utf-8")
    return tmp_path


def job_file(folder: Path, fields: dict[str, Any]) -> None:
    task = {"id": "t", "prompt": "What?", "model": "small", "max_tokens": 20}
    job = {"name": "n", "documents": "documents", "tasks": [task], "models": {"small": "m"}, **fields}
    (folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_all_three_say_the_same(folder: Path, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    fields, before, options, code = case
    (folder / "orch.toml").write_text(TOML, encoding="utf-8")
    job_file(folder, fields)
    before(folder)
    capsys.readouterr()
    planned = run(["plan", "job.yaml", "-q", *options])
    text = capsys.readouterr().out
    as_json = run(["plan", "job.yaml", "--json", *options])
    plan = json.loads(capsys.readouterr().out)
    dry = run(["submit", "job.yaml", "-q", "--dry-run", *options])
    sent = run(["submit", "job.yaml", "-q", *options])
    assert (planned, as_json, dry, sent) == (code, code, code, code)
    if "error" not in plan:
        assert plan["is_refused"] is (code == 3)
        assert ("are refused (exit code 3)" in text) is plan["is_refused"]
        assert ("proceed" in text) is (code == 0 and (not plan["holds"] or plan["how"] == "resumed"))
