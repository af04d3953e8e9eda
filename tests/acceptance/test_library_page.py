"""The page about Python: its code as it stands, from the first block to the last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import write_config
from tests.support.library import end_daemon, use_home
from tests.support.pdfs import latin
from tests.support.process import ROOT, Upstream

PAGE = ROOT / "docs/reference/python.md"


@pytest.fixture
def folder(tmp_path: Path, orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "some-model"\n')
    use_home(orch_home, monkeypatch)
    (tmp_path / "contracts" / "2026").mkdir(parents=True)
    for name in ("contracts/lease.pdf", "contracts/2026/loan.pdf"):
        (tmp_path / name).write_bytes(latin([f"The contract {name} ends on 30 November 2026."]))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    end_daemon(orch_home)


def test_every_block_of_the_page_runs(folder: Path, upstream: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "page", "BASE_URL": upstream.base_url}
    for number, block in enumerate(blocks, 1):
        # Not dedented and not changed: what stands there is what runs. One namespace, as in a notebook.
        exec(compile(block, f"block {number} of {PAGE.name}", "exec", dont_inherit=True), names)

    said = capsys.readouterr().out
    assert len(blocks) >= 8
    assert "contracts/lease.pdf" in said
    assert "did you mean 'text'?" in said
    assert "failed" not in said
