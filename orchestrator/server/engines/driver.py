"""The interface between a fleet and the driver that runs its engines on this machine or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.core.engines import EngineState

Slots = tuple[int, ...]
"""Slot numbers of an engine: GPU numbers, 0 for the CPU of a machine without GPUs, or the engine's number on a
cluster.
"""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The current state of an engine, for `seconds` so far. `memory` is in bytes on its GPUs, None if unknown.

    `host_memory` is in bytes on its machine. `problem` is the reason why it does not start, or why it last ended.
    `url` is empty until the engine has an address. `key` is the API key that requests must carry, or None.
    """

    name: str
    model: str
    slots: Slots
    url: str
    state: EngineState
    seconds: float
    starts: int = 0
    problem: str | None = None
    memory: int | None = None
    host_memory: int = 0
    key: str | None = field(default=None, repr=False)

    def shown(self) -> dict[str, Any]:
        """Return the report as JSON values, as in `/health`."""
        return {
            "name": self.name,
            "model": self.model,
            "url": self.url or None,
            "state": self.state.value,
            "seconds": round(self.seconds, 1),
            "starts": self.starts,
            "memory_bytes": self.memory,
            "host_memory_bytes": self.host_memory,
            "problem": self.problem,
        }


class EngineDriver(Protocol):
    """Starts and stops engines. `start`, `stop`, `sleep` and `wake` return at once; `engines` reports the results."""

    def prepare(self, is_over: Callable[[], bool]) -> Slots:
        """Find the slots for engines. Wait until processes of an earlier run have ended, or until `is_over`. Raises
        OrchError.
        """

    def start(self, model: str, slots: Slots) -> None:
        """Start an engine. A failure appears as its `problem`."""

    def stop(self, model: str, slots: Slots) -> None:
        """Stop an engine that gets no more rows."""

    def sleep(self, model: str, slots: Slots) -> None:
        """Free the GPU memory of an engine that gets no more rows."""

    def wake(self, model: str, slots: Slots) -> None:
        """Load a sleeping engine back into GPU memory, and check that it answers as before."""

    def engines(self) -> Sequence[EngineReport]:
        """Return all engines that run or have a state to report."""

    def close(self) -> None:
        """Stop all engines, and return once all of their processes have ended."""
