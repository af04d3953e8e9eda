"""A process that serves a daemon's pages, so that they do not slow the daemon.

The daemon binds the address first, so visitors wait in the socket while the process starts or restarts. The process
receives the current settings over stdin, and ends when stdin closes.
"""

from __future__ import annotations

import gc as collector  # `orchestrator.cli.gc` is a command
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.cli.output import say
from orchestrator.cli.pages import PagesOptions, access_at, serve_pages
from orchestrator.cli.terminal import make_output_safe
from orchestrator.core.ends_with_parent import command, end_with, how_it_ended
from orchestrator.core.errors import BackendError, OrchError
from orchestrator.library.context import Context, log_to, opened
from orchestrator.server.engines.supervisor import RestartPolicy
from orchestrator.settings.config import Config
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from orchestrator.web.loop_health import LoopHealth, shared

log = logging.getLogger(__name__)

RESTARTS = RestartPolicy(tries=5)
END_SECONDS = 5.0


class _Charge(Struct, frozen=True):
    """First message to the process. `listener` and `loop` are file descriptors inherited from the daemon."""

    place: Place
    config: Config
    options: PagesOptions
    listener: int
    loop: int


class PagesProcess:
    """Serves the pages of a home until the block ends, then closes `listener`.

    `restarts` decides when a dead process restarts. The pages stay down after `tries` consecutive deaths, each within
    `well` seconds of its start. The daemon continues. Raises BackendError, StorageError, and UsageError if the rules
    would admit no visitor.
    """

    def __init__(
        self, context: Context, listener: socket.socket, options: PagesOptions, restarts: RestartPolicy = RESTARTS
    ) -> None:
        access_at(listener, context.place, options)
        try:
            self._file = shared()
        except OSError as error:
            raise BackendError(f"the pages cannot be served: {error.strerror}") from error
        self.loop = LoopHealth(self._file.fileno())
        self._listener = listener
        self._charge = _Charge(context.place, context.config, options, listener.fileno(), self._file.fileno())
        self._restarts = restarts
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._tell(None)
        self._thread.join(END_SECONDS)
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
        self._thread.join()
        self._listener.close()
        self._file.close()

    def use(self, config: Config) -> None:
        with self._lock:
            self._charge = replace(self._charge, config=config)
        self._tell(config)

    def _tell(self, news: Config | None) -> None:
        """Send new settings to the process, or None to end it. A process that does not read its input is killed."""
        with self._lock:
            if self._process is None or self._process.stdin is None:
                return
            told = pickle.dumps(news)
            with suppress(BrokenPipeError):  # the process just died; its successor gets the current settings
                try:
                    is_told = os.write(self._process.stdin.fileno(), told) == len(told)
                except BlockingIOError:
                    is_told = False
                if not is_told:
                    self._process.kill()

    def _run(self) -> None:
        """Keep the process running. This thread must live as long as the daemon: see `end_with`."""
        deaths = 0
        while not self._ending.is_set():
            began = time.monotonic()
            how = self._one_life()
            if self._ending.is_set():
                return
            deaths = 1 if time.monotonic() - began >= self._restarts.well else deaths + 1
            if deaths >= self._restarts.tries:
                break
            log.warning("the process of the pages %s; it is started again", how)
            self._ending.wait(self._restarts.pause(deaths))
        if not self._ending.is_set():
            self._listener.close()
            log.error("the process of the pages %s, %d times in a row; it is given up", how, deaths)
            say(f"orch: the process of the pages {how}, {deaths} times in a row; `orch view` serves them meanwhile")

    def _one_life(self) -> str:
        with self._lock:
            if self._ending.is_set():
                return ""
            try:
                process = self._process = self._started()
            except OSError as error:
                return f"cannot be started: {error.strerror}"
        code = process.wait()
        with self._lock:
            self._process = None
            with suppress(BrokenPipeError), process:  # closes stdin, which may still hold unread input
                pass
        return how_it_ended(code)

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._charge.listener, self._charge.loop],
        )
        assert process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(self._charge))
            process.stdin.flush()
        os.set_blocking(process.stdin.fileno(), False)
        return process


def main() -> None:
    """Serve the pages until the daemon ends this process or dies."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal to the process group is meant for the daemon
    end_with(int(sys.argv[-1]))
    make_output_safe()
    collector.freeze()
    collector.enable()  # orchestrator.cli disables garbage collection
    charge: _Charge = pickle.load(sys.stdin.buffer)
    log_to(Home(charge.place.home))
    try:
        with opened(charge.place) as context, socket.socket(fileno=charge.listener) as listener:
            context.use(charge.config)
            with serve_pages(listener, context, charge.options, lambda: context, LoopHealth(charge.loop)):
                _keep_told(context)
    except OrchError as error:
        say(f"orch: the pages cannot be served: {error}")
        sys.exit(1)


def _keep_told(context: Context) -> None:
    """Apply settings from the daemon until it sends None. End of input means that the daemon was killed."""
    try:
        while (config := pickle.load(sys.stdin.buffer)) is not None:
            context.use(config)
    except EOFError:
        os._exit(1)  # closes the socket at once, so that browsers notice
