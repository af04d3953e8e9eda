"""The backends that an engine has opened, and what becomes of them when orch.toml is edited."""

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
    from orchestrator.engine.fleets import FleetController

SHORT_DRAIN = 10.0
"""Seconds that rows in flight at upstreams of one's own are waited for before their server starts anew: they cost
nothing but time when they run again. A provider's are billed, and waited for as long as one may take."""


@dataclass(slots=True)
class Opened:
    """A backend in use: its handle, the settings that it was opened with, and its server where that is ours."""

    handle: BackendHandle
    settings: Backend
    server: ServerThread | None = None
    runs_under: Settings | None = None
    fleet: FleetController | None = None
    ending: threading.Thread | None = None


class OpenBackends:
    """Backends by name, each opened at its first use by `make`. `serves` says what the server of one is told."""

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
        """A backend, its server started at the first use. Raises BackendError, UsageError.

        One that is no longer in orch.toml is there for what it has, as long as it is open. May be called from any
        thread.
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
        """Our servers that run, and their settings."""
        for name, found in [*self._opened.items()]:
            if found.ending is None and isinstance(found.settings, OwnServer):
                yield name, found.settings

    def durable_bytes(self) -> dict[str, int | None]:
        """How much of each result file of our servers' running batches is durable, by its path under the home; None
        where that is not known yet.
        """
        found: dict[str, int | None] = {}
        for name, opened in [*self._opened.items()]:
            if opened.server is not None:
                with suppress(BackendError):  # it has ended: its files are as they stay
                    there = opened.server.durable_bytes()
                    found |= {f"servers/{name}/{path}": size for path, size in there.items()}
        return found

    def resume(self) -> None:
        """Our servers may send rows again."""
        for opened in [*self._opened.values()]:
            if opened.server is not None:
                with suppress(BackendError):
                    opened.server.resume()

    def leaves(self, name: str) -> str | None:
        """Why rows are to come back from one of our servers that still runs; None where they may stay."""
        found = self._opened.get(name)
        if found is None or found.server is None or name in self._config.backends:
            return None
        return f"{name} is no longer in {self._config.path}"

    def use(self, config: Config) -> None:
        """These settings hold from now on."""
        with self._lock:
            self._config = config
            for name, found in [*self._opened.items()]:
                settings = config.backends.get(name)
                if settings is not None and found.ending is None:
                    self._renew(name, found, settings)

    def _renew(self, name: str, found: Opened, settings: Backend) -> None:
        """A backend whose API or server is told something else opens again at its next use; prices and limits change
        where it stands.
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
    """Whether the engines of a fleet are to be started otherwise than they are."""
    before = found.settings
    if not isinstance(before, FleetBackend):
        return False
    return type(before) is not type(settings) or any(
        getattr(before, part) != getattr(settings, part) for part in before.moves
    )


def _reopened(handle: BackendHandle, settings: Backend, config: Config) -> BackendHandle:
    """The same API under the prices and limits that hold now."""
    return replace(
        handle,
        limits=limits_of(settings, handle.profile),
        poll_seconds=0.0 if handle.is_own else settings.poll_seconds or handle.profile.poll_seconds,
        price=prices_of(settings, config, now),
        recipient=recipient_of(settings),
    )
