"""The page of traps and the tests that are named after them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAP = re.compile(r"test_trap_\w+")


def test_the_page_of_traps_names_every_test_of_one_and_no_other() -> None:
    named = TRAP.findall((ROOT / "docs" / "reference" / "traps.md").read_text(encoding="utf-8"))
    files = (ROOT / "tests").rglob("test_*.py")
    written = [name for file in files for name in re.findall(r"^def (test_trap_\w+)", file.read_text(), re.MULTILINE)]
    assert sorted(named) == sorted(written)
