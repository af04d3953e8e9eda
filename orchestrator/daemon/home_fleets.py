"""The fleets of a home: created for backends, started on request, with recorded hours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrator.core.clock import now
from orchestrator.core.engines import start_seconds
from orchestrator.settings.backends import EnginesBackend, FleetBackend, RayBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.daemon.fleets import FleetController


REMEMBERED = timedelta(days=30)
"""Age of starts that still predict the duration of the next start."""


class HomeFleets:
    """The fleets of a home; `tell` receives lines for people. The first fleet imports what engines need."""

    def __init__(self, home: Home, store: Store, tell: Callable[[str], None]) -> None:
        self._home = home
        self._store = store
        self._tell = tell
        self._fleets: list[FleetController] = []

    def make(self, name: str, settings: EnginesBackend | RayBackend) -> FleetController:
        """Create the fleet of a backend, without starting anything."""
        from orchestrator.daemon.drivers import driver_for
        from orchestrator.daemon.fleets import FleetController

        folder = self._home.server(name)
        driver = driver_for(name, settings, folder, self._tell)
        starts = start_seconds(self._store.engine_holds.since(now() - REMEMBERED), name)
        fleet = FleetController(name, settings, driver, folder, tell=self._tell, now=now, starts=starts)
        self._fleets.append(fleet)
        return fleet

    def wished(self, config: Config) -> Iterator[str]:
        """Yield the backends whose engines are wanted even without rows."""
        for name, settings in config.backends.items():
            if isinstance(settings, RayBackend) and any(model.engines[0] for model in settings.models.values()):
                yield name
            elif isinstance(settings, FleetBackend):
                from orchestrator.daemon.wanted_engines import read_wishes

                since = now() - timedelta(seconds=settings.idle)
                found = read_wishes(self._home.server(name)).values()
                if any(one.wish == "start" and one.at > since for one in found):
                    yield name

    def note_holds(self) -> None:
        """Record the GPUs that engines hold: their hours cost money, busy or idle."""
        for fleet in self._fleets:
            self._store.engine_holds.keep(fleet.holds(self._home.identity()))
