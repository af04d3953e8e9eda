"""The backends that an engine has opened, and their changes when orch.toml is edited."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.backends.open import limits_of
from orchestrator.core.clock import now
from orchestrator.core.errors import BackendError
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.server.host import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import (
    Backend,
    EnginesBackend,
    FleetBackend,
    OwnBackend,
    OwnServer,
    RayBackend,
    TimedBackend,
)
from orchestrator.settings.config import Config

if TYPE_CHECKING:
    from orchestrator.daemon.fleets import FleetController

SHORT_DRAIN = 10.0
"""Seconds to wait for rows in flight at our own upstreams before their server restarts: running them again costs only
time. A provider's rows are billed, and get as long as one may take.
"""


@dataclass(slots=True)
class Opened:
    """A backend in use: its handle, the settings that it was opened with, and its server if it is ours."""

    handle: BackendHandle
    settings: Backend
    server: ServerThread | None = None
    runs_under: Settings | None = None
    fleet: FleetController | None = None
    ending: threading.Thread | None = None


class OpenBackends:
    """Backends by name, each opened on first use by `make`. `serves` returns the settings for a backend's server."""

    def __init__(
        self,
        config: Config,
        make: Callable[[str, Backend], Opened],
        serves: Callable[[str, Backend], Settings | None],
    ) -> None:
        self._config = config
        self._make = make
        self._serves = serves
        self._opened: dict[str, Opened] = {}
        self._lock = threading.RLock()

    def handle(self, name: str) -> BackendHandle:
        """Return a backend, starting its server on first use. Raises BackendError or UsageError.

        A backend removed from orch.toml keeps serving its rows while it is open. May be called from any thread.
        """
        with self._lock:
            return self._handle(name)

    def _handle(self, name: str) -> BackendHandle:
        found = self._opened.get(name)
        if found is not None and found.ending is not None:
            if found.ending.is_alive():
                raise BackendError(
                    f"the server of {name} restarts with its new settings once rows in flight have ended"
                )
            del self._opened[name]
            found = None
        if found is None:
            settings = self._config.backends.get(name)
            if settings is None:
                raise BackendError(f"backend {name} is no longer in {self._config.path}", hint="put it back")
            found = self._opened[name] = self._make(name, settings)
        return found.handle

    def servers(self) -> Iterator[tuple[str, OwnBackend]]:
        """Yield our running servers, and their settings."""
        for name, found in [*self._opened.items()]:
            if found.ending is None and isinstance(found.settings, OwnServer):
                yield name, found.settings

    def durable_bytes(self) -> dict[str, int | None]:
        """Return the durable bytes of each result file of our running batches, by path under the home; None if
        unknown.
        """
        found: dict[str, int | None] = {}
        for name, opened in [*self._opened.items()]:
            if opened.server is not None:
                with suppress(BackendError):  # it has ended: its files do not change
                    there = opened.server.durable_bytes()
                    found |= {f"servers/{name}/{path}": size for path, size in there.items()}
        return found

    def resume(self) -> None:
        """Let our servers send rows again."""
        for opened in [*self._opened.values()]:
            if opened.server is not None:
                with suppress(BackendError):
                    opened.server.resume()

    def leaves(self, name: str) -> str | None:
        """Return why rows must leave one of our running servers, or None if they may stay."""
        found = self._opened.get(name)
        if found is None or found.server is None or name in self._config.backends:
            return None
        return f"{name} is no longer in {self._config.path}"

    def use(self, config: Config) -> None:
        """Apply new settings."""
        with self._lock:
            self._config = config
            for name, found in [*self._opened.items()]:
                settings = config.backends.get(name)
                if settings is not None and found.ending is None:
                    self._renew(name, found, settings)

    def _renew(self, name: str, found: Opened, settings: Backend) -> None:
        """Reopen a backend at its next use if its API or server has other settings; prices and limits change in
        place.
        """
        if found.server is not None and (self._serves(name, settings) != found.runs_under or _moves(found, settings)):
            self._end(found.server, found, name)
        elif found.server is None and settings != found.settings:
            del self._opened[name]
        else:
            if found.fleet is not None and isinstance(settings, EnginesBackend | RayBackend):
                found.fleet.use(settings)
            self._opened[name] = replace(
                found, settings=settings, handle=_reopened(found.handle, settings, self._config)
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


def _moves(found: Opened, settings: Backend) -> bool:
    """True if the engines of a fleet must be restarted."""
    before = found.settings
    if not isinstance(before, FleetBackend):
        return False
    return type(before) is not type(settings) or any(
        getattr(before, part) != getattr(settings, part) for part in before.moves
    )


def _reopened(handle: BackendHandle, settings: Backend, config: Config) -> BackendHandle:
    """Return the same API with current prices and limits."""
    return replace(
        handle,
        limits=limits_of(settings, handle.profile),
        poll_seconds=0.0 if handle.is_own else settings.poll_seconds or handle.profile.poll_seconds,
        price=prices_of(settings, config, now),
        recipient=recipient_of(settings),
    )
