"""What is packed is what is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli.help_pages import find_pages

ROOT = Path(__file__).resolve().parents[2]


def test_the_extra_all_has_every_extra_of_a_user() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [both] = extras["all"]
    assert both == f"orch-batch[{','.join(sorted(extras.keys() - {'all', 'dev', 'fast'}))}]"


def test_every_page_of_the_documentation_is_packed() -> None:
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    found = {path for patterns in packed.values() for pattern in patterns for path in ROOT.glob(pattern)}
    assert [path for path in (ROOT / "docs").rglob("*") if path.is_file() and path not in found] == []
    for folder, patterns in packed.items():
        if folder.startswith("share/doc"):
            below = folder.removeprefix("share/doc/orch-batch").lstrip("/")
            assert {str(Path(pattern).parent) for pattern in patterns} == {str(Path("docs") / below)}


@pytest.mark.slow
def test_messages_name_pages_that_orch_help_has() -> None:
    pages, named = find_pages(), set()
    for file in (ROOT / "orchestrator").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        named |= set(re.findall(r"`orch help ([\w/-]+)`", text))
        for line in re.findall(r"""(?:hint=|say\(|told = |return )f?["'].*""", text):
            assert "docs/" not in line, f"{file.name}: an installed orch has no checkout: {line}"
    assert "retention-and-backup" in named
    assert named <= pages.keys()


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


@pytest.mark.slow
def test_the_package_is_the_command_too() -> None:
    version = ["--version"]
    said = [
        subprocess.run([sys.executable, "-m", name, *version], capture_output=True, text=True, check=True).stdout
        for name in ("orchestrator", "orchestrator.cli")
    ]
    assert said[0] == said[1] == f"orch, version {__version__}\n"
