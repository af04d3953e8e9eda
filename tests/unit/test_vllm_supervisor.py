"""Engines that are kept running: real processes, the test upstream in vLLM's place."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.server.engines import EngineUnavailable
from orchestrator.server.engines.launch import Planned, Wish, plan_engines
from orchestrator.server.engines.process import log_cause
from orchestrator.server.engines.supervisor import RestartPolicy, Supervisor
from tests.support.fakevllm import fake_nvidia_smi, fake_vllm, model_folder, refuse, starts
from tests.support.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the engine and its leash run on Linux")

SOON = RestartPolicy(first=0.05, longest=0.2, well=3600.0, tries=3)


def planned(folder: Path, gpus: int = 0) -> tuple[Planned, ...]:
    """One engine on the CPU, or one on each of so many GPUs."""
    model_folder(folder / "model")
    indexes = [str(index) for index in range(gpus)]
    path = fake_nvidia_smi(folder, *(f"{index}, 80000, 79000" for index in indexes))
    environ = {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ",".join(indexes)}
    wish = Wish(str(folder / "model"), python=fake_vllm(folder))
    return plan_engines(wish, folder / "serve", environ).engines


@contextmanager
def supervised(engines: tuple[Planned, ...], told: list[str], patience: RestartPolicy = SOON) -> Iterator[Supervisor]:
    with Supervisor(engines, tell=told.append, patience=patience) as supervisor:
        yield supervisor


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def states(supervisor: Supervisor) -> list[str]:
    return [engine["state"] for engine in supervisor.report()]


@given(st.integers(1, 1000))
def test_the_pause_grows_and_has_an_end(deaths: int) -> None:
    patience = RestartPolicy()
    assert patience.pause(1) == 1.0
    assert patience.pause(deaths) <= patience.pause(deaths + 1) <= 60.0
    assert patience.pause(7) == 60.0


@pytest.mark.long
def test_one_that_dies_comes_back_at_the_same_address(tmp_path: Path) -> None:
    told: list[str] = []
    with supervised(planned(tmp_path), told) as supervisor:
        assert supervisor.wait_ready()
        (url,) = supervisor.urls
        for number in range(2, 6):
            os.kill(starts(tmp_path)[-1]["pid"], signal.SIGKILL)
            wait_until(lambda number=number: len(starts(tmp_path)) == number)
            wait_until(lambda: states(supervisor) == ["ready"])
        assert supervisor.urls == [url]
        (report,) = supervisor.report()
        assert report["starts"] == 5
    assert sum("killed by SIGKILL; started again in" in line for line in told) == 4
    assert len({" ".join(start["options"]) for start in starts(tmp_path)}) == 1


@pytest.mark.long
def test_one_that_hangs_is_ended_and_comes_back(tmp_path: Path) -> None:
    """A vLLM that was told to stop was seen to hang in its shutdown, and nothing took its place."""
    told: list[str] = []
    with supervised(planned(tmp_path), told, replace(SOON, deaf=0.4)) as supervisor:
        assert supervisor.wait_ready()
        first = starts(tmp_path)[-1]["pid"]
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: len(starts(tmp_path)) == 2)
        wait_until(lambda: states(supervisor) == ["ready"])
        assert not is_running(first)
    assert "has answered no health check for 0 s; started again in" in told[1]


@pytest.mark.slow
def test_one_that_never_gets_ready_is_given_up_with_the_reason(tmp_path: Path) -> None:
    told: list[str] = []
    refuse(tmp_path, "ValueError: no such rope")
    with supervised(planned(tmp_path), told) as supervisor, pytest.raises(EngineUnavailable) as caught:
        supervisor.wait_ready()
    assert len(starts(tmp_path)) == 3
    assert "loading weights" in str(caught.value)
    assert "cpu.log" in str(caught.value)
    assert "the engine ended with code 1: ValueError: no such rope; started again in" in told[0]
    assert told[-1].endswith("3 times in a row, and never was ready; given up")


@pytest.mark.slow
def test_a_command_line_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    told: list[str] = []
    refuse(tmp_path, "api_server.py: error: unrecognized arguments: --no-such", code=2)
    with (
        supervised(planned(tmp_path), told) as supervisor,
        pytest.raises(EngineUnavailable, match="unrecognized arguments: --no-such"),
    ):
        supervisor.wait_ready()
    assert len(starts(tmp_path)) == 1


@pytest.mark.long
def test_one_that_was_ready_is_not_given_up(tmp_path: Path) -> None:
    told: list[str] = []
    with supervised(planned(tmp_path), told) as supervisor:
        supervisor.wait_ready()
        refuse(tmp_path, "RuntimeError: a bad day")
        os.kill(starts(tmp_path)[-1]["pid"], signal.SIGKILL)
        wait_until(lambda: len(starts(tmp_path)) == 3)
        refuse(tmp_path, None)
        wait_until(lambda: states(supervisor) == ["ready"])
        assert supervisor.hopeless is None


@pytest.mark.long
def test_all_given_up_later_is_hopeless(tmp_path: Path) -> None:
    told: list[str] = []
    with supervised(planned(tmp_path), told) as supervisor:
        supervisor.wait_ready()
        refuse(tmp_path, "RuntimeError: the GPU fell off the bus")
        os.kill(starts(tmp_path)[-1]["pid"], signal.SIGKILL)
        error = wait_until(lambda: supervisor.hopeless)
        assert "the GPU fell off the bus" in str(error)


@pytest.mark.long
def test_engines_side_by_side_each_with_its_gpu(tmp_path: Path) -> None:
    told: list[str] = []
    with supervised(planned(tmp_path, gpus=2), told) as supervisor:
        assert supervisor.wait_ready()
        assert len(set(supervisor.urls)) == 2
        assert sorted(start["gpus"] for start in starts(tmp_path)) == ["0", "1"]
    assert not any(is_running(start["pid"]) for start in starts(tmp_path))
    assert states(supervisor) == ["stopped", "stopped"]


@pytest.mark.slow
def test_stopping_while_one_waits_for_its_next_start(tmp_path: Path) -> None:
    told: list[str] = []
    patience = RestartPolicy(first=3600.0, longest=3600.0)
    refuse(tmp_path, "ValueError: not today")
    with supervised(planned(tmp_path), told, patience) as supervisor:
        wait_until(lambda: states(supervisor) == ["waiting"])
        assert not supervisor.wait_ready(lambda: True)
    assert len(starts(tmp_path)) == 1


@pytest.mark.slow
def test_stopping_while_one_starts(tmp_path: Path) -> None:
    told: list[str] = []
    with supervised(planned(tmp_path), told) as supervisor:
        pid = wait_until(lambda: starts(tmp_path))[0]["pid"]
        assert not supervisor.wait_ready(lambda: True)
    assert not is_running(pid)
    assert len(starts(tmp_path)) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine on")]


@pytest.mark.slow
def test_progress_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    with supervised(planned(tmp_path), told) as supervisor:
        supervisor.wait_ready(every=0.0)
    assert any(line.startswith("engine on the CPU: 0 s") for line in told)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("INFO all is well\n", None),
        ("(EngineCore pid=7) ERROR 08-01 [core.py:1] ValueError: Memory is short\nx\n"
         "RuntimeError: Engine core initialization failed. See root cause above.\n", "ValueError: Memory is short"),
        ("api_server.py: error: unrecognized arguments: --x\n", "error: unrecognized arguments: --x"),
        ("torch.OutOfMemoryError: CUDA out of memory.\n", "torch.OutOfMemoryError: CUDA out of memory."),
    ],
)  # fmt: skip
def test_the_cause_in_a_log(tmp_path: Path, log: str, cause: str | None) -> None:
    (tmp_path / "log").write_text(log)
    assert log_cause(tmp_path / "log") == cause
