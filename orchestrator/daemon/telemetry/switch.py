"""Switches a daemon's telemetry on. Nothing is imported for telemetry until the settings name a receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.core.clock import now
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.daemon.telemetry.exporter import Exporter


class TelemetrySwitch:
    """Starts a home's exporter as soon as settings name a receiver. `tell` receives messages for the user."""

    def __init__(self, store: Store, home: Home, config: Config, tell: Callable[[str], None]) -> None:
        self._store = store
        self._home = home
        self._tell = tell
        self._exporter: Exporter | None = None
        self.use(config)

    def use(self, config: Config) -> None:
        if self._exporter is not None:
            self._exporter.use(config)
        elif config.telemetry is not None:
            from orchestrator.daemon.telemetry.exporter import Exporter

            self._exporter = Exporter(self._store, self._home, config, now, self._tell)

    def close(self) -> None:
        """Send the remaining data within a few seconds, then stop."""
        if self._exporter is not None:
            self._exporter.close()
