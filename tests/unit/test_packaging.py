"""What is packed is what is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from orchestrator import __version__

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_is_named_in_pyproject() -> None:
    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "orchestrator").rglob("__init__.py")}
    assert named == there | {"orchestrator.migrations", "orchestrator.migrations.versions"}


def test_the_change_log_dates_the_version() -> None:
    versions = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == "Unreleased"
    dated = [re.fullmatch(r"(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)", version) for version in versions[1:]]
    assert [found and found[1] for found in dated][:1] == [__version__]


def test_the_container_copies_the_files_that_the_metadata_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = (ROOT / "deploy/Containerfile").read_text()
    assert [name for name in (project["readme"], *project["license-files"]) if f" {name} " not in copied] == []


def test_every_long_run_is_in_a_part() -> None:
    made = (ROOT / "Makefile").read_text()
    assert [path.name for path in ROOT.glob("tests/soak/test_*.py") if f" tests/soak/{path.name}" not in made] == []


def test_the_package_is_the_command_too() -> None:
    version = ["--version"]
    said = [
        subprocess.run([sys.executable, "-m", name, *version], capture_output=True, text=True, check=True).stdout
        for name in ("orchestrator", "orchestrator.cli")
    ]
    assert said[0] == said[1] == f"orch, version {__version__}\n"
