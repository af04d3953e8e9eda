"""What each command imports of the packages that orch depends on: what a command does not use, it does not import."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from tests.support.cli import write_config
from tests.support.process import ROOT, Upstream

COMMAND = """
import sys
from orchestrator.cli import run
code = run(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    print(code, *{name.partition(".")[0] for name in sys.modules}, file=file)
"""
LOOKING = {"click", "msgspec"}
CHECKING = LOOKING | {"backports", "jinja2", "pydantic", "yaml"}
READING = CHECKING | {"sqlalchemy"}
SERVING = {"h11", "httptools", "httpx2", "python_multipart", "starlette", "uvicorn", "uvloop"}
JOB = """
name: ten
models: {small: {local: tiny}}
documents: {path: letters}
tasks: [{id: sum, model: small, prompt: "Summarise."}]
"""


def _dependencies() -> set[str]:
    """The names that the packages of pyproject.toml are imported by, the extras' among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (lines for extra, lines in project["optional-dependencies"].items() if extra not in ("fast", "dev"))
    wanted = {
        re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in chain(project["dependencies"], *extras)
    }
    found = {
        name for name, owners in packages_distributions().items() if wanted & {owner.lower() for owner in owners}
    }
    return found - {"orchestrator"}


NEEDED = {
    "--help": {"click"},
    "status": LOOKING,
    "validate job.yaml": CHECKING,
    "plan job.yaml": READING | {"h11", "httpx2"},  # it asks each backend whether it answers
    "submit job.yaml": READING,
    "run rows.jsonl": (READING | SERVING) - {"jinja2", "yaml"},
    "run job.yaml": READING | SERVING,
}


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.parametrize("command", NEEDED)
def test_what_a_command_does_not_use_is_not_imported(tmp_path: Path, upstream: Upstream, command: str) -> None:
    write_config(tmp_path, [f"{upstream.root_url}/v1"])
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "letters").mkdir()
    for number in range(10):
        (tmp_path / "letters" / f"{number}.txt").write_text(f"Letter {number}")
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    surroundings = {"ORCH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}

    def imported(*arguments: str) -> list[str]:
        told = subprocess.run(
            [sys.executable, "-c", COMMAND, "imported", *arguments], cwd=tmp_path, env=surroundings,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        return (tmp_path / "imported").read_text().split()

    if command in ("status", "validate job.yaml"):
        imported("submit", "job.yaml")  # there is a home with a job
    code, *modules = imported(*command.split())
    assert code == "0"
    assert _dependencies() & set(modules) == NEEDED[command]
