"""The package's modules as syntax trees: parsed once in a process, for all tests that look at them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "orchestrator"


@cache
def modules() -> dict[Path, tuple[ast.Module, str]]:
    """Each module of the package: its tree and its text."""
    found = {}
    # A collection looks at every node that there is, which takes twice as long as to parse them all.
    gc.disable()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found[path] = ast.parse(text), text
    gc.freeze()
    gc.enable()
    return found
