"""A job file that is edited while a job of it is unfinished: the flags, and the question at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import MakeUpstream
from tests.support.accesslog import read_log
from tests.support.cli import Orch, write_config
from tests.support.process import PATIENCE, Upstream, wait_until


@pytest.fixture
def job_file(orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path) -> Path:
    write_config(orch_home, [make_upstream().base_url])
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("A letter.")
    return write(tmp_path / "job.yaml", "one")


def write(path: Path, tag: str) -> Path:
    path.write_text(
        f"name: letters\ndocuments: letters\nmodels: {{small: m}}\ntags: {{x: {tag}}}\n"
        "tasks: [{id: who, prompt: Who wrote this, model: small}]\n"
    )
    return path


def read(terminal: int) -> str:
    """What came, "" once the other end is closed."""
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        return ""


def submitted(run_orch: Orch, path: Path, *options: str) -> str:
    ran = run_orch("submit", str(path), "--json", *options)
    assert ran.returncode == 0, ran.stderr
    return str(json.loads(ran.stdout)["job"])


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("options", "first_ends"), [((), "cancelled"), (("--supersede",), "cancelled"), (("--beside",), "completed")]
)
def test_flags_say_what_becomes_of_the_earlier_job(
    run_orch: Orch, job_file: Path, options: tuple[str, ...], first_ends: str
) -> None:
    first = submitted(run_orch, job_file)
    second = submitted(run_orch, write(job_file, "two"), *options)
    assert run_orch("run", str(job_file), "-q").returncode == 0
    ended = json.loads(run_orch("status", second, "--json").stdout)
    assert ended["state"] == "completed"
    earlier = json.loads(run_orch("status", first, "--json").stdout)
    assert (earlier["state"], first_ends) != ("completed", "cancelled")
    assert ("superseded" in json.dumps(earlier["events"])) is (first_ends == "cancelled")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("answer", ["supersede", "finish", "beside"])
def test_a_terminal_is_asked(run_orch: Orch, orch_home: Path, job_file: Path, answer: str) -> None:
    first = submitted(run_orch, job_file)
    write(job_file, "two")
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    env = {**os.environ, "ORCH_HOME": str(orch_home), "ORCH_CONFIG": str(orch_home / "orch.toml")}
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "submit", str(job_file)],
        stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, env=env,
    ) as process:  # fmt: skip
        os.close(theirs)
        told = "".join(iter(lambda: read(ours), ""))
        assert process.stdout is not None
        shown = process.stdout.read().decode().strip()
        assert process.wait(PATIENCE) == 0, told
    os.close(ours)
    assert f"job {first} of this file is unfinished" in told
    assert "no batch under way; without an answer yet: 1 of 1 row" in told
    assert (shown == first) is (answer == "finish")


ROWS, SLOTS = 8, 2


@pytest.mark.long
def test_rows_in_flight_at_a_local_server_are_asked_once(
    run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream, tmp_path: Path
) -> None:
    upstream = make_upstream(slots=SLOTS, latency_ms=300)
    write_config(orch_home, [upstream.base_url])
    (tmp_path / "letters").mkdir()
    for number in range(ROWS):
        (tmp_path / "letters" / f"{number}.txt").write_text(f"Letter {number}.")
    path = write(tmp_path / "job.yaml", "one")
    run_orch.start("up", "-q")
    first = submitted(run_orch, path)
    wait_until(lambda: len(asked(upstream)) > SLOTS, 60.0)
    with upstream.held():
        second = submitted(run_orch, write(path, "two"))
        wait_until(lambda: state_of(run_orch, second) not in ("waiting", "building"), 60.0)
    assert run_orch("run", str(path), "-q").returncode == 0
    ended = json.loads(run_orch("status", second, "--json").stdout)
    assert (ended["state"], ended["requests"]["succeeded"]) == ("completed", ROWS)
    assert state_of(run_orch, first) in ("cancelled", "completed")
    assert sorted(asked(upstream).values()) == [1] * ROWS


def asked(upstream: Upstream) -> Counter[str]:
    """How often each request came."""
    return Counter(one["sha"] for one in read_log(upstream.log))


def state_of(run_orch: Orch, job: str) -> str:
    return str(json.loads(run_orch("status", job, "--json").stdout)["state"])
