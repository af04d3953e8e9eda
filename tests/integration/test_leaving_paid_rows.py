"""A process that leaves as it was asked to waits for rows in flight that are billed: none of them is paid twice."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator as orch
from tests.emulator.client import Emulator
from tests.emulator.driving import chat_line, jsonl
from tests.support.cli import CONFIG, Orch, Process
from tests.support.hostedjob import KEY, plain, settings_of, write_toml
from tests.support.library import use_home
from tests.support.process import wait_until
from tests.support.scripted import Answer, Asked, scripted

SLOTS, ROWS = 4, 10
HELD, QUICK = "held", "quick"
WAITS = "waiting for rows in flight at api, which are billed; a second Ctrl-C does not wait"
OF_TERMINAL = "import os, sys; os.login_tty(1); os.execv(sys.argv[1], sys.argv[1:])"
"""Runs a command in a session whose terminal is its output."""
CHAT = "/v1/chat/completions"
ENV = {"API_KEY": "k"}
MESSAGE = {"index": 0, "message": {"role": "assistant", "content": "well"}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
ROW = 20e-6
"""Dollars that a row costs."""


class Provider:
    """Bills each request as it comes. Answers rows that say HELD only once it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.bill: Counter[str] = Counter()
        self.quick_after = 0

    def answer(self, asked: Asked) -> Answer:
        if asked.path != CHAT:
            return Answer({"object": "list", "data": [{"id": "m", "object": "model"}]})
        text = json.loads(asked.body)["messages"][-1]["content"]
        self.bill[text] += 1
        if HELD in text:
            self.let.wait()
        else:
            self.in_flight(self.quick_after)
        return Answer({"object": "chat.completion", "model": "m", "choices": [MESSAGE], "usage": USAGE})

    def in_flight(self, count: int) -> None:
        """Wait until so many rows are held."""
        wait_until(lambda: sum(number for text, number in self.bill.items() if HELD in text) >= count)


@pytest.fixture
def provider(orch_home: Path) -> Iterator[Provider]:
    """A provider, and a home whose one backend is in front of it."""
    made = Provider()
    with scripted(made.answer) as at:
        (orch_home / CONFIG).write_text(
            f'[backends.api]\nkind = "sync"\nbase_url = "{at.base_url}"\nprovider = "p"\napi_key_env = "API_KEY"\n'
            f'max_concurrency = {SLOTS}\n[models]\nm = "m"\n[prices.m]\ninput = 1\noutput = 2\n'
        )
        yield made
        made.let.set()


def written(folder: Path, word: str, count: int) -> str:
    """The path of a file of rows with this word."""
    path = folder / f"{word}.jsonl"
    path.write_bytes(jsonl([chat_line(f"r{number}", f"{word} {number}", max_tokens=9) for number in range(count)]))
    return str(path)


def booked(orch: Orch, env: dict[str, str]) -> tuple[float, float]:
    """Of how many rows the ledger has the cost, and how many of them may not be billed."""
    total = json.loads(orch("report", "cost", "--json", env=env).stdout)["total"]
    return float(total["cost_usd"]) / ROW, float(total["uncertain_usd"]) / ROW


def wait_until_it_waits(orch: Orch, process: Process) -> None:
    """Until it says so, or has ended without."""
    wait_until(lambda: WAITS in " ".join(orch.output(process).split()) or process.poll() is not None)


@pytest.mark.long
@pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("command", ["run", "up"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_that_is_stopped_pays_no_row_twice(
    number: int, command: str, database_url: str, run_orch: Orch, provider: Provider, tmp_path: Path
) -> None:
    env = {**ENV, "ORCH_DATABASE_URL": database_url}
    rows = written(tmp_path, HELD, ROWS)
    if command == "up":
        assert run_orch("submit", rows, env=env).returncode == 0
    process = run_orch.start(*(["up"] if command == "up" else ["run", rows]), env=env)
    provider.in_flight(SLOTS)
    process.send_signal(number)
    wait_until_it_waits(run_orch, process)
    provider.let.set()
    assert process.wait(60) == (0 if command == "up" else 130)
    assert sum(provider.bill.values()) == SLOTS, "it sends nothing more"

    assert run_orch("run", rows, env=env).returncode == 0
    assert set(provider.bill.values()) == {1}
    assert booked(run_orch, env) == (pytest.approx(ROWS), 0)


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "up"])
@pytest.mark.parametrize("lost", ["terminal", "pipe"])
def test_a_daemon_whose_output_nobody_reads_any_more_pays_no_row_twice(
    lost: str, command: str, run_orch: Orch, provider: Provider, tmp_path: Path
) -> None:
    """A terminal is closed, which is a SIGHUP; or Ctrl-C has ended `| tee` as well."""
    rows = written(tmp_path, HELD, ROWS)
    assert run_orch("submit", rows, env=ENV).returncode == 0
    reader, writer = pty.openpty() if lost == "terminal" else os.pipe()
    in_session = [sys.executable, "-c", OF_TERMINAL] if lost == "terminal" else []
    arguments = ["up", "-q"] if command == "up" else ["run", "-q", rows]
    with subprocess.Popen(
        [*in_session, sys.executable, "-m", "orchestrator.cli", *arguments],
        stdin=writer, stdout=writer, stderr=writer, env=run_orch.environment(ENV), start_new_session=True,
    ) as process:  # fmt: skip
        os.close(writer)
        provider.in_flight(SLOTS)
        os.close(reader)
        if lost == "pipe":
            process.send_signal(signal.SIGINT)
        log = run_orch.home / "engine.log"
        wait_until(lambda: WAITS in log.read_text() or process.poll() is not None)
        provider.let.set()
        process.wait(60)

    assert run_orch("run", rows, env=ENV).returncode == 0
    assert set(provider.bill.values()) == {1}
    assert booked(run_orch, ENV) == (pytest.approx(ROWS), 0)


