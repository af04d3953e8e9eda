"""The engines of `orch serve --ray`: on a Ray cluster, as many as batches need, as a backend of kind `ray` has."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.core.clock import now
from orchestrator.core.errors import UsageError
from orchestrator.engine.drivers import driver_for
from orchestrator.engine.fleets import FleetController
from orchestrator.server.engine_control import SteeredServer
from orchestrator.server.engines.options import check_options, value_of
from orchestrator.server.engines.ray_process import require_ray
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import ClusterModel, RayBackend

NAME = "ray"


@dataclass(frozen=True, slots=True)
class RayWish:
    """What the command line says of them: `engines` the least and the most that there may be, each with so many
    `gpus`, `idle` in seconds; None is what orch.toml has where it says nothing. `python` None is the one beside `ray`
    in PATH.
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
    """Until the block ends. `folder` is that of the server, `tell` gets lines for people.

    Raises UsageError, and EngineUnavailable where that Python has no Ray.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.close()

    def added(self, settings: Settings) -> Settings:
        """Settings of a server that these engines join and leave."""
        names = self._settings.model_names
        return replace(settings, expected_models=names, most_upstreams=self._settings.most_engines)

    @asynccontextmanager
    async def steered(self, service: Service) -> AsyncIterator[None]:
        """Start and stop them as the rows of this server ask for it, until the block ends; in the server's loop."""
        loop = asyncio.get_running_loop()
        self._fleet.begin(SteeredServer(service, lambda: loop))
        try:
            yield
        finally:
            await asyncio.to_thread(self._fleet.end)  # which asks the server once more


def _beside_ray() -> Path:
    ray = shutil.which("ray")
    if ray is None:
        raise UsageError("--ray needs the cluster's own Python", hint="name it with --ray-python PATH")
    return Path(ray).resolve().with_name("python")


def _settings(wish: RayWish, python: Path) -> RayBackend:
    weights = str(Path(wish.model).absolute()) if Path(wish.model).exists() else wish.model
    # As without Ray: a path is not a name for a model, and the last part of it is what requests say.
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
    # A name on the Hub has a slash, which none in orch.toml has.
    return found.model_copy(update={"models": {name: model}})
