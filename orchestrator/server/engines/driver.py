"""What a fleet asks of those who run its engines, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.core.engines import EngineState

Slots = tuple[int, ...]
"""The places that an engine takes: GPUs by number, 0 the CPU of a machine without any; elsewhere, its own number."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine of a driver as it is now. `seconds` in its state; `memory` in bytes on its GPUs, None if unknown, and
    `host_memory` of its machine.

    `problem` is for people: why it does not start, or what it ended of last. `url` is empty while it has none, and
    `key` is what its requests carry, None where it asks for none.
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
        """For machines: what `/health` says."""
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
    """Starts and stops engines. The four verbs return at once; `engines` says what has become of them."""

    def prepare(self, is_over: Callable[[], bool]) -> Slots:
        """Find out what there is to run engines on, and wait for what ran there before, unless `is_over`.

        Raises OrchError.
        """

    def start(self, model: str, slots: Slots) -> None:
        """Start an engine. What stands in its way is its `problem`."""

    def stop(self, model: str, slots: Slots) -> None:
        """Stop an engine that gets no more rows."""

    def sleep(self, model: str, slots: Slots) -> None:
        """Have an engine that gets no more rows free its GPU memory."""

    def wake(self, model: str, slots: Slots) -> None:
        """Have one that sleeps load its memory again, and check that it answers as before."""

    def engines(self) -> Sequence[EngineReport]:
        """All that run, or that something is to be said of."""

    def close(self) -> None:
        """Stop all engines; returns when nothing of them is left."""
