"""Keeps engines running: starts them, waits until they are ready, restarts dead engines, stops all engines.

    with Supervisor(engines, tell=say) as supervisor:
        supervisor.wait_ready()
        ...

Each engine has a thread and keeps its port. To its clients, a dead engine is only down for a while.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Self

from msgspec import Struct

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.launch import Planned
from orchestrator.server.engines.process import VllmProcess

TAIL_SHOWN = 70
POLL_SECONDS = 0.1
# Prefix of vLLM's log lines: process, level, time, place.
_LOG_PREFIX = re.compile(r"^(?:\([^)]*\) )?(?:[A-Z]+ [\d-]+ [\d:]+ (?:\[[^\]]*\] )?)?")


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # the engine died, and will be restarted after a pause
    GIVEN_UP = "given_up"  # the engine failed too often to become ready
    STOPPED = "stopped"


class RestartPolicy(Struct, frozen=True):
    """Decides how long to wait before restarting a dead engine, and when to give it up. Times are in seconds.

    The pause doubles with every consecutive death. It is reset once an engine has been ready for `well` seconds.
    After `tries` consecutive starts without becoming ready, the engine is given up. An engine that answers no health
    check for `deaf` seconds is ended.
    """

    first: float = 1.0
    longest: float = 60.0
    well: float = 60.0
    tries: int = 3
    ready: float = 3600.0
    deaf: float = 120.0

    def pause(self, deaths: int) -> float:
        """Return the pause in seconds after this many consecutive deaths (from 1)."""
        return min(self.longest, self.first * 2.0 ** min(deaths - 1, 30))


class _Record(Struct):
    """Number of deaths and failed starts of an engine since it last ran well."""

    deaths: int = 0
    failed_starts: int = 0

    def died(self, was_ready: float | None, patience: RestartPolicy) -> None:
        """Record a death. `was_ready` is how many seconds the engine was ready, or None if it never was."""
        if was_ready is None:
            self.failed_starts += 1
        else:
            self.failed_starts = 0
            if was_ready >= patience.well:
                self.deaths = 0
        self.deaths += 1


class SupervisedEngine:
    def __init__(
        self, planned: Planned, patience: RestartPolicy, tell: Callable[[str], None], held: Sequence[int]
    ) -> None:
        self.name = planned.name
        self.url = planned.launch.base_url
        self.state = State.STARTING
        self.problem: str | None = None
        self.tail = ""
        self.starts = 0
        self.process = VllmProcess(
            planned.launch, log=planned.log, ready_timeout=patience.ready, deaf_timeout=patience.deaf, held=held
        )
        self._patience = patience
        self._tell = tell
        self._record = _Record()
        self._since = time.monotonic()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"engine on {self.name}", daemon=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def begin(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def stop(self) -> None:
        """Stop the engine's processes, and return when they are gone."""
        self.ask_to_stop()
        with self._lock:  # wait for a start under way, or prevent it
            self.process.stop()
        self._thread.join()

    def _enter(self, state: State) -> None:
        self.state, self._since = state, time.monotonic()

    def _run(self) -> None:
        while not self._stopping.is_set():
            ready_at = self._live()
            if self._stopping.is_set():
                break
            self._record.died(None if ready_at is None else time.monotonic() - ready_at, self._patience)
            if not self._goes_on():
                return
            pause = self._patience.pause(self._record.deaths)
            self._enter(State.WAITING)
            self._tell(
                f"engine on {self.name}: {self.problem}; started again in {pause:g} s (log: {self.process.log})"
            )
            self._stopping.wait(pause)
        self._enter(State.STOPPED)

    def _live(self) -> float | None:
        """Start the engine and wait until it ends. Return when it became ready, or None if it never did."""
        ready_at = None
        self._enter(State.STARTING)
        try:
            with self._lock:
                if self._stopping.is_set():
                    return None
                self.starts += 1
                self.process.start()
            self.process.wait_ready()
            ready_at, self.problem = time.monotonic(), None
            took = self.seconds
            self._enter(State.READY)
            self._tell(f"engine on {self.name}: ready after {took:.0f} s")
            self.process.wait()
            self.process.check()
        except EngineUnavailable as error:
            self.problem = _why(error, self.process)
            self.tail = error.message
            self.process.stop()  # an engine that was too slow still runs
        return ready_at

    def _goes_on(self) -> bool:
        # Exit code 2 means that the program refuses its command line, so a retry would not help.
        refused = self._record.failed_starts and self.process.exit_code == 2
        if not refused and self._record.failed_starts < self._patience.tries:
            return True
        self._enter(State.GIVEN_UP)
        times = "" if refused else f" {self._record.failed_starts} times in a row, and never was ready"
        self._tell(f"engine on {self.name}: {self.problem}{times}; given up")
        return False


