"""A mistake in the settings is told before a run makes anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_mistake_in_the_settings_leaves_a_fresh_home_untouched(tmp_path: Path, command: str) -> None:
    home, settings = tmp_path / "home", tmp_path / "orch.toml"
    settings.write_text("[backends.local]\nupstream = 3\n", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", command, str(tmp_path / "rows.jsonl")],
        env={"ORCH_CONFIG": str(settings), "ORCH_HOME": str(home), "PATH": "/usr/bin", "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 2
    assert "orch.toml" in told.stderr
    assert not home.exists()