@pytest.mark.long
def test_a_run_whose_own_job_is_over_waits_for_rows_of_another(
    run_orch: Orch, provider: Provider, tmp_path: Path
) -> None:
    held = written(tmp_path, HELD, 2)
    assert run_orch("submit", held, env=ENV).returncode == 0
    provider.quick_after = 2
    process = run_orch.start("run", written(tmp_path, QUICK, 1), env=ENV)
    wait_until_it_waits(run_orch, process)
    provider.let.set()
    assert process.wait(60) == 0

    assert run_orch("run", held, env=ENV).returncode == 0
    assert set(provider.bill.values()) == {1}
    assert booked(run_orch, ENV) == (pytest.approx(3), 0)


def test_signals_of_a_terminal_that_closes_are_no_second_one(
    run_orch: Orch, provider: Provider, tmp_path: Path
) -> None:
    """A shell passes on its own, and a service manager sends SIGTERM as well."""
    rows = written(tmp_path, HELD, ROWS)
    process = run_orch.start("run", rows, env=ENV)
    provider.in_flight(SLOTS)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    wait_until_it_waits(run_orch, process)
    process.send_signal(signal.SIGHUP)
    provider.let.set()
    assert process.wait(60) == 130

    assert run_orch("run", rows, env=ENV).returncode == 0
    assert set(provider.bill.values()) == {1}


@pytest.mark.long
def test_a_second_interrupt_does_not_wait_and_its_rows_are_booked_as_uncertain(
    run_orch: Orch, provider: Provider, tmp_path: Path
) -> None:
    rows = written(tmp_path, HELD, ROWS)
    process = run_orch.start("run", rows, env=ENV)
    provider.in_flight(SLOTS)
    process.send_signal(signal.SIGINT)
    wait_until_it_waits(run_orch, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    provider.let.set()

    assert run_orch("run", rows, env=ENV).returncode == 0
    assert sum(provider.bill.values()) == ROWS + SLOTS
    total, uncertain = booked(run_orch, ENV)
    assert uncertain > 0
    assert total - uncertain == pytest.approx(ROWS)


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupted_map_waits_for_its_rows_once(
    interrupts: int, orch_home: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    use_home(orch_home, monkeypatch)
    monkeypatch.setenv("API_KEY", "k")
    caplog.set_level("INFO", "orch")
    over = threading.Event()

    def interrupt() -> None:
        provider.in_flight(SLOTS)
        for _ in range(interrupts):
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: over.is_set() or WAITS in caplog.text)
        if interrupts == 1:
            provider.let.set()

    def ask() -> Any:
        frame = [{"text": f"{HELD} {number}"} for number in range(ROWS)]
        return orch.map(frame, "{{ text }}", model="m", name="slow", max_tokens=9, progress=False)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        ask()
    over.set()
    watcher.join()
    provider.let.set()
    assert [row["error"] for row in ask()] == [None] * ROWS
    assert sum(provider.bill.values()) == ROWS + (SLOTS if interrupts == 2 else 0)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_row_that_is_asked_before_its_batch_is_waited_for(number: int, tmp_path: Path) -> None:
    run_orch = Orch(tmp_path / "home")
    run_orch.home.mkdir()
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(jsonl(plain(30)))
    with Emulator(tmp_path / "provider", speed=600.0) as provider:
        # Longer than other calls are waited for.
        provider.settings(turnaround_s=[200, 200], latency_ms=5000)
        env = {**provider.environment, "OPENAI_KEY": KEY}
        write_toml(run_orch.home / CONFIG, {"openai": settings_of(provider, "openai", preflight=True)})
        process = run_orch.start("run", str(rows), env=env)
        # A call is billed when it comes, and counted when it is answered.
        wait_until(lambda: provider.bill(rows=True)["asked"], 60)
        process.send_signal(number)
        assert process.wait(60) == 130

        assert run_orch("run", str(rows), env=env).returncode == 0
        assert set(provider.bill(rows=True)["asked"].values()) == {1}
        assert booked(run_orch, env)[1] == 0
    run_orch.close()
