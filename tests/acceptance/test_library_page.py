"""The page of the Python interface: its blocks as they stand, one after the other in one Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import write_config
from tests.support.library import end_daemon
from tests.support.process import PATIENCE, ROOT, Upstream
from tests.unit.test_documents_pictures import text_page

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_block_of_the_page_runs_as_it_stands(orch_home: Path, upstream: Upstream, tmp_path: Path) -> None:
    config = write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "some-model"\n')
    folder = tmp_path / "contracts" / "2026"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.pdf").write_bytes(text_page(f"Contract {number} ends on 30 November 2026."))
    page = blocks("docs/reference/python.md")
    assert len(page) == 8
    code = "\n".join([f"BASE_URL = {upstream.base_url!r}", *page, *blocks("README.md")])
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    env = {**os.environ, "ORCH_HOME": str(orch_home), "ORCH_CONFIG": str(config)}
    try:
        done = subprocess.run(
            [sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=10 * PATIENCE
        )
    finally:
        end_daemon(orch_home)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\S*[012]\.pdf \d{4}-\d\d-\d\d \S+ local$", done.stdout, re.MULTILINE)) == 3, done.stdout
    assert "did you mean 'text'?" in done.stdout
