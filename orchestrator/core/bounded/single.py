"""One worker process for occasional calls, started with the first and kept."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any

from orchestrator.core import interrupts
from orchestrator.core.bounded.pool import WorkerCall, WorkerPool
from orchestrator.core.bounded.process import WorkerLimits


class Single:
    """A lazily started worker process for any thread, with one call at a time.

    A fork starts one of its own: two processes sharing a worker would take each other's results.
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
        """Return the values of a call. Raises Tripped or StorageError, or Interrupted at a request to stop."""
        with self._turn:
            if self._pool is None:
                self._pool = WorkerPool(1, self.limits, interrupts.check)
                atexit.register(self.close)
            return list(self._pool.call(WorkerCall(function, arguments)))

    def _leave(self) -> None:
        self._turn = threading.Lock()  # a thread that the fork does not have may hold it
        if self._pool is not None:
            self._pool.leave()
            self._pool = None
            atexit.unregister(self.close)

    def close(self) -> None:
        """End the process, if it was started."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
            atexit.unregister(self.close)
