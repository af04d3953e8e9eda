"""`orch serve --vllm` as its users have it; the test upstream in vLLM's place, a script in nvidia-smi's."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.batchapi import create, ended, health, retrieve, row, run_batch, sdk_at
from tests.support.cli import Orch, kill_group
from tests.support.fakevllm import fake_nvidia_smi, fake_vllm, model_folder, refuse, starts
from tests.support.process import PATIENCE, wait_until
from tests.support.serving import serve, url_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the engine and its leash run on Linux")

GIB = 1024**3
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def engine(tmp_path: Path, orch_home: Path) -> tuple[str, ...]:
    """The arguments that start a stand-in with a small model."""
    (orch_home / "orch.toml").touch()
    model_folder(tmp_path / "small")
    return ("--vllm", str(tmp_path / "small"), "--vllm-python", str(fake_vllm(tmp_path, "--latency-ms", "20")))


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_engine_for_each_gpu_serves_and_ends_with_the_server(
    run_orch: Orch, engine: tuple[str, ...], tmp_path: Path
) -> None:
    path = fake_nvidia_smi(tmp_path, "0, 80000, 79000", "1, 80000, 79000")
    process, url = serve(run_orch, *engine, env={"PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert run_orch.output(process).count("ready after") == 2
    with sdk_at(url) as sdk:
        run_batch(sdk, [row(f"r{n}", model="small") for n in range(60)]).check([f"r{n}" for n in range(60)])
        engines = health(sdk)["engines"]
        assert [(one["name"], one["state"], one["starts"]) for one in engines] == [
            ("GPU 0", "ready", 1),
            ("GPU 1", "ready", 1),
        ]
        assert [one["url"] for one in engines] == [one["url"] for one in health(sdk)["upstreams"]]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not any(is_running(start["pid"]) for start in starts(tmp_path))
    assert sorted(start["gpus"] for start in starts(tmp_path)) == ["0", "1"]


@pytest.mark.long
def test_an_engine_that_is_killed_costs_no_row(run_orch: Orch, engine: tuple[str, ...], tmp_path: Path) -> None:
    process, url = serve(run_orch, *engine, env=NO_GPU)
    ids = [f"r{n}" for n in range(400)]
    with sdk_at(url) as sdk:
        batch = create(sdk, [row(custom_id, model="small") for custom_id in ids])
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed >= 20)
        os.kill(starts(tmp_path)[0]["pid"], signal.SIGKILL)
        ended(sdk, batch.id, 60).check(ids)
        wait_until(lambda: health(sdk)["engines"][0]["starts"] == 2)
    assert "engine on the CPU: the engine was killed by SIGKILL; started again in 1 s" in run_orch.output(process)


@pytest.mark.long
def test_a_server_that_is_killed_comes_back_with_its_engines(
    run_orch: Orch, engine: tuple[str, ...], tmp_path: Path
) -> None:
    process, url = serve(run_orch, *engine, env=NO_GPU)
    with sdk_at(url) as sdk:
        batch = create(sdk, [row(f"r{n}", "[[fault:slow:500]]", model="small") for n in range(100)])
        wait_until(lambda: retrieve(sdk, batch.id).status == "in_progress")
    guard = parent_of(starts(tmp_path)[0]["pid"])
    os.kill(guard, signal.SIGSTOP)  # as if the engine took its time to end
    try:
        kill_group(process)
        process.wait()
        process = run_orch.start("serve", "--port", "0", *engine, env=NO_GPU)
        wait_until(lambda: "waiting for the engines of a killed server" in run_orch.output(process))
        assert len(starts(tmp_path)) == 1
    finally:
        os.kill(guard, signal.SIGCONT)
    url = url_of(run_orch, process)
    first, second = starts(tmp_path)
    assert not is_running(first["pid"])
    assert first["options"] == second["options"]
    with sdk_at(url) as sdk:
        ended(sdk, batch.id, 60).check([f"r{n}" for n in range(100)])


def test_a_model_that_cannot_fit_is_refused_at_once(run_orch: Orch, engine: tuple[str, ...], tmp_path: Path) -> None:
    model_folder(tmp_path / "large", 140 * GIB)
    path = fake_nvidia_smi(tmp_path, "0, 80000, 79000", "1, 80000, 79000")
    arguments = ("serve", "--port", "0", *engine, "--vllm", str(tmp_path / "large"))
    done = run_orch(*arguments, env={"PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert done.returncode == 3
    assert "weights of 140.0 GiB need 155.0 GiB, and vLLM may use 71.9 GiB" in done.stderr
    assert "--tensor-parallel 4" in done.stderr
    assert starts(tmp_path) == []


def test_gpus_that_are_not_there(run_orch: Orch, engine: tuple[str, ...], tmp_path: Path) -> None:
    path = fake_nvidia_smi(tmp_path, "0, 80000, 79000")
    done = run_orch(
        "serve", "--port", "0", *engine, "--gpus", "0,1", env={"PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"}
    )
    assert done.returncode == 2
    assert "GPU 1 is not on this machine; there are: 0" in done.stderr


def test_an_engine_that_cannot_start_ends_it_with_the_reason(
    run_orch: Orch, engine: tuple[str, ...], tmp_path: Path
) -> None:
    refuse(tmp_path, "api_server.py: error: unrecognized arguments: --no-such", code=2)
    done = run_orch("serve", "--port", "0", *engine, "--", "--no-such", env=NO_GPU)
    assert done.returncode == 4
    assert "loading weights" in done.stderr
    assert "error: unrecognized arguments: --no-such; given up" in done.stderr


def test_engines_that_are_all_given_up_end_the_server(
    run_orch: Orch, engine: tuple[str, ...], tmp_path: Path
) -> None:
    process, _ = serve(run_orch, *engine, env=NO_GPU)
    refuse(tmp_path, "RuntimeError: the GPU fell off the bus", code=2)
    os.kill(starts(tmp_path)[0]["pid"], signal.SIGKILL)
    assert process.wait(PATIENCE) == 4
    assert "the GPU fell off the bus" in run_orch.output(process)


def test_ctrl_c_while_engines_start(run_orch: Orch, engine: tuple[str, ...], tmp_path: Path) -> None:
    process = run_orch.start("serve", "--port", "0", *engine, env=NO_GPU)
    pid = wait_until(lambda: starts(tmp_path))[0]["pid"]
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert not is_running(pid)
