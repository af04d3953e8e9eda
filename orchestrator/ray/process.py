"""The parent's side of engines_child.py, the process that uses Ray. It runs in the cluster's Python and ends with
this one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.launch import for_engines
from orchestrator.server.engines.steps import LEASH, leashed

log = logging.getLogger(__name__)

CHILD = Path(__file__).resolve().parent / "engines_child.py"
CHECK_SECONDS = 60.0
STATUS_SECONDS = 45.0
END_SECONDS = 30.0
HAS_RAY = "import importlib.util as u, sys; s = u.find_spec('ray'); sys.exit(0 if s and s.origin else 3)"
HOW = (
    "Ray stays out of orch's own environment, and all nodes of a cluster have the same Ray and the same Python:\n"
    "        python3 -m venv /opt/ray && /opt/ray/bin/pip install ray\n"
    '        then in orch.toml: ray_python = "/opt/ray/bin/python" (or orch serve --ray-python)'
)


class RayEvent(msgspec.Struct, frozen=True):
    """An event from the process. Its fields depend on `event` (see engines_child.py)."""

    event: str
    id: str = ""
    state: str = ""
    url: str = ""
    node: str = ""
    starts: int = 0
    problem: str | None = None
    ray: str = ""
    ids: list[str] = []
    nodes: list[dict[str, Any]] = []
    free: dict[str, Any] = {}


def require_ray(python: Path, environ: Mapping[str, str]) -> None:
    """Raise EngineUnavailable, with instructions, if this Python lacks Ray."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", HAS_RAY],
            env=for_engines(environ),
            capture_output=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(f"{python} cannot be run: {error}", hint=HOW) from error
    if done.returncode != 0:
        raise EngineUnavailable(f"{python} has no Ray", hint=HOW)


def cluster_status(python: Path, address: str, environ: Mapping[str, str]) -> RayEvent:
    """Return the nodes and free resources of the cluster at an address. Raises EngineUnavailable."""
    require_ray(python, environ)
    try:
        done = subprocess.run(
            leashed((python, CHILD, "status", address), 1.0),
            env=for_engines(environ),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=STATUS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineUnavailable(f"the Ray cluster at {address} does not answer", hint=None) from error
    found = _event(done.stdout)
    if found is None or found.event != "status":
        told = found.problem if found is not None else done.stderr.decode(errors="replace").strip()[-400:]
        raise EngineUnavailable(told or f"{python} ended with code {done.returncode}", hint=None)
    return found


def _event(line: bytes) -> RayEvent | None:
    try:
        return json_decoder(RayEvent).decode(line)
    except msgspec.MsgspecError:
        return None


class RayProcess:
    """A child process that starts when this object is created.

    A thread passes its events to `heard`, and its exit code to `ended`. Its stderr is appended to `log_path`.
    """

    def __init__(
        self,
        python: Path,
        address: str,
        environ: Mapping[str, str],
        log_path: Path,
        heard: Callable[[RayEvent], None],
        ended: Callable[[int], None],
    ) -> None:
        self._heard = heard
        self._ended = ended
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            with log_path.open("ab") as errors:
                self._process = subprocess.Popen(
                    [python, CHILD, "serve", address, LEASH],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=for_engines(environ),
                    # Ctrl-C in a terminal reaches only this process; the child ends with its stdin.
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineUnavailable(f"{python} cannot be started: {error}", hint=HOW) from error
        self._thread = threading.Thread(target=self._read, name="ray events", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def want(self, engines: Sequence[Mapping[str, Any]]) -> None:
        """Run exactly these engines. Does nothing if the process has ended; `ended` reports that."""
        line = json.dumps({"wanted": list(engines)}).encode() + b"\n"
        try:
            stdin = self._stdin()
            stdin.write(line)
            stdin.flush()
        except (OSError, ValueError):
            log.info("the Ray process has ended")

    def close(self) -> None:
        """End the process and its engines, and return once the process is gone."""
        with contextlib.suppress(OSError):
            self._stdin().close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None, "it is a pipe"
        return self._process.stdin

    def _read(self) -> None:
        out = self._process.stdout
        assert out is not None, "it is a pipe"
        with out:
            for line in out:
                if (event := _event(line)) is not None:
                    self._heard(event)
                else:
                    log.warning("the Ray process wrote a line that is not an event: %r", line[:200])
        with contextlib.suppress(OSError):  # the flush of unsent text fails
            self._stdin().close()
        self._ended(self._process.wait())
