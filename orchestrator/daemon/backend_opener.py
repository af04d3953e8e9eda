"""Opening of an engine's backends: a provider's API, or its own batch server with the engines behind it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from orchestrator.daemon.handles import hosted_handle, own_handle, server_settings
from orchestrator.daemon.home_fleets import HomeFleets
from orchestrator.daemon.open_backends import Opened
from orchestrator.daemon.replica.home_replica import HomeReplica
from orchestrator.daemon.replica.paid_calls import behind_replica
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.server.host import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import Backend, EnginesBackend, OwnServer, RayBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store


class BackendOpener:
    """Opens backends of a home, which `stack` closes. Without `dispatch`, no row is sent."""

    def __init__(
        self,
        store: Store,
        config: Config,
        stack: ExitStack,
        fleets: HomeFleets,
        replica: HomeReplica | None,
        *,
        dispatch: bool,
    ) -> None:
        self._store = store
        self._home = Home(config.home)
        self._config = config
        self._stack = stack
        self._fleets = fleets
        self._replica = replica
        self._dispatch = dispatch

    def use(self, config: Config) -> None:
        """Apply new settings."""
        self._config = config

    def make(self, name: str, settings: Backend) -> Opened:
        """Open a backend. Raises BackendError or UsageError."""
        if not isinstance(settings, OwnServer):
            return Opened(self._hosted(self._closing(hosted_handle(name, settings, self._config))), settings)
        measured = self._store.engine_rates.of(self._home.identity(), name)
        limits = {model: rates.best_limit for model, rates in measured.items()}
        told = replace(server_settings(name, settings, dispatch=self._dispatch), measured_limits=limits)
        fleet = None
        if isinstance(settings, EnginesBackend | RayBackend) and self._dispatch:
            fleet = self._fleets.make(name, settings)
        if fleet is not None:
            self._stack.callback(self._fleets.note_holds)
            self._stack.callback(fleet.close)
        server = self._stack.enter_context(ServerThread(self._home.server(name), told, self._may_send))
        handle = self._closing(own_handle(name, settings, self._config, server.socket))
        if fleet is not None:
            fleet.begin(server)
            self._stack.callback(fleet.end)
        return Opened(handle, settings, server, told, fleet)

    def serves(self, name: str, settings: Backend) -> Settings | None:
        """Return the settings for a backend's server, or None if the backend is hosted."""
        if not isinstance(settings, OwnServer):
            return None
        return server_settings(name, settings, dispatch=self._dispatch)

    def _may_send(self) -> bool:
        return self._replica is None or self._replica.is_held

    def _hosted(self, handle: BackendHandle) -> BackendHandle:
        if self._replica is None:
            return handle
        return replace(handle, api=behind_replica(handle.api, self._replica.settled))

    def _closing(self, handle: BackendHandle) -> BackendHandle:
        self._stack.callback(handle.api.close)
        return handle
