"""One worker process for occasional calls, started by the first call and kept."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from orchestrator.core import interrupts
from orchestrator.core.bounded.pool import WorkerCall, WorkerPool
from orchestrator.core.bounded.process import WorkerLimits


class Single:
    """A lazily started worker process that any thread may use, one call at a time.

    A fork starts its own worker: two processes that share a worker would read each other's results.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self._turn = threading.Lock()
        self._pool: WorkerPool | None = None
        os.register_at_fork(after_in_child=self._leave)

    @property
    def is_started(self) -> bool:
        """True if the process has been started."""
        return self._pool is not None

    def call(self, function: str, *arguments: object) -> list[Any]:
        """Make a call and return its values. Raises Tripped or StorageError, or Interrupted if the process must
        stop.
        """
        with self._turn:
            if self._pool is None:
                self._pool = WorkerPool(1, self.limits, interrupts.check)
                atexit.register(self.close)
            return list(self._pool.call(WorkerCall(function, arguments)))

    def _leave(self) -> None:
        self._turn = threading.Lock()  # the old lock may be held by a thread that the fork lacks
        if self._pool is not None:
            self._pool.leave()
            self._pool = None
            atexit.unregister(self.close)

    def close(self) -> None:
        """End the process if it was started."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            atexit.unregister(self.close)
