"""A disk, lock or stream that cannot be used: exit 4 and one line, whatever the command."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.library.context import log_to
from orchestrator.settings.home import Home
from tests.support.cli import Orch

COMMANDS = [
    "status", "up", "gc", "budget", "report cost", "report night", "quarantine list", "schedule list", "engines",
    "acknowledge", "fetch x", "cancel x", "retry x", "show x y", "diff a b", "keys list", "backup b.tar", "view",
]  # fmt: skip


def orch(home: Path, command: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    if stdout is None:
        return Orch(home)(*command.split(), env={"ORCH_CONFIG": ""})
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *command.split()],
        env={**os.environ, "ORCH_HOME": str(home), "ORCH_CONFIG": ""}, cwd=home.parent, check=False, timeout=120,
        stdout=stdout, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_home_that_is_a_file_ends_no_command_with_a_traceback(tmp_path: Path, command: str) -> None:
    home = tmp_path / "home"
    home.write_text("")
    done = orch(home, command)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2, 4)


@pytest.mark.parametrize("command", ["status", "status --json", "--help", "help row-errors"])
def test_a_result_that_cannot_be_written_is_exit_4(tmp_path: Path, command: str) -> None:
    orch(tmp_path / "home", "status")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = orch(tmp_path / "home", command, full)
    finally:
        os.close(full)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    assert done.stderr.strip().splitlines()[-1] == "orch: cannot write to stdout: No space left on device"


@pytest.mark.parametrize("command", ["statu --json", "show nothing --json"])
def test_a_failure_whose_json_cannot_be_written_is_told_on_stderr_alone(tmp_path: Path, command: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = orch(tmp_path / "home", command, full)
    finally:
        os.close(full)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "orch: " in done.stderr


@pytest.mark.parametrize("name", ["engine.lock", "orch.db"])
def test_a_small_file_that_is_a_folder_is_one_line(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    orch(home, "status")
    place = Home(home).lock if name == "engine.lock" else home / name
    place.unlink(missing_ok=True)
    place.mkdir(parents=True)
    for command in ("up", "gc", "status --json"):
        done = orch(home, command)
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 4)
        if command.endswith("--json") and done.returncode:
            assert json.loads(done.stdout)["error"]["exit_code"] == 4


def test_a_log_on_a_full_disk_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    home.log.symlink_to("/dev/full")
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log_to(home)
        for number in range(50):
            logging.getLogger("orchestrator").warning("line %d", number)
    finally:
        for handler in root.handlers:
            with suppress(OSError):
                handler.close()
        root.handlers[:] = before
        root.setLevel(level)
    err = capsys.readouterr().err
    assert err.count("cannot write the log") == 1
    assert "Traceback" not in err
