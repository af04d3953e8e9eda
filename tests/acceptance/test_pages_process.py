"""`orch up --web`: its pages come from a process of their own, which lives exactly as long as the daemon does."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.cli.pages import PagesOptions
from orchestrator.cli.pages_process import PagesProcess
from orchestrator.core.listening import bound
from orchestrator.library.context import opened
from orchestrator.server.engines.supervisor import RestartPolicy
from tests.support.cli import Orch, Process, write_config
from tests.support.process import wait_until
from tests.support.webhome import pages_of

WAIT = 60.0
NOWHERE = ["http://127.0.0.1:9/v1"]
BUDGET = '[[budgets]]\nname = "team"\namount = {amount}\nperiod = "month"\n'

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")


@dataclass
class Window:
    """A daemon that serves pages, and a key that opens its metrics."""

    orch: Orch
    daemon: Process
    url: str
    secret: str

    def metrics(self) -> dict[str, float] | None:
        """The metrics that have no labels, and the budgets by name; None while nobody answers."""
        try:
            told = httpx2.get(f"{self.url}/metrics", headers={"authorization": f"Bearer {self.secret}"}, timeout=20)
        except httpx2.TransportError:
            return None
        assert told.status_code == 200, told.text
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(told.text)
            for sample in family.samples
            if set(sample.labels) <= {"budget"}
        }

    def until(self, name: str, holds: Callable[[float], bool]) -> float:
        """The value of a metric as soon as it is as wanted."""

        def found() -> tuple[float] | None:
            value = (self.metrics() or {}).get(name)
            return (value,) if value is not None and holds(value) else None

        return wait_until(found, WAIT)[0]

    def pages(self) -> int:
        """The process id of the pages."""
        return wait_until(lambda: next(iter(pages_of(self.daemon.pid)), None), WAIT)

    def told(self) -> str:
        return self.orch.output(self.daemon)


def is_gone(pid: int) -> bool:
    """Whether nothing of a process is left but, at most, an entry that nobody has collected: no thread, no socket."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except OSError:
        return True


@pytest.fixture
def window(run_orch: Orch) -> Window:
    write_config(run_orch.home, NOWHERE, extra=BUDGET.format(amount=40))
    secret = run_orch("keys", "add", "prometheus", "--right", "view").stdout.strip()
    return opened_at(run_orch, "127.0.0.1:0", secret)


def opened_at(orch: Orch, address: str, secret: str) -> Window:
    daemon = orch.start("up", "-q", "--web", address)
    found = wait_until(lambda: re.search(r"pages at (http://\S+)/enter", orch.output(daemon)), WAIT)
    return Window(orch, daemon, found[1], secret)


@pytest.mark.long
def test_the_pages_come_back_when_their_process_dies_and_end_with_the_daemon(window: Window) -> None:
    link = re.findall(r"http://\S+", window.told())[-1]
    with httpx2.Client(timeout=WAIT) as reader:
        assert reader.get(link).status_code == 200
        first = window.pages()
        rounds = window.until("orch_daemon_rounds_total", lambda rounds: rounds > 0)
        os.kill(first, signal.SIGTERM)  # as where all processes of a service are told: it is the daemon's to end it
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: is_gone(first), WAIT)
        # Whoever comes meanwhile waits in the socket, which the daemon holds; and the cookie holds.
        assert reader.get(window.url).status_code == 200
        assert window.pages() != first
        assert window.until("orch_daemon_rounds_total", lambda now: now > rounds) > rounds, "one daemon all the time"
        second = window.pages()
        window.daemon.kill()
        window.daemon.wait()
        wait_until(lambda: is_gone(second), WAIT)
        with pytest.raises(httpx2.TransportError):
            reader.get(window.url)
        again = opened_at(window.orch, window.url.partition("//")[2], window.secret)
        assert reader.get(again.url).status_code == 200
    last = again.pages()
    again.daemon.send_signal(signal.SIGTERM)
    assert again.daemon.wait(WAIT) == 0
    assert is_gone(last)
    assert again.told().endswith("orch: stopped; nothing is lost\n")


@pytest.mark.long
def test_what_the_pages_say_of_the_loop_and_of_the_settings_is_the_daemons(window: Window) -> None:
    window.until("orch_daemon_silent_seconds", lambda silent: silent < 5)
    os.kill(window.daemon.pid, signal.SIGSTOP)
    try:
        rounds = window.until("orch_daemon_rounds_total", bool)
        window.until("orch_daemon_silent_seconds", lambda silent: silent > 2)
        assert window.until("orch_daemon_rounds_total", bool) - rounds <= 1, "a round may have been under way"
    finally:
        os.kill(window.daemon.pid, signal.SIGCONT)
    window.until("orch_daemon_silent_seconds", lambda silent: silent < 2)
    assert window.until("orch_budget_amount_dollars", bool) == 40
    toml = window.orch.home / "orch.toml"
    toml.write_text("[backends.local\n")
    wait_until(lambda: "is not valid TOML" in window.told(), WAIT)
    assert window.until("orch_budget_amount_dollars", bool) == 40, "the daemon keeps to what it had"
    write_config(window.orch.home, NOWHERE, extra=BUDGET.format(amount=50))
    window.until("orch_budget_amount_dollars", lambda amount: amount == 50)


def test_what_keeps_pages_from_being_served_is_said_at_the_start(run_orch: Orch) -> None:
    write_config(run_orch.home, NOWHERE)
    with bound("127.0.0.1", 0) as taken:
        told = run_orch("up", "--web", f"127.0.0.1:{taken.getsockname()[1]}")
        assert (told.returncode, "Address already in use" in told.stderr) == (4, True), told.stderr
    told = run_orch("up", "--web", "no-such-host.invalid:0")
    assert (told.returncode, "is not an address to listen on" in told.stderr) == (2, True), told.stderr
    told = run_orch("up", "--web", "0.0.0.0:0")
    assert (told.returncode, "orch keys add NAME --right view" in told.stderr) == (2, True), told.stderr
    (run_orch.home / "web.key").write_bytes(b"short")
    told = run_orch("up", "--web", "127.0.0.1:0")
    assert (told.returncode, "is damaged" in told.stderr) == (4, True), told.stderr


def test_pages_that_die_again_and_again_are_given_up(
    orch_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(orch_home, NOWHERE)
    monkeypatch.setenv("ORCH_HOME", str(orch_home))
    monkeypatch.setenv("ORCH_CONFIG", str(orch_home / "orch.toml"))
    listener = bound("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with opened() as context:
        pages = PagesProcess(context, listener, PagesOptions("127.0.0.1"), RestartPolicy(first=0.01, tries=2))
        with pages:
            seen = set[int]()
            while len(seen) < 2:
                pid = wait_until(lambda: next(iter(set(pages_of(os.getpid())) - seen), None), WAIT)
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)
            said = ""

            def is_said() -> bool:
                nonlocal said
                said += capsys.readouterr().err
                return "2 times in a row" in said

            wait_until(is_said, WAIT)
            assert "was ended by signal 9, 2 times in a row; `orch view` serves them meanwhile" in said
            with pytest.raises(httpx2.TransportError):
                httpx2.get(f"http://127.0.0.1:{port}/")
            assert pages_of(os.getpid()) == []
