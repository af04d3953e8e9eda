"""`orch up` lives through nights on a clock that the test sets: killed in the middle, each night is run once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.emulator.clock import ClockFile
from tests.support.cli import Orch, kill_group, write_config
from tests.support.process import wait_until

SPEED = 240.0
"""Four minutes of the clock a second."""
LETTERS, SLOTS = 8, 2
HANGING = {"06", "07"}
"""Letters whose first request is never answered: one for each slot, so that a kill that comes late finds them too."""
WAIT = 60.0
FIRST = datetime(2026, 10, 24, 20, tzinfo=UTC)
"""22:00 in Berlin, of the night in which clocks there are set back: the next is 25 hours later."""
JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, max_tokens: 50, prompt: "Who wrote this?"}
models: {small: some-model}
"""


class Nights:
    """A home with a schedule, and what a user asks of it."""

    def __init__(self, orch: Orch, folder: Path) -> None:
        self.orch = orch
        self.clock = ClockFile(folder / "clock.json", FIRST - timedelta(minutes=10))
        self.env = {"ORCH_CLOCK": str(self.clock.path)}
        self.file = folder / "job.yaml"
        self.file.write_text(JOB, encoding="utf-8")
        (folder / "documents").mkdir()
        for number in range(LETTERS):
            name = f"{number:02}"
            self.write(name, "[[fault:hang:1]]" if name in HANGING else "")

    def write(self, name: str, text: str = "") -> None:
        (self.file.parent / "documents" / f"{name}.txt").write_text(f"Dear {name}, {text}", encoding="utf-8")

    def ask(self, *arguments: str) -> Any:
        return json.loads(self.orch(*arguments, "--json", env=self.env, timeout=WAIT).stdout)

    def states(self) -> dict[str, str]:
        return {night["night"]: night["state"] for night in self.ask("schedule", "nights")}


@pytest.fixture
def nights(run_orch: Orch, tmp_path: Path) -> Nights:
    return Nights(run_orch, tmp_path)


def test_two_nights_a_kill_and_a_clock_that_jumps(
    nights: Nights, run_orch: Orch, orch_home: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(slots=SLOTS, latency_ms=250, log_bodies=True)
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, max_concurrency=SLOTS)
    when = ("--cron", "0 22 * * *", "--tz", "Europe/Berlin", "--deadline", "06:00")
    nights.ask("schedule", "add", str(nights.file), *when)

    # The first night is cut off while its rows run.
    first = run_orch.start("up", env=nights.env)
    wait_until(lambda: "is up" in run_orch.output(first), WAIT)
    assert nights.states() == {}
    status = run_orch("status", env=nights.env).stdout.splitlines()
    assert status[-2:] == [
        f"daemon: `orch up` (process {first.pid}) runs",
        "next night: letters, Sat 2026-10-24 22:00 Europe/Berlin, in 10 min",
    ]
    nights.clock.set(FIRST, speed=SPEED)
    wait_until(lambda: sum(document_of(entry) in HANGING for entry in upstream.requests()) == SLOTS, WAIT)
    kill_group(first)
    first.wait()
    assert nights.states() == {"2026-10-24": "running"}

    second = run_orch.start("up", env=nights.env)
    wait_until(lambda: nights.states() == {"2026-10-24": "done"}, WAIT)
    [one] = nights.ask("schedule", "nights")
    assert one["reason"] == f"{LETTERS} rows: {LETTERS} succeeded"
    [job] = nights.ask("status")
    assert (job["job"], job["state"], job["deadline_at"]) == (one["job"], "completed", "2026-10-25T05:00:00+00:00")

    # A letter more, and one that was written anew: the second night asks about these two alone.
    asked = Counter(document_of(entry) for entry in upstream.requests())
    nights.write("99")
    nights.write("03", "written anew.")
    nights.clock.set(FIRST + timedelta(hours=24, minutes=59))
    wait_until(lambda: nights.states() == {"2026-10-24": "done", "2026-10-25": "done"}, WAIT)
    more = Counter(document_of(entry) for entry in upstream.requests()) - asked
    assert more == {"03": 1, "99": 1}
    # What a kill may cost again: the rows in flight, and those answered just before, not durable yet.
    assert sum(asked.values()) - LETTERS <= 2 * SLOTS

    # Nothing changed; then the clock goes back, and the same evening comes again.
    nights.clock.set(FIRST + timedelta(days=2, hours=1))
    wait_until(lambda: nights.states().get("2026-10-26") == "done", WAIT)
    third = nights.ask("schedule", "nights")[-1]
    assert third["reason"].startswith(f"nothing changed since job {third['job']}: {LETTERS + 1} rows")
    nights.clock.set(FIRST + timedelta(days=1, minutes=59))
    wait_until(lambda: nights.clock.now() > FIRST + timedelta(days=1, hours=1, minutes=3))
    assert len(nights.states()) == 3
    assert len(nights.ask("status")) == 2

    # A broken job file is that night's failure, and not the end of the daemon, which ends when it is asked to.
    nights.file.write_text(JOB.replace("tasks", "taks"), encoding="utf-8")
    nights.clock.set(FIRST + timedelta(days=3, hours=1))
    wait_until(lambda: nights.states().get("2026-10-27") == "failed", WAIT)
    second.send_signal(signal.SIGTERM)
    assert second.wait(WAIT) == 0
    told = run_orch.output(second)
    assert "orch: letters, night of 2026-10-27: failed: " in told
    assert "did you mean 'tasks'" in told
    assert told.endswith("orch: stopped; nothing is lost\n")
    assert len(upstream.requests()) == sum(asked.values()) + 2


def document_of(entry: dict[str, Any]) -> str:
    """Which letter a request is about."""
    text: str = json.loads(entry["body"])["messages"][0]["content"]
    return text.split("Dear ")[1][:2]
