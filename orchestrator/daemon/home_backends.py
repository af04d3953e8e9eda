"""The backends that a daemon has opened: providers' APIs, and its own batch servers with the engines behind them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.backends import SHARD_KEY
from orchestrator.backends.open import key_of, limits_of
from orchestrator.backends.profiles import OWN_SERVER
from orchestrator.core.batch_api import Batch
from orchestrator.core.clock import now
from orchestrator.core.engines import start_seconds
from orchestrator.core.errors import BackendError, BackendRemoved
from orchestrator.core.model import JobId
from orchestrator.daemon.health import ServerHealth
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.backend_set import BackendSet, handle_of, open_handle
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.server.in_process import ServerThread, socket_path
from orchestrator.server.memory_limits import BODY_MEMORY
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import (
    Backend,
    EnginesBackend,
    FleetBackend,
    LocalBackend,
    OwnBackend,
    OwnServer,
    RayBackend,
    SyncBackend,
    TimedBackend,
)
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.daemon.fleet_controller import FleetController
    from orchestrator.daemon.replica.home_replica import HomeReplica

LONGEST_ASK = 90.0
"""Maximum seconds for the single row that is asked before its batch, including its connection."""
REMEMBERED = timedelta(days=30)
"""Maximum age of starts that predict the duration of the next start."""
SHORT_DRAIN = 10.0
"""Seconds to wait for rows in flight at our own upstreams before their server restarts.

