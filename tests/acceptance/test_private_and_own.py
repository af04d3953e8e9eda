"""Who may read what is written, whose files are overwritten, and to whom keys go: through the command line."""

from __future__ import annotations

import json
import os
import pty
import stat
import sys
from pathlib import Path

import pytest

from tests.support.cli import Orch, write_config
from tests.support.process import Upstream, wait_until

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: t, model: m, prompt: Tell the gist., max_tokens: 20}
models: {m: m}
"""


@pytest.fixture
def job(tmp_path: Path, orch_home: Path, upstream: Upstream) -> Path:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("A secret letter.")
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_in_the_home_is_its_owners_and_what_was_asked_for_is_the_users(
    run_orch: Orch, orch_home: Path, tmp_path: Path, job: Path
) -> None:
    orch_home.chmod(0o755)
    job.write_text(JOB + "output: {path: out/night/rows.csv, format: csv}\n")
    before = os.umask(0o022)
    try:
        ran = run_orch("run", str(job), "-o", "mine.jsonl", cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        found = run_orch("report", "cost", "--by", "job", "--html", "cost.html", cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        kept = run_orch("backup", "home.tar", cwd=tmp_path)
        assert kept.returncode == 0, kept.stderr
    finally:
        os.umask(before)
    assert f"other users can read {orch_home} (drwxr-xr-x): chmod -R go-rwx {orch_home}" in ran.stderr
    written = [path for path in orch_home.rglob("*") if path.is_file() and path.name != "orch.toml"]
    assert {"requests.jsonl", "results.jsonl", "orch.db", "engine.log", "settings.json"} <= {
        one.name for one in written
    }
    assert {path.name: oct(mode(path)) for path in written if mode(path) & 0o077} == {}
    asked = {
        name: mode(tmp_path / name) for name in ("mine.jsonl", "cost.html", "out/night/rows.csv", "out", "out/night")
    }
    assert asked == {
        "mine.jsonl": 0o644, "cost.html": 0o644, "out/night/rows.csv": 0o644, "out": 0o755, "out/night": 0o755,
    }  # fmt: skip
    assert mode(tmp_path / "home.tar") == 0o600, "all prompts and answers are in it"


def test_a_file_that_is_overwritten_keeps_its_rights(run_orch: Orch, tmp_path: Path, job: Path) -> None:
    (tmp_path / "mine.jsonl").touch(mode=0o640)
    (tmp_path / "mine.jsonl").chmod(0o640)
    assert run_orch("run", str(job), "-o", "mine.jsonl", cwd=tmp_path).returncode == 0
    assert mode(tmp_path / "mine.jsonl") == 0o640


@pytest.mark.long
def test_a_file_of_somebody_is_overwritten_only_on_demand(
    run_orch: Orch, tmp_path: Path, job: Path, upstream: Upstream
) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_text("years of work")
    for command in (("run", str(job)), ("validate", str(job)), ("submit", str(job))):
        if command[0] != "run":
            job.write_text(JOB + "output: {path: mine.jsonl}\n")
        options = ("-o", str(mine)) if command[0] == "run" else ()
        refused = run_orch(*command, *options)
        assert (refused.returncode, mine.read_text()) == (2, "years of work"), command
        assert "already exists, and orch did not write it" in refused.stderr
        assert "--force" in refused.stderr
    assert upstream.requests() == [], "and nothing was asked"

    job.write_text(JOB)
    assert run_orch("run", str(job), "-o", str(mine), "--force").returncode == 0
    rows = mine.read_text()
    assert json.loads(rows)["status"] == "succeeded"
    again = run_orch("run", str(job), "-o", str(mine))
    assert again.returncode == 0, again.stderr
    mine.write_text(rows + "a note of mine\n")
    edited = run_orch("run", str(job), "-o", str(mine))
    assert (edited.returncode, "orch did not write it" in edited.stderr) == (2, True)
    [name] = [one.name for one in (run_orch.home / "jobs").iterdir()]
    assert run_orch("fetch", name, "-o", str(mine)).returncode == 2
    assert run_orch("fetch", name, "-o", str(mine), "--force").returncode == 0
    assert mine.read_text() == rows
    assert run_orch("fetch", name, "-o", str(mine)).returncode == 0


@pytest.mark.long
def test_a_page_of_somebody_is_overwritten_only_on_demand(run_orch: Orch, tmp_path: Path, job: Path) -> None:
    assert run_orch("run", str(job)).returncode == 0
    page = tmp_path / "night.html"
    page.write_text("mine")
    for report in (("report", "night"), ("report", "cost")):
        refused = run_orch(*report, "--html", str(page))
        assert (refused.returncode, page.read_text()) == (2, "mine")
        assert f"--html {page}: already exists, and orch did not write it" in refused.stderr
    assert run_orch("report", "night", "--html", str(page), "--force").returncode == 0
    assert run_orch("report", "cost", "--html", str(page)).returncode == 0, "its own is written anew"
    assert "mine" not in page.read_text()


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("answer", "code"), [("n\n", 2), ("y\n", 0), ("\x03", 130), ("\x04", 130)])
def test_whoever_sits_at_the_terminal_is_asked(
    run_orch: Orch, tmp_path: Path, job: Path, answer: str, code: int
) -> None:
    job.write_text(JOB + "output: {path: mine.jsonl}\n")
    (tmp_path / "mine.jsonl").write_text("years of work")
    command = [sys.executable, "-m", "orchestrator.cli", "submit", str(job)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command, run_orch.environment(None))
    said = b""

    def read(until: bytes) -> bool:
        nonlocal said
        try:
            said += os.read(terminal, 4096)
        except OSError:
            return True
        return until in said

    wait_until(lambda: read(b"Overwrite it?"), 60)
    os.write(terminal, answer.encode())
    wait_until(lambda: read(b"\0never\0"), 60)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == code, said.decode()
    assert b"Traceback" not in said, said.decode()


FOREIGN = """
[backends.theirs]
kind = "openai"
base_url = "https://gateway.invalid/v1"
api_key_env = "MY_PRECIOUS"
profile = "openai"

