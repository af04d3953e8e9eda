"""Command lines and surroundings that used to end in a traceback: what they say now, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.validate_and_doctor import _examine_upstream
from tests.support import canned
from tests.support.batchapi import jsonl, row
from tests.support.cli import Orch, write_config
from tests.support.process import PATIENCE, upstreams


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Orch, str]]:
    """A home with one finished job, and the job's id."""
    folder = tmp_path_factory.mktemp("review")
    home = folder / "home"
    home.mkdir()
    with upstreams(folder) as make:
        write_config(home, [make(latency_ms=0).base_url])
        orch = Orch(home)
        (folder / "in.jsonl").write_bytes(jsonl([row(f"row-{number}") for number in range(300)]))
        assert orch("run", str(folder / "in.jsonl"), "-q").returncode == 0
        yield orch, json.loads(orch("status", "--json").stdout)[0]["job"]


def shell(orch: Orch, command: str) -> subprocess.CompletedProcess[str]:
    """A command line with `orch` in it, as bash runs it."""
    script = f'set -o pipefail; orch() {{ "{sys.executable}" -m orchestrator.cli "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", script], env=orch.environment(None), cwd=orch.home.parent, capture_output=True, text=True,
        check=False, timeout=PATIENCE,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("merged", ["", " 2>&1"])
def test_a_reader_that_has_enough_is_no_failure(done: tuple[Orch, str], merged: str) -> None:
    orch, job = done
    read = shell(orch, f"orch fetch {job}{merged} | head -c 1")
    assert (read.returncode, read.stdout) == (0, "{")
    assert "Error" not in read.stderr
    assert shell(orch, f"orch status {job}{merged} | true").returncode == 0


@pytest.mark.long
def test_a_full_stdout_is_a_storage_error(done: tuple[Orch, str]) -> None:
    orch, job = done
    full = shell(orch, f"orch fetch {job} > /dev/full")
    assert (full.returncode, full.stderr) == (
        4, "orch: cannot write to stdout: No space left on device\n  hint: -o FILE writes to a file\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (".", "is a folder"), ("/", "is a folder"), ("in.jsonl/x", "is not a folder"),
        ("in.jsonl/no/x", "is not a folder"), ("/dev/null", "is not a regular file"),
        ("in.jsonl", "is the job's own input file"),
        ("x" * 300, "File name too long"),
    ],
)  # fmt: skip
def test_an_output_that_cannot_be(done: tuple[Orch, str], output: str, told: str) -> None:
    orch, job = done
    before = sorted(orch.home.parent.iterdir())
    refused = orch("fetch", job, "-o", output)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr
    assert sorted(orch.home.parent.iterdir()) == before


def test_a_folder_for_an_output_is_made(done: tuple[Orch, str]) -> None:
    orch, job = done
    assert orch("fetch", job, "-o", "no/such/x.jsonl").returncode == 0
    assert (orch.home.parent / "no/such/x.jsonl").read_bytes().count(b"\n")


@pytest.mark.parametrize("since", ["9999999d", "9" * 5000 + "d", "9" * 30 + "m"])
def test_a_time_that_no_calendar_reaches(done: tuple[Orch, str], since: str) -> None:
    refused = done[0]("report", "cost", "--since", since)
    assert refused.returncode == 2
    assert refused.stderr.startswith("orch: --since 9999999")


def test_surroundings_that_are_none(done: tuple[Orch, str], tmp_path: Path) -> None:
    orch, _ = done
    broken = tmp_path / "broken.toml"
    broken.write_text("a = 1\nb = = 2\n")
    for env, told in (
        ({"ORCH_NOW": "x"}, "orch: ORCH_NOW: 'x' is not a time"),
        ({"ORCH_CONFIG": "/nowhere.toml"}, "orch: /nowhere.toml: there is no such file"),
        ({"ORCH_CONFIG": str(broken)}, f"orch: {broken}:2: is not valid TOML: Invalid value"),
    ):
        refused = orch("status", env=env)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(told)


def test_an_upstream_that_is_not_there_does_not_answer() -> None:
    (_, ok, told, code), _ = _examine_upstream("local", "http://127.0.0.1:9/v1", None)
    assert (ok, code) == (False, 4)
    assert told.startswith("does not answer: ")
    assert told.endswith("; start it, or correct its address in orch.toml")


@pytest.mark.parametrize("models", [b'{"data": ["x"]}', b'{"data": null}', b'{"data": 5}', b"[]", b"x"])
def test_an_upstream_whose_models_are_none(monkeypatch: pytest.MonkeyPatch, models: bytes) -> None:
    monkeypatch.setattr(canned, "MODELS", models)
    with canned.canned(b"") as upstream:
        (_, ok, told, code), _ = _examine_upstream("local", upstream.base_url, None)
    assert (ok, code) == (False, 4)
    assert told.startswith("does not answer like an OpenAI-compatible server")