def _why(error: EngineUnavailable, process: VllmProcess) -> str:
    code = process.exit_code
    what = error.brief
    if code is not None and code > 128:
        try:
            what = f"the engine was killed by {signal.Signals(code - 128).name}"
        except ValueError:
            what = f"the engine ended with code {code}"
    cause = process.cause
    return what if cause is None or code == 128 + signal.SIGKILL else f"{what}: {cause}"


class Supervisor:
    """Keeps engines running while its context is open. `tell` gets progress messages from several threads.

    `held` are file descriptors that every engine keeps open until all its processes are gone.
    """

    def __init__(
        self,
        engines: Sequence[Planned],
        *,
        tell: Callable[[str], None],
        patience: RestartPolicy | None = None,
        held: Sequence[int] = (),
    ) -> None:
        self._engines = [SupervisedEngine(planned, patience or RestartPolicy(), tell, held) for planned in engines]
        self._tell = tell

    def __enter__(self) -> Self:
        for engine in self._engines:
            engine.begin()
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines:
            engine.ask_to_stop()
        # In parallel, as each stop may take long.
        stops = [threading.Thread(target=engine.stop) for engine in self._engines]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()

    @property
    def urls(self) -> list[str]:
        """Addresses of the engines that were not given up."""
        return [engine.url for engine in self._engines if engine.state is not State.GIVEN_UP]

    @property
    def hopeless(self) -> EngineUnavailable | None:
        """An error if every engine was given up, otherwise None."""
        if any(engine.state is not State.GIVEN_UP for engine in self._engines):
            return None
        engine = self._engines[0]
        return EngineUnavailable(
            f"no engine runs; on {engine.name}: {engine.tail}", hint=f"log: {engine.process.log}"
        )

    def wait_ready(self, is_over: Callable[[], bool] = lambda: False, every: float = 10.0) -> bool:
        """Return True once each engine is ready or given up, or False as soon as `is_over`. Show progress every
        `every` seconds.

        Raises EngineUnavailable if all engines are given up.
        """
        began = told = time.monotonic()
        while any(engine.state not in (State.READY, State.GIVEN_UP) for engine in self._engines):
            if is_over():
                return False
            if time.monotonic() - told >= every:
                told = time.monotonic()
                self._tell_progress(told - began)
            time.sleep(POLL_SECONDS)
        if (error := self.hopeless) is not None:
            raise error
        return not is_over()

    def _tell_progress(self, seconds: float) -> None:
        for engine in self._engines:
            if engine.state is State.STARTING:
                last = _LOG_PREFIX.sub("", engine.process.last_line)[:TAIL_SHOWN]
                self._tell(f"engine on {engine.name}: {seconds:.0f} s" + (f"; {last}" if last else ""))

    def report(self) -> list[dict[str, Any]]:
        """Return the current state of each engine as JSON values."""
        return [
            {
                "name": engine.name,
                "url": engine.url,
                "state": engine.state.value,
                "seconds": round(engine.seconds, 1),
                "starts": engine.starts,
                "problem": engine.problem,
            }
            for engine in self._engines
        ]
