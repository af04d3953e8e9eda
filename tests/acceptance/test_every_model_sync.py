"""The README's job at synchronous providers that refuse what the real ones refuse, and what they do not take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.integration.test_every_model_hosted import prices, readme_task
from tests.support.cli import Orch
from tests.support.hostedjob import table

MODELS = {
    "mistral": "mistral-small-latest",
    "deepseek": "deepseek-chat",
    "xai": "grok-4.3",
    "moonshot": "kimi-k2.6",
    "groq": "llama-3.3-70b-versatile",
    "openrouter": "openai/gpt-5-nano",
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": []}
SAID = {
    "mistral": {"seed": 7},
    "deepseek": {"temperature": 0, "schema": SCHEMA},
    "xai": {"temperature": 0, "seed": 7},
    "moonshot": {"temperature": 1},
    "groq": {"stop": ["END"], "schema": SCHEMA},
    "openrouter": {"seed": 7},
}
LOST = {
    "mistral": ({"kind": "classify", "labels": ["x", "y"], "logprobs": True}, "logprobs"),
    "xai": ({"stop": ["END"]}, "stop"),
    "moonshot": ({"temperature": 0}, "temperature"),
    "groq": ({"kind": "classify", "labels": ["x", "y"], "logprobs": True}, "logprobs"),
}


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "provider") as emulator:
        yield emulator


def written(orch: Orch, at: Emulator, name: str, *tasks: dict[str, Any]) -> Path:
    """An orch.toml for one provider, and a job file of these tasks."""
    backend = {
        "kind": "sync",
        "base_url": at.url_of(name),
        "api_key_env": "KEY",
        "provider": name,
        "retry_delay": 0.01,
    }
    (orch.home / "orch.toml").write_text(f"[backends.{name}]\n{table(backend)}{prices(MODELS[name])}")
    documents = orch.home.parent / "in"
    documents.mkdir(exist_ok=True)
    (documents / "a.txt").write_text("The contract ends on 2027-01-31.")
    job = {
        "name": "all",
        "documents": "in",
        "tasks": [{**task, "id": f"t{number}", "model": "m"} for number, task in enumerate(tasks)],
        "models": {"m": MODELS[name]},
    }
    path = orch.home.parent / "job.yaml"
    path.write_text(json.dumps(job))
    return path


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", MODELS)
def test_the_job_of_the_readme_and_what_is_said_otherwise_run(run_orch: Orch, provider: Emulator, name: str) -> None:
    task = {"prompt": "When?", "max_tokens": 60, **SAID[name]}
    job = written(run_orch, provider, name, readme_task(), task)
    done = run_orch("run", str(job), "--json", env={**provider.environment, "KEY": "sk-test-0123456789"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert provider.refused() == []


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_there_is_refused_or_left_out(run_orch: Orch, provider: Emulator, name: str) -> None:
    asked, field = LOST[name]
    task = {"prompt": "Which?", "max_tokens": 60, **asked}
    env = {**provider.environment, "KEY": "sk-test-0123456789"}
    refused = run_orch("run", str(written(run_orch, provider, name, task)), env=env)
    assert refused.returncode == 3
    assert f"{MODELS[name]} takes no {field}" in refused.stderr
    done = run_orch("run", str(written(run_orch, provider, name, {**task, "unsupported": "drop"})), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert provider.refused() == []
