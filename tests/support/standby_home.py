"""Two machines with one home: `orch up --replica` on both, of which the active one dies, is paused, or is stopped."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.replica.storage import open_storage
from orchestrator.core.replica.who_is_active import HeadLog
from tests.support.cli import Orch, Process
from tests.support.harm import Harm
from tests.support.process import wait_until

TAKEOVER_SECONDS = 60.0
FINISH_SECONDS = 120.0
FINISHED = ("completed", "failed", "cancelled")
JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, max_tokens: 50, prompt: "Who wrote this?"}
models: {small: some-model}
"""


def letters(folder: Path, number: int) -> Path:
    """A job file over so many documents."""
    (folder / "documents").mkdir()
    for one in range(number):
        (folder / "documents" / f"{one:04}.txt").write_text(f"Dear {one}", encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    return folder / "job.yaml"


class HomePair(Harm):
    """The homes are `folder`/a and `folder`/b; both read the orch.toml of `orch`. `start`, `submit`, harm the active
    one, `take_over`, `finish`.
    """

    def __init__(self, orch: Orch, folder: Path, replica: str, environment: Mapping[str, str]) -> None:
        self._orch = orch
        self._folder = folder
        self._replica = replica
        self._environment = environment

    def home(self, name: str) -> Path:
        """The home of a machine."""
        return self._folder / name

    def env(self, name: str) -> dict[str, str]:
        """What commands of a machine have in their environment."""
        return {**self._environment, "ORCH_HOME": str(self.home(name))}

    def up(self, name: str) -> Process:
        """Start the daemon of a machine."""
        return self._orch.start("up", "--replica", self._replica, env=self.env(name))

    def start(self) -> None:
        """An active daemon, and one that stands by."""
        self.active = self.up("a")
        self._is_up(self.active)
        self.standby = self.up("b")
        wait_until(lambda: "standing by" in self.said(self.standby), TAKEOVER_SECONDS)

    def said(self, process: Process) -> str:
        """What a daemon has said so far."""
        return self._orch.output(process)

    def submit(self, source: Path, *options: str) -> str:
        """Queue a job on the active machine; its id. What was acknowledged survives the loss of that machine."""
        return str(self.ask("a", "submit", str(source), *options)["job"])

    def ask(self, name: str, *command: str) -> Any:
        """The JSON that a command of a machine prints."""
        done = self._orch(*command, "--json", env=self.env(name))
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    def kill_active(self) -> None:
        """SIGKILL, and its home is gone."""
        self.kill()
        shutil.rmtree(self.home("a"))

    def take_over(self) -> float:
        """Seconds until the other daemon works."""
        self._is_up(self.standby)
        return time.monotonic() - self.since

    def finish(self, job: str) -> Any:
        """The job's end at the machine that has taken over."""

        def ended() -> Any:
            found = self.ask("b", "status", job)
            return found if found["state"] in FINISHED else None

        return wait_until(ended, FINISH_SECONDS)

    def results(self, job: str) -> list[dict[str, Any]]:
        """The rows of a job, from the machine that has taken over."""
        done = self._orch("fetch", job, env=self.env("b"))
        assert done.returncode in (0, 1), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def check(self, job: str, number: int) -> None:
        """The job of so many letters is done, each row once."""
        assert self.finish(job)["state"] == "completed"
        rows = self.results(job)
        assert [row["document"] for row in rows] == [f"documents/{one:04}.txt" for one in range(number)]
        assert not [row for row in rows if row["error"] is not None]

    def wake_paused(self) -> None:
        """SIGCONT. It ends with 4, and says why."""
        assert self.woken() == 4, self.said(self.active)
        assert "has taken over as generation 2" in self.said(self.active)

    def generation(self) -> tuple[int, str]:
        """Who is active."""
        head = HeadLog(open_storage(self._replica)).latest()
        assert head is not None
        return head.generation, head.folder

    def _is_up(self, process: Process) -> None:
        def is_up() -> bool:
            assert process.poll() is None, self.said(process)
            return "is up; Ctrl-C stops it" in self.said(process)

        wait_until(is_up, TAKEOVER_SECONDS)
