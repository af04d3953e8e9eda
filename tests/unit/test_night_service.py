"""The systemd unit and the container file run what is here, and stop it as it wants to be stopped."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "orch.service"


def test_the_unit_runs_up_and_lets_it_end() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text(encoding="utf-8"))
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["up"]
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "on-failure"
    assert int(service["RestartPreventExitStatus"]) == InputError.exit_code


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: apt-get install systemd"
)
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """But for the program and the user, which are not on this machine."""
    text = UNIT.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text).replace("User=orch", "User=root")
    there = tmp_path / UNIT.name
    there.write_text(text, encoding="utf-8")
    found = subprocess.run(["systemd-analyze", "verify", str(there)], capture_output=True, text=True, check=False)
    assert [line for line in found.stderr.splitlines() if UNIT.name in line] == []
    assert found.returncode == 0, found.stderr


def test_the_container_takes_what_is_there_and_runs_up() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"(?m)^COPY (.+)$", text) for name in line.split()[:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert 'ENTRYPOINT ["orch"]\nCMD ["up"]' in text
    assert "STOPSIGNAL SIGTERM" in text
