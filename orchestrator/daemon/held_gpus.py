"""Records how long a fleet's engines hold GPUs, by regular checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec.structs import replace

from orchestrator.core.engines import EngineHold, EngineState
from orchestrator.server.engines.driver import EngineReport, Slots
from orchestrator.settings.backends import FleetBackend

Key = tuple[str, Slots]


class HeldGpus:
    """Holds of GPUs, updated by the fleet's thread and read by the daemon's thread."""

    def __init__(self, backend: str, now: Callable[[], datetime]) -> None:
        self._backend = backend
        self._now = now
        self._open: dict[Key, EngineHold] = {}
        self._over: list[EngineHold] = []
        self._lock = threading.Lock()

    def look(self, reports: Sequence[EngineReport], settings: FleetBackend) -> None:
        """Update the holds. An engine holds no GPUs before it starts, while it sleeps, or after it was given up."""
        now, holding = self._now(), (EngineState.STARTING, EngineState.WARM)
        with self._lock:
            there = {
                (one.model, one.slots): one
                for one in reports
                if one.state in holding
                or (one.state is EngineState.DRAINING and (one.model, one.slots) in self._open)
            }
            for key, one in there.items():
                before = self._open.get(key) or self._begun(one, settings, now)
                warm = before.warm_at or (now if one.state is EngineState.WARM else None)
                self._open[key] = replace(before, seen_at=now, warm_at=warm)
            for key in self._open.keys() - there.keys():
                self._over.append(replace(self._open.pop(key), seen_at=now, is_over=True))

    def _begun(self, one: EngineReport, settings: FleetBackend, now: datetime) -> EngineHold:
        gpus, price = settings.gpus_of(one.model), settings.gpu_price(one.model)
        engine = f"{one.model} on {one.name}"
        return EngineHold("", self._backend, engine, one.model, gpus, now, now, None, False, price)

    def taken(self, home: str) -> list[EngineHold]:
        """Return the holds that ended since the last call, and the current holds."""
        with self._lock:
            over, self._over = self._over, []
            return [replace(one, home=home) for one in (*over, *self._open.values())]
