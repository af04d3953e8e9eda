"""A small job that is lived through before processes are forked: what it compiled is there in each of them.

Statements, models of files and readers of messages take a third of a small command where each compiles its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.databases import share_statements
from tests.support.forking import end_parents
from tests.support.hostedjob import desk_of

JOB = """
name: letters
documents: letters
tasks: [{id: gist, model: small, prompt: "What is it?", max_tokens: 8}]
models: {small: {openai: gpt-4o-mini}}
"""


def live_through_a_job() -> None:
    """From a folder to answers, in this process and no thread of it."""
    share_statements()
    with tempfile.TemporaryDirectory(prefix="orch-warm-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        (folder / "letters").mkdir()
        (folder / "letters/a.txt").write_text("Dear Ms Aster, the roof leaks.")
        (folder / "job.yaml").write_text(JOB)
        with Emulator(folder / "provider") as provider, desk_of(provider, folder, patch) as desk:
            desk.run(folder / "job.yaml")
    end_parents()
