"""Files as they should be and homes for mistakes: a folder whose commands leave no job, and what is expected of them.

The modules beside this one hold the mistakes: what a file has, where orch finds it, and its cure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.store import Store

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - id: sender
    model: small
    prompt: Who wrote this?
models: {small: some-model}
"""
TOML = """\
[backends.local]
upstreams = ["http://127.0.0.1:9/v1"]
location = "local"
idle = true
"""
HOSTED = '[backends.g]\nkind = "openai"\napi_key_env = "K"\n'
ENGINES = '[backends.gpu]\nkind = "engines"\ncost_per_hour = 1\n[backends.gpu.models]\na = {model = "x"}\n'
KEY, PASSWORD = "sk-proj-abcdefghijklmnop1234567890", "hunter2secret"
SECRETS = (
    "whsec_C2FVsBQIhrscChlQIMV",
    "gsk_abcdefghij0123456789abcd",
    "AKIA0123456789ABCDEF",
    "AIzaSyA0123456789abcdefghij_klmn",
    "a3f1a3f1a3f1a3f1a3f1a3f1a3f1a3f1",
    "Xq7TzR2mWp9KsL4vNb8Yd3Hf",
)
Case = tuple[str, str, str]
"""What the file holds, where orch finds a mistake, and its cure."""


def task(line: str) -> str:
    """A job file with one more field of its task, in line 7."""
    return JOB.replace("Who wrote this?\n", f"Who wrote this?\n    {line}\n")


def prompt(text: str) -> str:
    """A job file with another prompt, in line 6."""
    return JOB.replace("Who wrote this?", text)


def source(text: str) -> str:
    """A job file with another line 2."""
    return JOB.replace("documents: {path: documents}", text)


@contextmanager
def no_job_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with its own settings and home, in which no command may leave a job or schedule."""
    for name, value in {"ORCH_CONFIG": folder / "orch.toml", "ORCH_HOME": folder / "home"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(folder)
    yield folder
    if (folder / "home" / "orch.db").exists():
        with Store.open(f"sqlite:///{folder / 'home' / 'orch.db'}") as store:
            assert store.jobs.newest() == [], "a mistake leaves no job"
            assert store.schedules.all() == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a document."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "1.txt").write_text("Dear reader", encoding="utf-8")
    with no_job_from(tmp_path, monkeypatch):
        yield tmp_path