Running these rows again costs only time. A provider's rows are billed, so orch waits for as long as a row may take.
"""


class Opened(Struct):
    """A backend in use: its handle, the settings that it was opened with, and its server if we run it.

    `runs_under` are the server's settings without measurements by benches, so that a new bench restarts no server.
    """

    handle: BackendHandle
    settings: Backend
    server: ServerThread | None = None
    runs_under: Settings | None = None
    fleet: FleetController | None = None
    ending: threading.Thread | None = None


class HomeBackends(BackendSet):
    """A home's backends, each opened at its first use and kept until `close`.

    Without `dispatch`, no row is sent. With `only`, our own servers resume only that job's batches. `tell` receives
    progress messages of engines.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        budgets: SharedBudgets,
        replica: HomeReplica | None,
        tell: Callable[[str], None],
        *,
        dispatch: bool,
        only: JobId | None,
    ) -> None:
        super().__init__(store, Home(config.home), config, budgets)
        self._only = only
        self._tell = tell
        self._fleets: list[FleetController] = []
        self.servers_health = ServerHealth(self.home)
        self._replica = replica
        self._dispatch = dispatch
        self._stack = ExitStack()
        self._opened: dict[str, Opened] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        self._stack.close()

    def open(self, name: str) -> BackendHandle:
        """Return a backend, and start its server at the first use. Raises BackendError or UsageError.

        A backend removed from orch.toml keeps serving its rows while it is open. May be called from any thread.
        """
        with self._lock:
            found = self._opened.get(name)
            if found is not None and found.ending is not None:
                if found.ending.is_alive():
                    raise BackendError(
                        f"the server of {name} restarts with its new settings once rows in flight have ended"
                    )
                del self._opened[name]
                found = None
            if found is None:
                found = self._opened[name] = self._begin(name)
            return found.handle

    def _begin(self, name: str) -> Opened:
        settings = self.config.backends.get(name)
        if settings is None:
            raise BackendRemoved(f"backend {name} is no longer in {self.config.path}", hint="put it back")
        if isinstance(settings, OwnServer):
            return self._begin_server(name, settings)
        handle = self._open_handle(name, settings)
        if self._replica is not None:
            from orchestrator.daemon.replica.paid_calls import behind_replica

            handle = replace(handle, api=behind_replica(handle.api, self._replica.settled))
        return Opened(handle, settings)

    def _begin_server(self, name: str, settings: OwnBackend) -> Opened:
        measured = self.store.engine_rates.of(self.home.identity(), name)
        limits = {model: rates.best_limit for model, rates in measured.items()}
        runs_under = server_settings(name, settings, dispatch=self._dispatch)
        measured_settings = replace(runs_under, measured_limits=limits)
        fleet = None
        if isinstance(settings, EnginesBackend | RayBackend) and self._dispatch:
            fleet = self._new_fleet(name, settings)
            self._stack.callback(self.note_holds)
            self._stack.callback(fleet.close)
        server = self._stack.enter_context(
            ServerThread(self.home.server(name), measured_settings, self._may_send, self._resumes)
        )
        handle = self._open_handle(name, settings)
        if fleet is not None:
            fleet.begin(server)
            self._stack.callback(fleet.end)
        return Opened(handle, settings, server, runs_under, fleet)

    def _new_fleet(self, name: str, settings: EnginesBackend | RayBackend) -> FleetController:
        from orchestrator.daemon.drivers import driver_for
        from orchestrator.daemon.fleet_controller import FleetController

        folder = self.home.server(name)
        driver = driver_for(name, settings, folder, self._tell)
        starts = start_seconds(self.store.engine_holds.since(now() - REMEMBERED), name)
        fleet = FleetController(name, settings, driver, folder, tell=self._tell, now=now, starts=starts)
        self._fleets.append(fleet)
        return fleet

    def wished(self) -> Iterator[str]:
        """Yield the backends whose engines a person wants to run even without rows."""
        for name, settings in self.config.backends.items():
            if isinstance(settings, RayBackend) and any(model.engines[0] for model in settings.models.values()):
                yield name
            elif isinstance(settings, FleetBackend):
                from orchestrator.daemon.engine_wishes import read_wishes

                since = now() - timedelta(seconds=settings.idle)
                found = read_wishes(self.home.server(name)).values()
                if any(one.wish == "start" and one.at > since for one in found):
                    yield name

    def note_holds(self) -> None:
        """Store the GPUs that engines hold, because GPU hours cost money, busy or idle."""
        for fleet in self._fleets:
            self.store.engine_holds.keep(fleet.holds(self.home.identity()))

    def _open_handle(self, name: str, settings: Backend) -> BackendHandle:
        handle = open_handle(name, settings, self.config, socket_path(self.home.server(name)))
        self._stack.callback(handle.api.close)
        return handle

    def _may_send(self) -> bool:
        return self._replica is None or self._replica.is_held

    def _resumes(self, batch: Batch) -> bool:
        shard = (batch.metadata or {}).get(SHARD_KEY, "")
        return self._only is None or shard.startswith(f"{self._only}.")

    def leaves(self, name: str) -> str | None:
        found = self._opened.get(name)
        if found is None or found.server is None or name in self.config.backends:
            return None
        return f"{name} is no longer in {self.config.path}"

    def health(self, name: str) -> Mapping[str, Any] | None:
        return self.servers_health.told.get(name)

    def down(self) -> Mapping[str, float]:
        return self.servers_health.down()

    def servers(self) -> Iterator[tuple[str, OwnBackend]]:
        for name, found in [*self._opened.items()]:
            if found.ending is None and isinstance(found.settings, OwnServer):
                yield name, found.settings

    def longest_paid_row(self) -> float:
        paid = (one.settings for one in [*self._opened.values()] if isinstance(one.settings, SyncBackend))
        return max([LONGEST_ASK, *(settings.request_timeout for settings in paid)])

    def last_paid(self) -> list[str]:
        """Stop sending billed rows. Return the backends that have billed rows in flight."""
        return self._last(SyncBackend)

    def last_in_flight(self) -> list[str]:
        """Stop sending rows from our own servers. Return the backends that have rows in flight."""
        return self._last(object)

    def _last(self, kind: type) -> list[str]:
        found = []
        for name, opened in [*self._opened.items()]:
            if isinstance(opened.settings, kind) and opened.server is not None:
                with suppress(BackendError):  # the server has ended
                    if opened.server.send_no_more():
                        found.append(name)
        return found

    def durable_bytes(self) -> dict[str, int | None]:
        """Return the durable bytes of our running batches' result files, by path under the home; None if unknown."""
        found: dict[str, int | None] = {}
        for name, opened in [*self._opened.items()]:
            if opened.server is not None:
                with suppress(BackendError):  # the server has ended, so its files do not change
                    there = opened.server.durable_bytes()
                    found |= {f"servers/{name}/{path}": size for path, size in there.items()}
        return found

    def resume(self) -> None:
        for opened in [*self._opened.values()]:
            if opened.server is not None:
                with suppress(BackendError):
                    opened.server.resume()

    def use(self, config: Config) -> None:
        with self._lock:
            self.config = config
            for name, found in [*self._opened.items()]:
                settings = config.backends.get(name)
                if settings is not None and found.ending is None:
                    self._renew(name, found, settings)

    def _renew(self, name: str, found: Opened, settings: Backend) -> None:
        """Apply new settings to an open backend.

        If its API or server changes, the backend is opened again at its next use. Prices and limits change at once.
        """
        if found.server is not None and self._must_restart(name, found, settings):
            self._end(found.server, found, name)
        elif found.server is None and settings != found.settings:
            del self._opened[name]
        else:
            if found.fleet is not None and isinstance(settings, EnginesBackend | RayBackend):
                found.fleet.use(settings)
            handle = handle_of(name, found.handle.api, settings, self.config)
            self._opened[name] = replace(found, settings=settings, handle=handle)

    def _must_restart(self, name: str, found: Opened, settings: Backend) -> bool:
        if not isinstance(settings, OwnServer):
            return True
        return server_settings(name, settings, dispatch=self._dispatch) != found.runs_under or _needs_new_engines(
            found.settings, settings
        )

    def _end(self, server: ServerThread, found: Opened, name: str) -> None:
        settings = found.settings
        assert isinstance(settings, OwnServer), "it has a server"
        seconds = settings.request_timeout
        if isinstance(settings, TimedBackend):
            seconds = min(seconds, SHORT_DRAIN)

        def end() -> None:
            if found.fleet is not None:
                found.fleet.end()
            server.end(seconds)
            if found.fleet is not None:
                found.fleet.close()

        found.ending = threading.Thread(target=end, name=f"end-{name}")
        found.ending.start()


