"""Processes that build jobs, so that a slow document never delays the daemon.

Each process reads an order from stdin and writes the outcome to stdout. The process ends with the daemon. An
unfinished build is repeated later, because the claim on the job is a lock that ends with the process. A shared
database refuses the process's writes once another daemon has taken over.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct, field

from orchestrator.core.clock import now
from orchestrator.core.ends_with_parent import command, end_with, how_it_ended
from orchestrator.core.errors import JobFilesError, OrchError, StorageError
from orchestrator.library.context import Context, log_to, opened
from orchestrator.pipeline.build.build_orders import BuildDied, BuildOrder, BuildSite
from orchestrator.pipeline.provider_calls import Done
from orchestrator.settings.config import Config
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home

if TYPE_CHECKING:
    from orchestrator.store.daemon_fence import DaemonFence

log = logging.getLogger(__name__)

PLACES = 2
"""Maximum number of running builds that are younger than `GIVES_WAY_SECONDS`."""
GIVES_WAY_SECONDS = 5.0
"""Seconds after which a build no longer counts towards `PLACES`, so that other builds may start."""
MOST = 8
"""Maximum processes at a time; each has its own reader processes."""
FORGOTTEN_SECONDS = 60.0
"""Seconds after which a waiting build that is no longer requested loses its turn."""
BEHIND = 5
"""Niceness of a build relative to the daemon's."""
_LAST = datetime.max.replace(tzinfo=UTC)


class _Charge(Struct, frozen=True):
    place: Place
    config: Config
    fence: DaemonFence | None
    order: BuildOrder[object]


class _Build(Struct):
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    is_over: bool = False
    outcome: Any = None

    def see_through(self, charge: bytes) -> None:
        said, _ = self.process.communicate(charge)
        try:
            self.outcome = pickle.loads(said)
        except Exception:  # noqa: BLE001  (truncated output may raise any error)
            self.outcome = BuildDied(f"the process that built it {how_it_ended(self.process.returncode)}")
        self.is_over = True


class BuildProcesses:
    """Runs the builds that daemons order (`pipeline.build.build_orders.Builds`) until the block ends.

    Use from a single thread, which must live as long as the process: see `end_with`.
    """

    def __init__(self, context: Context, fence: DaemonFence | None = None) -> None:
        self._place = context.place
        self._config = context.config
        self._fence = fence
        self._builds: dict[str, _Build] = {}
        self._waiting: dict[str, tuple[datetime, float]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._builds):
            self.end(key)

    def use(self, config: Config) -> None:
        self._config = config

    def begin(self, key: str, order: BuildOrder[object], deadline: datetime | None) -> None:
        at = time.monotonic()
        self._waiting[key] = deadline or _LAST, at
        waiting = {name: due for name, (due, asked) in self._waiting.items() if at - asked < FORGOTTEN_SECONDS}
        if key in self._builds or not self._has_place(at) or min(waiting, key=waiting.__getitem__) != key:
            return
        del self._waiting[key]
        charge = pickle.dumps(_Charge(self._place, self._config, self._fence, order))
        build = self._builds[key] = _Build(_started())
        # A daemon thread, because the ending process must not wait for the processes that it killed.
        threading.Thread(target=build.see_through, args=(charge,), name=f"build {key}", daemon=True).start()

    def _has_place(self, at: float) -> bool:
        running = [build for build in self._builds.values() if not build.is_over]
        return len(running) < MOST and sum(at - build.began < GIVES_WAY_SECONDS for build in running) < PLACES

    def is_busy(self, key: str) -> bool:
        return key in self._builds

    def look(self, key: str) -> Done[object] | None:
        build = self._builds.get(key)
        if build is None or not build.is_over:
            return None
        del self._builds[key]
        if isinstance(build.outcome, StorageError) and not isinstance(build.outcome, JobFilesError):
            raise BuildDied(str(build.outcome))  # if the home itself is broken, the daemon notices that, too
        if isinstance(build.outcome, Exception):
            raise build.outcome
        return Done(build.outcome)

    def end(self, key: str) -> None:
        self._waiting.pop(key, None)
        if (build := self._builds.pop(key, None)) is not None:
            build.process.kill()
            build.process.wait()


def _started() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C in a terminal then reaches only the daemon
        )
    except OSError as error:
        raise BuildDied(f"no process can be started: {error.strerror}") from error


def main() -> None:
    """Run a build process: carry out one order."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal to all processes is meant for the daemon
    end_with(int(sys.argv[-1]))
    with suppress(OSError):
        os.nice(BEHIND)
    charge: _Charge = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "wb") as told:
        os.dup2(2, 1)  # libraries' prints go to stderr, not into the outcome
        log_to(Home(charge.place.home))
        outcome: object
        try:
            outcome = _carried_out(charge)
        except OrchError as error:
            outcome = error
        except Exception as error:
            log.exception("a build failed")
            outcome = BuildDied(f"{type(error).__name__}: {error}")
        told.write(pickle.dumps(outcome))


def _carried_out(charge: _Charge) -> object:
    with opened(charge.place, charge.fence) as context:
        context.use(charge.config)
        return charge.order.carry_out(BuildSite(context.store, context.home, charge.config, now))
