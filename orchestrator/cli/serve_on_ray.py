"""Engines of `orch serve --ray` on a Ray cluster, as for a backend of kind `ray`. Batches determine their number."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.errors import UsageError
from orchestrator.daemon.drivers import driver_for
from orchestrator.daemon.fleet_controller import FleetController
from orchestrator.ray.process import require_ray
from orchestrator.server.engine_control import SteeredServer
from orchestrator.server.engines.options import check_options, value_of
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import ClusterModel, RayBackend

NAME = "ray"


class RayWish(Struct, frozen=True):
    """Command-line options of the engines; None means orch.toml's default.

    `engines` is their minimum and maximum number. Each engine has `gpus` GPUs. `idle` is in seconds. Without
    `python`, orch uses the Python beside `ray` in PATH.
    """

    address: str
    model: str
    engines: tuple[int, int] | None = None
    idle: float | None = None
    gpus: int = 1
    python: Path | None = None
    vllm_python: Path | None = None
    options: tuple[str, ...] = ()


class RayEngines:
    """Engines on Ray, which run until the block ends. `folder` is the server's folder; `tell` receives progress
    messages.

    Raises UsageError, and EngineUnavailable if the cluster's Python lacks Ray.
    """

    def __init__(self, wish: RayWish, folder: Path, tell: Callable[[str], None]) -> None:
        check_options(wish.options)
        python = wish.python or _beside_ray()
        require_ray(python, os.environ)
        self._settings = _settings(wish, python)
        driver = driver_for(NAME, self._settings, folder, tell)
        self._fleet = FleetController(NAME, self._settings, driver, folder, tell=tell, now=now)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._fleet.close()

    def added(self, settings: Settings) -> Settings:
        """Return the server's settings, adjusted for engines that join and leave."""
        names = self._settings.model_names
        return replace(settings, expected_models=names, most_upstreams=self._settings.most_engines)

    @asynccontextmanager
    async def steered(self, service: Service) -> AsyncIterator[None]:
        """Start and stop engines as this server's rows need them, until the block ends. Runs in the server's event
        loop.
        """
        loop = asyncio.get_running_loop()
        self._fleet.begin(SteeredServer(service, lambda: loop))
        try:
            yield
        finally:
            await asyncio.to_thread(self._fleet.end)  # in a thread, because it sends a last request to this server


def _beside_ray() -> Path:
    ray = shutil.which("ray")
    if ray is None:
        raise UsageError("--ray needs the cluster's own Python", hint="name it with --ray-python PATH")
    return Path(ray).resolve().with_name("python")


def _settings(wish: RayWish, python: Path) -> RayBackend:
    weights = str(Path(wish.model).absolute()) if Path(wish.model).exists() else wish.model
    # As without Ray, the last part of a model's path is its name in requests.
    name = value_of(wish.options, "--served-model-name") or (
        Path(weights).name if Path(weights).is_absolute() else weights
    )
    told = {} if wish.engines is None else {"engines": "{}..{}".format(*wish.engines)}
    model = ClusterModel.model_validate(
        {"model": weights, "gpus": wish.gpus, "options": wish.options, "cost_per_hour": 0, **told}
    )
    found = RayBackend.model_validate(
        {
            "kind": "ray", "address": wish.address, "ray_python": str(python), "models": {"model": model},
            "vllm_python": None if wish.vllm_python is None else str(wish.vllm_python),
            **({} if wish.idle is None else {"idle": f"{wish.idle}s"}),
        }
    )  # fmt: skip
    # Skip validation: Hub names contain a slash, which orch.toml does not allow.
    return found.model_copy(update={"models": {name: model}})
