"""One engine of a fleet on this machine: keeps it running, puts it to sleep, and ends it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from orchestrator.core.engines import EngineState
from orchestrator.server.engines import sleeping
from orchestrator.server.engines.driver import EngineReport, Slots
from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.launch import Planned
from orchestrator.server.engines.leash import parents
from orchestrator.server.engines.supervisor import RestartPolicy, State, SupervisedEngine

log = logging.getLogger(__name__)

MEMORY_SECONDS = 10.0
_STATES = {
    State.STARTING: EngineState.STARTING,
    State.READY: EngineState.WARM,
    State.WAITING: EngineState.STARTING,
    State.GIVEN_UP: EngineState.GIVEN_UP,
    State.STOPPED: EngineState.COLD,
}


class LocalEngine:
    """An engine that starts when it is created. `memory` returns the bytes in use on its GPUs."""

    def __init__(
        self,
        model: str,
        slots: Slots,
        planned: Planned,
        patience: RestartPolicy,
        tell: Callable[[str], None],
        held: tuple[int, ...],
        sleeps: bool,
        memory: Callable[[Slots], int | None],
    ) -> None:
        self.model = model
        self.slots = slots
        self._planned = planned
        self._tell = tell
        self._sleeps = sleeps
        self._measure = memory
        self._patience = patience
        self._held = held
        self._before = 0
        """Number of starts before the current `SupervisedEngine`."""
        self._known: str | None = None
        self._phase: EngineState | None = None
        """The state during an action or sleep. If None, the supervisor's state applies."""
        self._since = time.monotonic()
        self._asleep_start = 0
        self._problem: str | None = None
        self._memory: int | None = None
        self._host_memory = 0
        self._memory_at = float("-inf")
        self._work: threading.Thread | None = None
        self.is_gone = False
        self._engine = self._begun()

    def _begun(self) -> SupervisedEngine:
        engine = SupervisedEngine(self._planned, self._patience, self._tell, self._held)
        engine.begin()
        return engine

    def report(self) -> EngineReport:
        engine = self._engine
        state = self._phase or _STATES[engine.state]
        if self._phase is EngineState.ASLEEP and engine.starts != self._asleep_start:
            # The engine died while asleep and was restarted. Now it is awake, and holds memory that it must not have.
            self._do(EngineState.DRAINING, self._end)
            state = EngineState.DRAINING
        if state is EngineState.WARM and self._sleeps and self._known is None:
            self._do(EngineState.STARTING, self._learn)
            state = EngineState.STARTING
        seconds = engine.seconds if self._phase is None else time.monotonic() - self._since
        return EngineReport(
            engine.name, self.model, self.slots, engine.url, state, seconds, self._before + engine.starts,
            self._problem or engine.problem, self._memory_now(), self._host_memory,
        )  # fmt: skip

    def stop(self) -> None:
        """End the engine, without waiting for its end."""
        self._do(EngineState.DRAINING, self._end)

    def sleep(self) -> None:
        """Free the engine's GPU memory; if that fails, end the engine."""
        self._do(EngineState.DRAINING, self._fall_asleep)

    def wake(self) -> None:
        """Load the engine again and check its answer. If either step fails, restart the engine."""
        self._do(EngineState.STARTING, self._wake)

    def join(self) -> None:
        while (work := self._work) is not None and work.is_alive():
            work.join()

    def _do(self, phase: EngineState, what: Callable[[], None]) -> None:
        before = self._work
        self._phase, self._since = phase, time.monotonic()

        def run() -> None:
            if before is not None:
                before.join()
            if not self.is_gone:
                what()

        self._work = threading.Thread(target=run, name=f"engine {self.model}", daemon=True)
        self._work.start()

    def _enter(self, phase: EngineState | None) -> None:
        if threading.current_thread() is self._work:  # else a newer action has begun
            self._phase, self._since = phase, time.monotonic()

    def _end(self) -> None:
        self._engine.stop()
        self.is_gone = True

    def _restart(self, why: str) -> None:
        self._tell(f"{self.model} on {self._planned.name}: {why}; started again")
        self._problem = why
        self._engine.stop()
        self._before += self._engine.starts
        self._engine = self._begun()
        self._enter(None)

    def _learn(self) -> None:
        try:
            self._known = sleeping.known_answer(self._planned.launch.port, self.model)
        except EngineUnavailable as error:
            self._problem = f"it is not put to sleep: {error}"
            self._sleeps = False
        self._enter(None)

    def _fall_asleep(self) -> None:
        before = self._measure(self.slots)
        try:
            if self._known is None:
                raise EngineUnavailable(self._problem or "it does not sleep", hint=None)
            self._asleep_start = self._engine.starts
            sleeping.fall_asleep(self._planned.launch.port)
            after = self._measure(self.slots)
            if before is not None and after is not None and after > (1 - sleeping.FREED_SHARE) * before:
                raise EngineUnavailable(
                    f"it is asleep and still holds {after:,} of {before:,} bytes of its GPUs", hint=None
                )
        except EngineUnavailable as error:
            self._tell(f"{self.model} on {self._planned.name}: {error}; stopped instead")
            self._end()
            return
        self._memory_at = float("-inf")
        self._enter(EngineState.ASLEEP)

    def _wake(self) -> None:
        try:
            sleeping.wake_up(self._planned.launch.port)
            found = sleeping.known_answer(self._planned.launch.port, self.model)
        except EngineUnavailable as error:
            self._restart(str(error))
            return
        if found != self._known:
            self._restart("after waking it answers differently")
            return
        self._problem = None
        self._enter(None)

    def _memory_now(self) -> int | None:
        if time.monotonic() - self._memory_at >= MEMORY_SECONDS:
            self._memory_at = time.monotonic()
            try:
                pid = self._engine.process.pid
                self._host_memory = 0 if pid is None else tree_bytes(pid)
                self._memory = self._measure(self.slots)
            except EngineUnavailable as error:
                log.warning("%s", error)
        return self._memory


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def tree_bytes(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; 0 if it is gone."""
    below: dict[int, list[int]] = defaultdict(list)
    for process, parent in parents():
        below[parent].append(process)
    found, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += below[one]
        found += _resident(one)
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
