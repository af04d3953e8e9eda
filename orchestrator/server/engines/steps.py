"""Runs long steps in other processes, with progress on stderr and output in a log. Explains failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from orchestrator.core.errors import OrchError
from orchestrator.core.permissions import users_umask
from orchestrator.server.engines.errors import EngineUnavailable

LEASH = Path(__file__).resolve().parent / "leash.py"
KEPT_LINES = 200
STEP_GRACE_S = 5.0

_FULL = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")
_OFFLINE = re.compile(
    r"NewConnectionError|Failed to establish a new connection|name resolution|NameResolutionError"
    r"|ConnectTimeoutError|ReadTimeoutError|Read timed out|Connection refused|ProxyError|SSLError"
    r"|Network is unreachable|ConnectionResetError"
)
_NO_BUILD = re.compile(r"No matching distribution found for ([^\s(]+)")
_ERROR = re.compile(r"^(?:ERROR: |error: |\w*Error: )\s*(.+)$", re.MULTILINE)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def run_command(work: Callable[[], None]) -> int:
    """Run a command's work until it ends or a signal stops it. Return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        work()
    except OrchError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped")
        return 130
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def leashed(command: Sequence[str | Path], grace: float) -> list[str]:
    """Wrap a command so that all its processes end with this process, within `grace` seconds (see leash.py)."""
    leash = (sys.executable, "-I", "-S", LEASH, os.getpid(), grace, "--")
    return [str(part) for part in (*leash, *command)]


class StepFailed(Exception):
    """Raised if a step's command ended with a nonzero exit code. `output` is the end of its output."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"exit code {code}")
        self.code = code
        self.output = output


def run_step(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run `command`, append its output to `log`, and pass each line to `on_line`.

    Raises StepFailed if the command fails, OSError if the log cannot be written (for example, if the disk is full).
    """
    tail: deque[str] = deque(maxlen=KEPT_LINES)
    with log.open("a", encoding="utf-8") as file:
        child = subprocess.Popen(
            # If an installer is killed, its pip must not write into the environment of the next attempt.
            leashed(command, STEP_GRACE_S),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
            umask=users_umask(),
        )
        with child:
            try:
                for line in child.stdout or ():
                    file.write(line)
                    tail.append(line)
                    on_line(line.rstrip())
            except BaseException:
                child.terminate()
                raise
    if child.returncode:
        raise StepFailed(child.returncode, "".join(tail))


def reason(output: str) -> str:
    """Extract the cause of a failure from the output of pip or of a script."""
    if _FULL.search(output):
        return "the disk is full"
    if _OFFLINE.search(output):
        return "the package index cannot be reached (no network?)"
    if missing := _NO_BUILD.search(output):
        return _no_build(missing[1])
    said = _ERROR.findall(output) or output.strip().splitlines()
    return said[-1].strip() if said else "it stopped without an error message"


def _no_build(requirement: str) -> str:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    text = f"the package index has no build of {requirement} for {python} on this platform"
    if requirement.startswith("torch=="):
        text += "; CPU builds of torch come from an index of their own, to be named in PIP_EXTRA_INDEX_URL"
    return text


def unavailable(what: str, failure: StepFailed, log: Path) -> EngineUnavailable:
    """Return an error for the user with the step, the reason why it failed, and the path of the full output."""
    return EngineUnavailable(f"{what} failed: {reason(failure.output)} (full output: {log})")
