"""Calls to providers outside the daemon's thread, so that a hanging call delays only its own shard.

Each backend has a few threads. A shard runs one stage at a time; the next round picks up the result. A thread that
hangs in a call blocks only its shard, not other shards, other backends or the planner. The process ends without
waiting for the thread, as if it were killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, field

from orchestrator.core.errors import BackendError, OrchError

log = logging.getLogger(__name__)

T = TypeVar("T")
THREADS = 4
"""Maximum number of parallel calls to one backend. If one call is slow or hangs, threads remain for polls."""
STOP_SECONDS = 2.0


class Done(Struct, Generic[T], frozen=True):
    """The result of a stage that has ended."""

    value: T


class ProviderCalls(Protocol):
    """Runs stages of shards."""

    def do(
        self, backend: str, key: str, stage: Callable[[], T], *, alone: bool = False, pays: bool = False
    ) -> Done[T] | None:
        """Return the result of the stage under `key`, or start the stage. Return None until it has ended.

        Raises the error of the stage. A backend runs only one `alone` stage at a time. The answer of a stage that
        `pays` is billed, and no later call can retrieve it.
        """

    def collect(self, key: str) -> Done[Any] | None:
        """Return the result of the stage under `key`, or None until it has ended. Raises the error of the stage."""

    def is_busy(self, key: str) -> bool:
        """True if the stage under this key is in progress, or its result has not been picked up."""

    def busy_for(self, key: str) -> float:
        """Return how many seconds the stage under this key has been in progress; 0 if it is not."""

    def wait(self, seconds: float) -> None:
        """Wait until a stage ends, for at most `seconds`."""

    def close(self) -> None:
        """Start no more stages, and abandon stages that hang."""

    def paying(self) -> list[str]:
        """Return the backends that are running a stage that pays."""


class Inline:
    """Runs stages immediately on the calling thread, for callers that need all steps in order."""

    def do(
        self, backend: str, key: str, stage: Callable[[], T], *, alone: bool = False, pays: bool = False
    ) -> Done[T] | None:
        return Done(stage())

    def collect(self, key: str) -> Done[Any] | None:
        """Return None: `do` has already returned the stage's result."""
        return None

    def is_busy(self, key: str) -> bool:
        return False

    def busy_for(self, key: str) -> float:
        return 0.0

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Do nothing: no stage is in progress."""

    def paying(self) -> list[str]:
        return []


class _Task(Struct):
    backend: str
    key: str
    stage: Callable[[], Any]
    alone: bool
    pays: bool
    begun: float = field(default_factory=time.monotonic)
    is_running: bool = False
    is_over: bool = False
    value: Any = None
    error: BaseException | None = None


class _Gang(Struct):
    name: str
    waiting: deque[_Task] = field(default_factory=deque)
    threads: list[threading.Thread] = field(default_factory=list)
    idle: int = 0


class Threads:
    """Runs stages in threads, a few for each backend."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._gangs: dict[str, _Gang] = {}
        self._tasks: dict[str, _Task] = {}
        self._is_closed = False
        self._over = threading.Event()

    def do(
        self, backend: str, key: str, stage: Callable[[], T], *, alone: bool = False, pays: bool = False
    ) -> Done[T] | None:
        with self._lock:
            if key not in self._tasks:
                self._begin(_Task(backend, key, stage, alone, pays))
                return None
        return self.collect(key)

    def collect(self, key: str) -> Done[Any] | None:
        with self._lock:
            task = self._tasks.get(key)
            if task is None or not task.is_over:
                return None
            del self._tasks[key]
        if task.error is not None:
            raise task.error
        return Done(task.value)

    def _begin(self, task: _Task) -> None:
        gang = self._gangs.setdefault(task.backend, _Gang(task.backend))
        if self._is_closed or (task.alone and self._has_one_alone(gang)):
            return
        self._tasks[task.key] = task
        gang.waiting.append(task)
        if len(gang.waiting) > gang.idle and len(gang.threads) < THREADS:
            # A daemon thread: the process ends even if a call hangs.
            thread = threading.Thread(target=self._work, args=(gang,), name=f"{gang.name} calls", daemon=True)
            gang.threads.append(thread)
            thread.start()
        self._lock.notify_all()

    def _has_one_alone(self, gang: _Gang) -> bool:
        return any(task.alone and not task.is_over and task.backend == gang.name for task in self._tasks.values())

    def is_busy(self, key: str) -> bool:
        with self._lock:
            return key in self._tasks

    def busy_for(self, key: str) -> float:
        with self._lock:
            task = self._tasks.get(key)
            return 0.0 if task is None or task.is_over else time.monotonic() - task.begun

    def wait(self, seconds: float) -> None:
        self._over.wait(seconds)
        self._over.clear()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for gang in self._gangs.values():
                gang.waiting.clear()
            self._lock.notify_all()
            threads = [thread for gang in self._gangs.values() for thread in gang.threads]
        until = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if hanging := [thread.name for thread in threads if thread.is_alive()]:
            log.warning("left in a call that does not return: %s", ", ".join(hanging))

    def paying(self) -> list[str]:
        with self._lock:
            return [task.backend for task in self._tasks.values() if task.pays and task.is_running]

    def _work(self, gang: _Gang) -> None:
        while (task := self._next(gang)) is not None:
            try:
                task.value = task.stage()
            except OrchError as error:
                task.error = error
            except Exception as error:
                log.exception("%s: a call failed with an unexpected error", gang.name)
                told = f"{gang.name}: {type(error).__name__}: {error}"
                task.error = BackendError(told, hint="engine.log has more; retrying")
            with self._lock:
                task.is_running, task.is_over = False, True
            self._over.set()

    def _next(self, gang: _Gang) -> _Task | None:
        with self._lock:
            gang.idle += 1
            try:
                self._lock.wait_for(lambda: self._is_closed or bool(gang.waiting))
                if self._is_closed:
                    return None
                task = gang.waiting.popleft()
                task.is_running = True
                return task
            finally:
                gang.idle -= 1
