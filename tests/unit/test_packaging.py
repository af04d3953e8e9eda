"""What is packed is what is there."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_is_named_in_pyproject() -> None:
    named = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "orchestrator").rglob("__init__.py")}
    assert named == there | {"orchestrator.migrations", "orchestrator.migrations.versions"}
