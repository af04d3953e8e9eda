"""Two models and one slot on a real vLLM: a fleet loads each of them once, and first the one that is due first."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.server.engines import EngineDir, EngineUnavailable, require_installed
from tests.support.cli import Orch
from tests.support.process import wait_until
from tools.cpu_engine.models import find_model

pytestmark = [pytest.mark.vllm, pytest.mark.soak, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = 6


@pytest.fixture
def home(tmp_path: Path, orch_home: Path) -> Path:
    """A home with a fleet of two tiny models on the CPU."""
    engine = EngineDir.at(os.environ.get("ORCH_ENGINE_DIR", ROOT / ".engine"))
    try:
        require_installed(engine)
        model = find_model(engine, "tiny")
    except EngineUnavailable as error:
        pytest.skip(f"NO REAL ENGINE: {error.message} ({error.hint})")
    other = tmp_path / "other"
    shutil.copytree(model.path, other)
    options = json.dumps(["--max-model-len", "2048", "--chat-template", str(model.chat_template)])
    (orch_home / "orch.toml").write_text(
        '[backends.cpu]\nkind = "engines"\nlocation = "local"\ncost_per_hour = 0\n[backends.cpu.models]\n'
        f'a = {{model = "{model.path}", options = {options}}}\n'
        f'b = {{model = "{other}", options = {options}}}\n'
    )
    (orch_home / "docs").mkdir()
    for number in range(DOCUMENTS):
        (orch_home / "docs" / f"{number}.txt").write_text(f"Document {number} is about rope.")
    return orch_home


def job(home: Path, name: str, *models: str) -> str:
    """A job file that asks each model about each document."""
    aliases = ", ".join(f"{model}: {model}" for model in models)
    lines = [f"name: {name}", "documents: [{path: docs}]", f"models: {{{aliases}}}", "tasks:"]
    lines += [f'  - {{id: {model}, prompt: "What?", model: {model}, max_tokens: 8}}' for model in models]
    (home / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return str(home / f"{name}.yaml")


def test_two_models_on_one_slot_are_two_starts_the_nearer_deadline_first(run_orch: Orch, home: Path) -> None:
    environ = {
        "ORCH_ENGINE_DIR": os.environ.get("ORCH_ENGINE_DIR", str(ROOT / ".engine")),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    # The rows of `mixed` name one model and the other in turn.
    for name, models, deadline in (("later", "a", "20h"), ("sooner", "b", "4h"), ("mixed", "ab", "22h")):
        done = run_orch("submit", job(home, name, *models), "--deadline", deadline)
        assert done.returncode == 0, done.stderr
    up = run_orch.start("up", env=environ)

    def jobs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(run_orch("status", "--json").stdout)
        return found

    wait_until(lambda: all(one["state"] == "completed" for one in jobs()), 800)
    succeeded = {one["name"]: one["requests"]["succeeded"] for one in jobs()}
    assert succeeded == {"later": DOCUMENTS, "sooner": DOCUMENTS, "mixed": 2 * DOCUMENTS}
    said = [line for line in run_orch.output(up).splitlines() if "starting " in line or "stopping " in line]
    assert [line.split(" on ")[0] for line in said] == [
        "orch: cpu: starting b",
        "orch: cpu: stopping b",
        "orch: cpu: starting a",
    ]
    logs = home / "servers" / "cpu" / "engines"
    begun = {path.name: path.read_text().count("Started server process") for path in logs.iterdir()}
    assert begun == {"a-cpu.log": 1, "b-cpu.log": 1}
