"""Each document is opened once in a night, however many tasks ask about it, and not at all in the next one."""

from __future__ import annotations

import time
from pathlib import Path

from orchestrator.documents.unchanged_files import stamp
from tests.support.cli import Orch, write_config
from tests.support.opened import opened
from tests.support.process import Upstream, wait_until

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, prompt: Name the author.}
  - {id: facts, model: small, prompt: List the facts.}
models: {small: some-model}
"""


def test_a_document_is_read_once_a_night(tmp_path: Path, orch_home: Path, upstream: Upstream, run_orch: Orch) -> None:
    write_config(orch_home, [upstream.base_url])
    folder, job = tmp_path / "documents", tmp_path / "job.yaml"
    folder.mkdir()
    job.write_text(JOB, encoding="utf-8")
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"Letter {number} says enough to be a document.", encoding="utf-8")
        (folder / f"{number}.html").write_text(f"<p>Page {number} says enough, too.</p>", encoding="utf-8")
    # A file that has just changed is read once more in the next night.
    wait_until(lambda: all(stamp(str(path), "", time.time_ns()) for path in folder.iterdir()))

    with opened(folder) as first:
        assert run_orch("run", str(job)).returncode == 0
    assert first == {path.name: 1 for path in folder.iterdir()}

    (folder / "7.txt").write_text("Letter 7 was written again, with other words.", encoding="utf-8")
    with opened(folder) as second:
        assert run_orch("run", str(job)).returncode == 0
    assert second == {"7.txt": 1}