[backends.known]
kind = "anthropic"
api_key_env = "OTHER"

[backends.here]
kind = "local"
upstreams = ["http://127.0.0.1:9/v1"]
api_key_env = "MINE"
idle = true

[reports]
email_to = ["me@example.com"]
smtp = {host = "mail.example.net", from = "orch@example.com", user_env = "MAIL_USER", password_env = "MAIL_PASSWORD"}
"""


def test_an_orch_toml_that_was_found_says_to_whom_keys_go_before_they_do(
    run_orch: Orch, tmp_path: Path, job: Path
) -> None:
    toml = tmp_path / "orch.toml"
    toml.write_text(FOREIGN)
    env = {"ORCH_CONFIG": "", "MY_PRECIOUS": "k", "OTHER": "k"}
    told = f"orch: {toml}, found here, sends the key in MY_PRECIOUS to https://gateway.invalid/v1"
    submitted = run_orch("submit", str(job), env=env, cwd=tmp_path)
    assert submitted.stderr.startswith(told), submitted.stderr
    assert f"orch: {toml}, found here, sends the key in MAIL_PASSWORD to mail.example.net" in submitted.stderr
    assert "OTHER" not in submitted.stderr, "a provider's own address is no news"
    assert "the key in MINE" not in submitted.stderr, "nor is one of this machine"
    reconciled = run_orch("reconcile", "theirs", env=env, cwd=tmp_path)
    assert told in reconciled.stderr
    assert told in run_orch("doctor", env=env, cwd=tmp_path).stderr
    named = run_orch("submit", str(job), env={**env, "ORCH_CONFIG": str(toml)}, cwd=tmp_path)
    assert "found here" not in named.stderr
