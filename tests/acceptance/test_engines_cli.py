"""A night on engines of one's own: `orch run` and `orch engines`, the test upstream in vLLM's place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Orch
from tests.support.fakevllm import fake_vllm, model_folder, starts
from tests.support.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engines and their leash run on Linux")

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
JOB = """
name: two
documents: [{path: docs}]
models: {small: small, large: large}
tasks:
  - {id: first, prompt: "What?", model: small}
  - {id: second, prompt: "Who?", model: large}
"""


@pytest.fixture
def night(tmp_path: Path, orch_home: Path) -> Path:
    """A home with a fleet of two models, and a job that asks both about each of six documents."""
    for name in ("s", "l"):
        model_folder(tmp_path / name)
    settings(tmp_path, orch_home)
    (orch_home / "job.yaml").write_text(JOB)
    (orch_home / "docs").mkdir()
    for number in range(6):
        (orch_home / "docs" / f"{number}.txt").write_text(f"Document {number}")
    return orch_home


def settings(tmp_path: Path, home: Path, *lines: str) -> None:
    python = fake_vllm(tmp_path, "--latency-ms", "20")
    (home / "orch.toml").write_text(
        "\n".join(
            [
                "[backends.gpu]",
                'kind = "engines"',
                'location = "local"',
                "cost_per_hour = 3.6",
                f'vllm_python = "{python}"',
                *lines,
                "[backends.gpu.models]",
                f'small = {{model = "{tmp_path / "s"}"}}',
                f'large = {{model = "{tmp_path / "l"}"}}',
            ]
        )
    )


def engines(orch: Orch) -> dict[str, dict[str, Any]]:
    return {one["model"]: one for one in json.loads(orch("engines", "--json").stdout)}


@pytest.mark.soak
def test_a_job_of_two_models_runs_with_two_starts(run_orch: Orch, night: Path, tmp_path: Path) -> None:
    assert {name: one["state"] for name, one in engines(run_orch).items()} == {"small": "cold", "large": "cold"}
    done = run_orch("run", str(night / "job.yaml"), "--json", env=NO_GPU)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["requests"]["succeeded"] == 12
    assert float(told["cost_usd"]) > 0
    assert len(starts(tmp_path)) == 2
    held = json.loads(run_orch("report", "cost", "--json").stdout)["held"]
    assert sorted((one["model"], one["starts"]) for one in held) == [("large", 1), ("small", 1)]
    assert all(one["gpu_hours"] > one["starting_gpu_hours"] > 0 and float(one["cost_usd"]) > 0 for one in held)
    assert not any(Path(f"/proc/{each['pid']}").exists() for each in starts(tmp_path))


@pytest.mark.long
def test_engines_are_started_and_stopped_by_hand(run_orch: Orch, night: Path, tmp_path: Path) -> None:
    up = run_orch.start("up", env=NO_GPU)
    wait_until(lambda: "is up" in run_orch.output(up))
    # Nothing runs there before the first rows: the backend is opened for the wish.
    done = run_orch("engines", "start", "large", "--json")
    assert json.loads(done.stdout) == {
        "backend": "gpu", "model": "large", "wish": "start", "daemon_running": True, "engine_running": True,
    }  # fmt: skip
    wait_until(lambda: engines(run_orch)["large"]["state"] == "warm")
    assert run_orch("engines").stdout.startswith("gpu small: cold\ngpu large on the CPU: warm for ")
    assert run_orch("engines", "stop", "large").returncode == 0
    wait_until(lambda: engines(run_orch)["large"]["state"] == "cold")
    assert "orch: gpu: stopping large on the CPU: asked for: orch engines stop large" in run_orch.output(up)


@pytest.mark.long
def test_a_trial_starts_the_engine_that_it_needs_and_stops_it(run_orch: Orch, night: Path, tmp_path: Path) -> None:
    tried = run_orch("try", str(night / "job.yaml"), "--task", "first", "-n", "2", "--json", env=NO_GPU)
    assert tried.returncode == 0, tried.stderr
    assert "gpu starts its engine first, as `orch run` does" in tried.stderr
    assert [row["provenance"]["backend"] for row in json.loads(tried.stdout)["rows"]] == ["gpu", "gpu"]
    [started] = starts(tmp_path)
    assert not Path(f"/proc/{started['pid']}").exists()


def test_what_cannot_be_asked_for(run_orch: Orch, night: Path, tmp_path: Path) -> None:
    done = run_orch("engines", "start", "huge")
    assert (done.returncode, "no engine runs the model huge" in done.stderr) == (2, True)
    assert "known: large, small" in done.stderr
    assert run_orch("engines", "sleep", "small").returncode == 2
    assert run_orch("engines", "--backend", "none").returncode == 2
    settings(tmp_path, night, 'hours = "03:00-03:01"')
    done = run_orch("engines", "start", "small", env={"ORCH_NOW": "2026-11-22T12:00:00+00:00", "TZ": "UTC"})
    assert done.returncode == 3
    assert "it is outside the hours of gpu (03:00-03:01); they begin at 03:00" in done.stderr


def test_the_plan_knows_the_hours(run_orch: Orch, night: Path, tmp_path: Path) -> None:
    settings(tmp_path, night, 'hours = "20:00-07:00"', "rows_per_second = 1")
    more = ["", "[backends.openai]", 'kind = "openai"', 'api_key_env = "K"', "[models]"]
    more.append('small = {gpu = "small", openai = "gpt-5-nano"}')
    text = (night / "orch.toml").read_text().replace("cost_per_hour = 3.6", "cost_per_hour = 0")
    (night / "orch.toml").write_text(text + "\n".join(more))
    (night / "one.yaml").write_text(JOB.partition("models:")[0] + 'tasks: [{id: t, prompt: "What?", model: small}]\n')

    def backends(at: str, deadline: str) -> list[str]:
        environ = {"ORCH_NOW": f"2026-11-22T{at}:00+00:00", "TZ": "UTC", "K": "sk-x"}
        done = run_orch("plan", str(night / "one.yaml"), "--deadline", deadline, "--json", env=environ)
        assert done.returncode in (0, 3), done.stderr
        return [route["backend"] for route in json.loads(done.stdout)["routes"]]

    # At noon, what is due in four hours cannot wait for the evening.
    assert backends("12:00", "4h") == ["openai"]
    assert backends("21:00", "4h") == ["gpu"]
    assert backends("12:00", "2026-11-22T23:30+00:00") == ["gpu"]