def _needs_new_engines(before: Backend, settings: Backend) -> bool:
    if not isinstance(before, FleetBackend):
        return False
    return type(before) is not type(settings) or any(
        getattr(before, part) != getattr(settings, part) for part in before.moves
    )


def server_settings(name: str, backend: OwnBackend, *, dispatch: bool) -> Settings:
    """Return the settings for a backend's own server. Raises UsageError if the variable of its key is not set."""
    # A missing key is not the job's fault, so the job waits for a start with the key.
    variable = None if isinstance(backend, FleetBackend) else backend.api_key_env
    api_key = None if variable is None else key_of(name, variable, os.environ)
    limits = limits_of(backend, OWN_SERVER)
    common = Settings(
        body_memory=backend.body_memory or BODY_MEMORY,
        upstreams=(),
        api_key=api_key,
        request_timeout=backend.request_timeout,
        retry_delay=backend.retry_delay,
        max_concurrency=backend.max_concurrency,
        max_file_bytes=max(limits.max_bytes, 512 * 1024 * 1024),
        max_rows=limits.max_rows,
        dispatch=dispatch,
    )
    match backend:
        case LocalBackend():
            return replace(common, upstreams=backend.upstreams)
        case EnginesBackend() | RayBackend():
            return replace(common, expected_models=backend.model_names, most_upstreams=backend.most_engines)
        case SyncBackend():
            return replace(
                common,
                upstreams=(backend.base_url,),
                paid=True,
                service_tier=backend.service_tier,
                requests_per_minute=backend.requests_per_minute,
                tokens_per_minute=backend.tokens_per_minute,
            )
        case _:
            assert_never(backend)
