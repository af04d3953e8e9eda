"""One engine process: start it, wait for it, watch it, and stop it with all its child processes."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

from msgspec import Struct

from orchestrator.core.permissions import users_umask
from orchestrator.core.sanitize import cut
from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.steps import leashed

HOST = "127.0.0.1"
MOST_LOADING = 4
TAIL_LINES = 25
LONGEST_LINE = 300
TAIL_BYTES = 16_384
CAUSE_BYTES = 262_144
POLL_S = 0.25
LOOK_S = 5.0
KILL_MARGIN_S = 10.0

COMMON_OPTIONS = (
    *("--scheduling-policy", "priority"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"),
)
CPU_OPTIONS = (
    *("--enforce-eager", "--max-num-seqs", "32"),
    # A JSON schema allows whitespace anywhere, and a small model would write newlines until its limit.
    *("--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}'),
)

_ERROR = re.compile(r"(?:^|\s)((?:\w+\.)*\w+(?:Error|Exception): \S.{0,400}|error: \S.{0,400})$", re.MULTILINE)
_CONSEQUENCE = re.compile(r"Engine core initialization failed|EngineDeadError|WorkerProc initialization failed")


class Launch(Struct, frozen=True):
    """A command, its complete environment, and its port. GET /health on this port answers 200 once the engine is
    ready.
    """

    command: tuple[str, ...]
    port: int
    model: str
    env: Mapping[str, str]

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.port}/v1"


def log_tail(path: Path, start: int = 0, lines: int = TAIL_LINES) -> str:
    """Return the last lines written to `path` after byte `start`, each cut to LONGEST_LINE characters."""
    return "\n".join(cut(line, LONGEST_LINE) for line in _end_of(path, start, TAIL_BYTES).splitlines()[-lines:])


def log_cause(path: Path, start: int = 0) -> str | None:
    """Return the last informative error of a log after byte `start`, or None.

    vLLM's last error says only that its engine did not start; an earlier error has the reason.
    """
    found: list[str] = [text.strip() for text in _ERROR.findall(_end_of(path, start, CAUSE_BYTES))]
    telling = [text for text in found if not _CONSEQUENCE.search(text)]
    return next(reversed(telling or found), None)


def _end_of(path: Path, start: int, most: int) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - most))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class VllmProcess:
    """A running engine.

        with VllmProcess(launch, log=path) as engine:
            engine.base_url

    Entering starts the engine and returns once it is ready; leaving stops it. The engine also stops if our process
    dies in any way (see leash.py). Timeouts are in seconds. Raises EngineUnavailable with the end of the engine's
    log. `held` are file descriptors to keep open until all of the engine's processes have ended.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        log: Path,
        ready_timeout: float = 300.0,
        stop_timeout: float = 30.0,
        deaf_timeout: float = 120.0,
        held: Sequence[int] = (),
    ) -> None:
        self.launch = launch
        self.log = log
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._deaf_timeout = deaf_timeout
        self._held = tuple(held)
        self._leash: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def base_url(self) -> str:
        return self.launch.base_url

    @property
    def cause(self) -> str | None:
        """The last informative error in the log since the last start, or None."""
        return log_cause(self.log, self._log_start)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the engine (128 + n after signal n); None while it runs or before its first start."""
        return None if self._leash is None else self._leash.poll()

    @property
    def last_line(self) -> str:
        return log_tail(self.log, self._log_start, 1)

    @property
    def pid(self) -> int | None:
        """Process id of the engine's topmost process; None while the engine does not run."""
        return self._leash.pid if self._leash is not None and self._leash.poll() is None else None

    @property
    def running(self) -> bool:
        return self._leash is not None and self._leash.poll() is None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        if self.running:
            raise EngineUnavailable("this engine is running already", hint=None)
        _require_free(self.launch.port)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self._leash = subprocess.Popen(
                    leashed(self.launch.command, self._stop_timeout),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(self.launch.env),
                    # Ctrl-C in a terminal goes to the whole foreground group, but stopping the engine is our task.
                    start_new_session=True,
                    pass_fds=self._held,
                    umask=users_umask(),
                )
        except OSError as error:
            raise EngineUnavailable(f"the engine cannot be started: {error}") from error

    def wait_ready(self, on_loading: Callable[[float], None] = lambda seconds: None) -> None:
        """Wait until /health answers 200. Raises EngineUnavailable if the process dies, or is not ready in time.

        `on_loading` is called several times a second with the seconds waited so far. An engine that still writes to
        its log is loading slowly. It gets up to MOST_LOADING times the timeout.
        """
        begun = heard = time.monotonic()
        written = 0
        while not self.healthy():
            now, size = time.monotonic(), _size(self.log)
            if size > written:
                written, heard = size, now
            if now - heard > self._ready_timeout or now - begun > MOST_LOADING * self._ready_timeout:
                raise self._error(f"the engine was not ready after {now - begun:.0f} s")
            on_loading(now - begun)
            self._wait_for_end(POLL_S)
            self.check()
        self.check()

    def healthy(self) -> bool:
        """True if GET /health answers 200 now."""
        connection = http.client.HTTPConnection(HOST, self.launch.port, timeout=2.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def check(self) -> None:
        if not self.running:
            code = None if self._leash is None else self._leash.returncode
            raise self._error("the engine is not running" if code is None else f"the engine ended with code {code}")

    def wait(self) -> int:
        """Wait until a ready engine ends by itself, and return its exit code.

        Raises EngineUnavailable if the engine was never started. Also raises it if the engine neither ends nor
        answers a health check for `deaf_timeout`. vLLM may hang in its shutdown.
        """
        if self._leash is None:
            raise EngineUnavailable("this engine was never started", hint=None)
        heard = time.monotonic()
        while not self._wait_for_end(min(LOOK_S, self._deaf_timeout / 4)):
            if self.healthy():
                heard = time.monotonic()
            elif time.monotonic() - heard >= self._deaf_timeout and not self._wait_for_end(0):
                raise self._error(f"the engine has answered no health check for {self._deaf_timeout:.0f} s")
        return self._leash.wait()

    def stop(self) -> None:
        """Stop all processes with SIGTERM, then with SIGKILL after `stop_timeout`. Does nothing if the engine is
        gone.
        """
        leash = self._leash
        if leash is None:
            return
        if leash.poll() is None:
            leash.send_signal(signal.SIGTERM)
        if not self._wait_for_end(self._stop_timeout + KILL_MARGIN_S):
            os.killpg(leash.pid, signal.SIGKILL)
            leash.wait()

    def _wait_for_end(self, seconds: float) -> bool:
        if self._leash is None:
            return True
        try:
            self._leash.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _error(self, what: str) -> EngineUnavailable:
        tail = log_tail(self.log, self._log_start)
        return EngineUnavailable(
            f"{what}; the end of its log:\n{tail}", hint=f"all of it is in {self.log}", brief=what
        )


def is_free(port: int) -> bool:
    """True if a server could listen on this loopback port now."""
    return _trouble(port) is None


def _require_free(port: int) -> None:
    """Refuse a port in use, because another server there would answer /health in place of the engine."""
    if (trouble := _trouble(port)) is not None:
        raise EngineUnavailable(f"port {port} cannot be used: {trouble}", hint="choose another --port")


def _trouble(port: int) -> str | None:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error.strerror
    return None
