"""`orch up` builds in processes of their own: a document that takes long, or kills its builder, harms one job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from orchestrator.policy.internal_errors import TRIES
from tests.conftest import MakeUpstream
from tests.emulator.clock import ClockFile
from tests.support.cli import Orch, Process, kill_group, write_config
from tests.support.inthread import serving
from tests.support.process import wait_until
from tests.support.raycluster import below, command_of

WAIT = 60.0
SMALL = 3
JOB = """\
name: %s
documents: %s
tasks:
  - {id: sender, model: small, max_tokens: 50, prompt: "Who wrote this?"}
models: {small: some-model}
"""


@contextmanager
def slow_site() -> Iterator[tuple[str, Event]]:
    """Where a document is: it is answered at once, or not before the event is set once it was cleared."""
    answers = Event()
    answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            answers.wait(WAIT)
            self._answer(b"Dear reader.")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "12")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *about: object) -> None:
            pass

    with serving(Handler) as port:
        try:
            yield f"http://127.0.0.1:{port}/letter.html", answers
        finally:
            answers.set()


class Night:
    """A schedule whose document does not come, and one of three that are there."""

    def __init__(self, orch: Orch, folder: Path, env: dict[str, str], answers: Event, url: str) -> None:
        self.orch = orch
        self.clock = ClockFile(folder / "clock.json", speed=1.0)
        self.env = {**env, "ORCH_CLOCK": str(self.clock.path)}
        self.answers = answers
        (folder / "documents").mkdir()
        for number in range(SMALL):
            (folder / "documents" / f"{number}.txt").write_text(f"Dear {number}", encoding="utf-8")
        for name, place in (("slow", f"{{path: '{url}'}}"), ("small", "{path: documents}")):
            path = folder / f"{name}.yaml"
            path.write_text(JOB % (name, place), encoding="utf-8")
            self.ask("schedule", "add", str(path), "--cron", "0 22 1 1 *", "--tz", "UTC")

    def ask(self, *arguments: str) -> Any:
        done = self.orch(*arguments, "--json", env=self.env, timeout=WAIT)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    def begin(self, *names: str) -> Process:
        for name in names:
            assert self.orch("schedule", "run", name, env=self.env).returncode == 0
        self.up = self.orch.start("up", env=self.env)
        return self.up

    def jobs(self) -> dict[str, tuple[str, int]]:
        """The state and the rows of each job, by name."""
        found = self.ask("status")
        jobs = {job["name"]: (job["state"], job["requests"]["total"]) for job in found}
        assert len(jobs) == len(found), f"one job each: {found}"
        return jobs

    def night(self, name: str) -> Any:
        [found] = [one for one in self.ask("schedule", "nights") if one["schedule"] == name]
        return found

    def builder(self) -> int:
        """The process that builds the slow job."""
        pids = wait_until(lambda: [pid for pid in below(self.up.pid) if "build_processes" in command_of(pid)], WAIT)
        wait_until(lambda: self.jobs().get("slow") == ("building", 0), WAIT)
        return max(pids)


def is_gone(pid: int) -> bool:
    return not command_of(pid)


@pytest.fixture(params=["sqlite", "postgres"])
def night(
    request: pytest.FixtureRequest, run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path
) -> Iterator[Night]:
    env = {"ORCH_DATABASE_URL": request.getfixturevalue("postgres_url")} if request.param == "postgres" else {}
    write_config(run_orch.home, [make_upstream().base_url], retry_delay=0.01)
    with slow_site() as (url, answers):
        yield Night(run_orch, tmp_path, env, answers, url)


@pytest.mark.soak  # `make test` has it in test_build_processes
@pytest.mark.thinned(2)
def test_a_document_that_takes_long_holds_up_no_other_job(night: Night) -> None:
    night.answers.clear()
    night.begin("slow", "small")
    wait_until(lambda: night.jobs().get("small") == ("completed", SMALL), WAIT)
    assert night.jobs()["slow"] == ("building", 0)
    night.answers.set()
    wait_until(lambda: night.night("slow")["state"] == "done", WAIT)
    assert night.jobs()["slow"] == ("completed", 1)


@pytest.mark.long
@pytest.mark.thinned(9)
@pytest.mark.parametrize("who", ["builder", "daemon", "both", "SIGTERM"])
def test_a_kill_costs_no_row_and_no_second_job(night: Night, who: str) -> None:
    night.answers.clear()
    night.begin("slow")
    builder = night.builder()
    if who in ("builder", "both"):
        os.kill(builder, signal.SIGKILL)
    if who in ("daemon", "both"):
        os.kill(night.up.pid, signal.SIGKILL)
        night.up.wait(WAIT)
    if who == "SIGTERM":
        night.up.send_signal(signal.SIGTERM)
        assert night.up.wait(WAIT) == 0
    wait_until(lambda: is_gone(builder), WAIT)
    night.answers.set()
    if who == "builder":
        wait_until(lambda: "was ended by signal 9" in night.orch.output(night.up), WAIT)
        night.clock.set(night.clock.now() + timedelta(minutes=1))
    else:
        night.up = night.orch.start("up", env=night.env)
    wait_until(lambda: night.night("slow")["state"] == "done", WAIT)
    assert night.jobs()["slow"] == ("completed", 1)


@pytest.mark.thinned(2)
def test_one_that_is_cancelled_ends_at_once(night: Night) -> None:
    night.answers.clear()
    night.begin("slow")
    builder = night.builder()
    assert night.ask("cancel", "slow")["state"] == "cancelled"
    assert is_gone(builder)
    failed = wait_until(lambda: found if (found := night.night("slow"))["state"] == "failed" else None, WAIT)
    assert failed["code"] == "cancelled"
    assert night.jobs()["slow"] == ("cancelled", 0)


@pytest.mark.thinned(2)
def test_a_job_whose_builder_dies_each_time_ends_by_name(night: Night) -> None:
    night.answers.clear()
    night.begin("slow")
    for number in range(1, TRIES + 1):
        os.kill(night.builder(), signal.SIGKILL)
        wait_until(lambda number=number: night.orch.output(night.up).count("ended by signal 9") == number, WAIT)
        night.clock.set(night.clock.now() + timedelta(minutes=20))
    failed = wait_until(lambda: found if (found := night.night("slow"))["state"] == "failed" else None, WAIT)
    assert failed["code"] == "internal_error"
    assert failed["reason"] == "the process that built it was ended by signal 9"
    assert "slow" not in night.jobs()
    assert night.orch("schedule", "run", "small", env=night.env).returncode == 0
    wait_until(lambda: night.jobs().get("small") == ("completed", SMALL), WAIT)
    kill_group(night.up)
