"""`orch show`, names for ids, and watching: on a home with two nights of real runs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Orch, write_config
from tests.support.process import PATIENCE, Upstream, wait_until

JOB = """\
name: letters
documents:
  - path: letters
tasks:
  - id: sort
    model: small
    system: You are brief.
    prompt: What is it?
    max_tokens: 40
  - id: parts
    model: small
    prompt: Which parts?
    long: {part_tokens: 100, overlap_tokens: 0, reduce: Make one of these.}
    max_tokens: 40
models: {small: some-model}
"""


@pytest.fixture
def orch(run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path) -> Orch:
    (tmp_path / "letters").mkdir()
    for name in ("a", "b"):
        (tmp_path / "letters" / f"{name}.txt").write_text(f"letter {name}")
    (tmp_path / "letters" / "long.txt").write_text("Many words of a long letter. " * 40)
    (tmp_path / "letters" / "empty.txt").write_text("")
    (tmp_path / "job.yaml").write_text(JOB)
    write_config(orch_home, [upstream.base_url])
    return run_orch


def shown(orch: Orch, *arguments: str) -> Any:
    ran = orch("show", *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_what_was_asked_and_answered(orch: Orch, tmp_path: Path) -> None:
    first = json.loads(orch("run", str(tmp_path / "job.yaml"), "--json", timeout=90).stdout)["job"]
    (tmp_path / "letters" / "b.txt").write_text("another letter b")
    second = json.loads(orch("run", str(tmp_path / "job.yaml"), "--json", timeout=90).stdout)["job"]

    [row] = shown(orch, first, "a.txt", "--task", "sort")["rows"]
    assert [message["role"] for message in row["request"]["messages"]] == ["system", "user"]
    assert "letter a" in row["request"]["messages"][1]["content"]
    assert row["request"]["model"] == "some-model", "as it was sent"
    assert (row["status"], row["document"], row["gone"]) == ("succeeded", "letters/a.txt", [])
    assert row["output"].startswith("echo:")

    [carried] = shown(orch, "letters", "a.txt", "--task", "sort")["rows"]
    assert carried["provenance"]["carried_from"] == first
    assert (carried["request"], carried["output"]) == (row["request"], row["output"]), "it was asked in the first run"

    parts = shown(orch, second, "long.txt", "--task", "parts")["rows"]
    assert [part["stage"] for part in parts] == ["reduce", *["map"] * parts[0]["parts"]]
    [unread, _] = shown(orch, second, "letters/empty.txt")["rows"]
    assert (unread["request"], unread["error"]["code"]) == (None, "empty")

    words = orch("show", "letters", "b.txt", "--task", "sort")
    assert f"orch: letters is {second}" in words.stderr
    for text in ("letters/b.txt: sort", "succeeded", "You are brief.", "another letter b", "echo:", "max_tokens 40"):
        assert text in words.stdout
    request, result = map(json.loads, orch("show", second, "b.txt", "--task", "sort", "--raw").stdout.splitlines())
    assert request["custom_id"] == result["custom_id"]

    fetched = orch("fetch", "letters").stdout.splitlines()
    assert fetched == orch("fetch", second).stdout.splitlines() != orch("fetch", first).stdout.splitlines()
    for wrong, told in (
        (("letters", "c.txt"), "did you mean"), (("letters", "*.txt"), "matches several"),
        (("letters", "a.txt", "--task", "x"), "known: sort, parts"), (("nothing", "a.txt"), "no job 'nothing'"),
    ):  # fmt: skip
        ran = orch("show", *wrong)
        assert (ran.returncode, told in ran.stderr) == (2, True), ran.stderr
    (orch.home / "jobs" / first / "requests.jsonl").unlink()
    [gone] = shown(orch, first, "a.txt", "--task", "sort")["rows"]
    assert gone["request"] is None
    assert "cannot be read" in gone["gone"][0]


@pytest.mark.long
def test_ctrl_c_in_a_watch_says_that_the_watch_ended_and_nothing_else(
    run_orch: Orch, orch_home: Path, tmp_path: Path
) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("letter")
    (tmp_path / "job.yaml").write_text(JOB)
    job = run_orch("submit", str(tmp_path / "job.yaml")).stdout.strip()
    env = {**os.environ, "ORCH_HOME": str(orch_home), "ORCH_CONFIG": str(orch_home / "orch.toml"), "TERM": "xterm"}
    for what in ([], [job]):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "orchestrator.cli", "status", *what, "--watch"]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env) as process:
            os.close(theirs)
            seen = b""
            while b"queued" not in seen:
                seen += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=PATIENCE)
        os.close(ours)
        assert (process.returncode, told.decode()) == (130, "orch: the watch has ended\n")


def test_who_follows_a_daemon_and_stops_is_told_that_it_goes_on(
    run_orch: Orch, orch_home: Path, tmp_path: Path
) -> None:
    write_config(orch_home, ["http://127.0.0.1:9/v1"])
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("letter")
    (tmp_path / "job.yaml").write_text(JOB)
    up = run_orch.start("up")
    wait_until(lambda: "is up" in run_orch.output(up))
    run = run_orch.start("run", str(tmp_path / "job.yaml"))
    wait_until(lambda: "following it" in run_orch.output(run))
    os.kill(run.pid, signal.SIGINT)
    assert run.wait(PATIENCE) == 130
    assert f"orch: stopped; `orch up` (process {up.pid}) continues letters-" in run_orch.output(run)
