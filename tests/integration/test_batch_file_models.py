"""Models of a batch file: a backend without a name or a price for one gets no row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import run

HOSTED = """
[backends.cloud]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
profile = "openai"
api_key_env = "KEY"
"""
LOCAL = """
[backends.local]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    monkeypatch.setenv("KEY", "sk-x")
    monkeypatch.chdir(tmp_path)
    body = {"model": "small", "messages": [{"role": "user", "content": "Name a city."}], "max_tokens": 9}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def test_an_alias_without_a_name_at_a_backend_sends_no_row_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "orch.toml").write_text(HOSTED + LOCAL + '[models]\nsmall = {local = "default"}\n')
    assert run(["plan", "rows.jsonl", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [route["backend"] for route in told["routes"]] == ["local"]
    [refused] = told["refused"]
    assert refused["reason"].startswith("the model small has no name there; give it one in orch.toml:  [models]")


@pytest.mark.parametrize(
    ("models", "why"),
    [('[models]\nsmall = {local = "default"}\n', "the model small has no name there"), ("", "no price is known for")],
    ids=["no name", "no price"],
)
def test_without_a_backend_for_its_model_a_file_waits_and_the_plan_says_so(
    folder: Path, models: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "orch.toml").write_text(HOSTED + models)
    assert run(["plan", "rows.jsonl"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert why in told
    assert "keep the job, and send nothing until a backend may run it" in told
