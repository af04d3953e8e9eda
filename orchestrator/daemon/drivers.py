"""Drivers of a backend's engines: processes on this machine, or actors on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from orchestrator.core.clock import now
from orchestrator.core.errors import RefusedError
from orchestrator.server.engines.driver import EngineDriver
from orchestrator.settings.backends import EnginesBackend, FleetBackend, RayBackend

AnyFleet = EnginesBackend | RayBackend


def driver_for(name: str, settings: AnyFleet, folder: Path, tell: Callable[[str], None]) -> EngineDriver:
    """Return the driver of a backend. `folder` is the folder of its server, and `tell` receives progress messages."""

    def told(text: str) -> None:
        tell(f"{name}: {text}")

    # Imported here, so that a home without a cluster never imports the package for Ray.
    if isinstance(settings, RayBackend):
        from orchestrator.ray.driver import RayDriver

        return RayDriver(folder, settings, os.environ, told)
    from orchestrator.server.engines.local_driver import LocalDriver

    return LocalDriver(folder, settings, os.environ, told)


def require_open(name: str, settings: FleetBackend) -> None:
    hours = settings.open_hours
    if hours is not None and now() < (opens := hours.span(now()).opens):
        raise RefusedError(
            f"it is outside the hours of {name} ({hours}); they begin at {opens.astimezone():%H:%M}",
            hint=f"change backends.{name}.hours in orch.toml",
        )
