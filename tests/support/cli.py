"""The command line as its users have it: a process, an ORCH_HOME, an orch.toml."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.support.forking import Forked, fork

Process = Forked | subprocess.Popen[bytes]
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
        self._started: list[Process] = []

    def __call__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 200.0,
        cwd: Path | None = None,
        stdin: str | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """TimeoutExpired after `timeout` seconds, with the whole process group killed.

        `prefix` is a command that runs this one (see `tests.support.limits`).
        """
        with (
            _temporary() as given,
            _temporary() as output,
            _temporary() as errors,
        ):
            given.write(stdin or "")
            given.seek(0)
            files = (given.fileno(), output.fileno(), errors.fileno())
            process = self._begin(arguments, files, env, cwd, prefix=prefix, fresh=bool(prefix))
            try:
                process.wait(timeout)
            except BaseException:
                kill_group(process)
                process.wait()
                raise
            output.seek(0)
            errors.seek(0)
            stdout, stderr = output.read(), errors.read()
        return subprocess.CompletedProcess(["orch", *arguments], process.returncode, stdout, stderr)

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        fresh: bool = False,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Leave a command running, for tests that kill it; its output goes to `output(process)`.

        Whatever is still there at the end of the test is killed. `fresh` starts the interpreter as a user does, which
        takes a second; so does a `prefix`, a command that runs this one (see `tests.support.limits`).
        """
        number = len(self._started)
        with self._output_file(number).open("wb") as output, Path(os.devnull).open("rb") as nothing:
            files = (nothing.fileno(), output.fileno(), output.fileno())
            process = self._begin(arguments, files, env, cwd, prefix=prefix, fresh=fresh or bool(prefix))
        self._started.append(process)
        return process

    def _begin(
        self,
        arguments: Sequence[str],
        files: tuple[int, int, int],
        env: Mapping[str, str] | None,
        cwd: Path | None,
        *,
        prefix: Sequence[str] = (),
        fresh: bool,
    ) -> Process:
        """The command with these files as stdin, stdout and stderr, in a session of its own."""
        environment, folder = self.environment(env), cwd or self.home.parent
        if not fresh:
            return fork("orchestrator.cli", arguments, files=files, env=environment, cwd=folder)
        given, output, errors = files
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "orchestrator.cli", *arguments],
            env=environment,
            cwd=folder,
            stdin=given,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )

    def output(self, process: Process) -> str:
        """What a started command has written so far, stdout and stderr together."""
        return self._output_file(self._started.index(process)).read_text(errors="replace")

    def close(self) -> None:
        for process in self._started:
            kill_group(process)
            process.wait()

    def _output_file(self, number: int) -> Path:
        # Beside the home, not in it: the home holds what the program put there and nothing else.
        return self.home.parent / f"{self.home.name}-output-{number}.log"

    def environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        # A developer's own settings and keys never reach a test.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ORCH_") and not name.endswith("_API_KEY")
        }
        given = {"ORCH_HOME": str(self.home), "ORCH_CONFIG": str(self.home / CONFIG)}
        return kept | given | dict(extra or {})


def _temporary() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def kill_group(process: Process) -> None:
    """SIGKILL a process started in a session of its own, and all its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
