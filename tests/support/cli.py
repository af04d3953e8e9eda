"""The command line as its users have it: a process, an ORCH_HOME, an orch.toml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

CONFIG = "orch.toml"


def write_config(home: Path, upstreams: Sequence[str] = (), *, extra: str = "", **fields: Any) -> Path:
    """Write `home/orch.toml` with one local backend in front of `upstreams` (base URLs ending in /v1).

    `fields` add to or replace those of [backends.local]; a None removes one. `extra` is TOML put after it.
    """
    table: dict[str, Any] = {"upstreams": list(upstreams), "location": "local", "idle": True, **fields}
    lines = [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]
    path = home / CONFIG
    path.write_text("\n".join(["[backends.local]", *lines, "", extra]), encoding="utf-8")
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's, but for escaped surrogates.
    return json.dumps(value, ensure_ascii=False)


class Orch:
    """Call it to run a command to its end: `run_orch("plan", "job.yaml", env={...}, timeout=60)`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        cwd: Path | None = None,
        stdin: str | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """TimeoutExpired after `timeout` seconds, with the whole process group killed.

        `prefix` is a command that runs this one (see `tests.support.limits`).
        """
        command = [*prefix, *self._command(arguments)]
        with subprocess.Popen(
            command,
            env=self._environment(env),
            cwd=cwd or self.home.parent,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(stdin, timeout)
            except BaseException:
                # Its children may hold the pipes open: all of them go.
                kill_group(process)
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Leave a command running, for tests that kill it; its output goes to `output(process)`.

        Whatever is still there at the end of the test is killed.
        """
        number = len(self._started)
        with self._output_file(number).open("wb") as output:
            process = subprocess.Popen(
                self._command(arguments),
                env=self._environment(env),
                cwd=cwd or self.home.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> str:
        """What a started command has written so far, stdout and stderr together."""
        return self._output_file(self._started.index(process)).read_text(errors="replace")

    def close(self) -> None:
        for process in self._started:
            kill_group(process)
            process.wait()

    def _output_file(self, number: int) -> Path:
        # Beside the home, not in it: the home holds what the program put there and nothing else.
        return self.home.parent / f"{self.home.name}-output-{number}.log"

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "orchestrator.cli", *arguments]

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        # A developer's own settings and keys never reach a test.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ORCH_") and not name.endswith("_API_KEY")
        }
        given = {"ORCH_HOME": str(self.home), "ORCH_CONFIG": str(self.home / CONFIG)}
        return kept | given | dict(extra or {})


def kill_group(process: subprocess.Popen[Any]) -> None:
    """SIGKILL a process started in a session of its own, and all its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
