"""Drivers of a backend's engines: processes on this machine, or actors on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

from orchestrator.policy.fleet import ModelTerms
from orchestrator.policy.fleet_size import RateWatch
from orchestrator.server.engines.driver import EngineDriver
from orchestrator.server.engines.local_driver import LocalDriver, LocalEngineModel, LocalTerms
from orchestrator.server.engines.ray_driver import RayDriver, RayModel, RayTerms
from orchestrator.settings.backends import EnginesBackend, RayBackend

AnyFleet = EnginesBackend | RayBackend


def driver_for(name: str, settings: AnyFleet, folder: Path, tell: Callable[[str], None]) -> EngineDriver:
    """Return the driver of a backend; `folder` is its server's, `tell` receives lines for people."""

    def told(text: str) -> None:
        tell(f"{name}: {text}")

    match settings:
        case EnginesBackend():
            return LocalDriver(folder, _local_terms(settings), os.environ, told)
        case RayBackend():
            return RayDriver(folder, _ray_terms(settings), os.environ, told)
        case _:
            assert_never(settings)


def _local_terms(settings: EnginesBackend) -> LocalTerms:
    models = tuple(
        LocalEngineModel(one, model.model, model.tensor_parallel, model.swap == "sleep", model.options)
        for one, model in settings.models.items()
    )
    python = None if settings.vllm_python is None else Path(settings.vllm_python).expanduser()
    return LocalTerms(models, settings.gpus, settings.vram, python)


def _ray_terms(settings: RayBackend) -> RayTerms:
    own = _own_slots(settings)
    models = tuple(
        RayModel(
            name, model.model, own[name], model.gpus, model.cpus, tuple(sorted(model.resources.items())),
            model.placement == "spread", model.options,
        )
        for name, model in settings.models.items()
    )  # fmt: skip
    python = Path(settings.ray_python).expanduser()
    return RayTerms(models, settings.address, python, settings.vllm_python)


def _own_slots(settings: RayBackend) -> dict[str, tuple[int, ...]]:
    """Return the engine numbers that each model may use."""
    found, first = {}, 0
    for name, model in settings.models.items():
        found[name] = tuple(range(first, first + model.engines[1]))
        first += model.engines[1]
    return found


def model_terms(
    settings: AnyFleet, starts: Mapping[str, float], rates: Mapping[str, RateWatch], usual: float
) -> tuple[ModelTerms, ...]:
    """Return the models of a fleet for its policy; `usual` is the start time in seconds of unknown models."""
    match settings:
        case EnginesBackend():
            return tuple(
                ModelTerms(
                    name, model.tensor_parallel, model.swap == "sleep", starts.get(name, usual),
                    settings.rows_per_second,
                )
                for name, model in settings.models.items()
            )  # fmt: skip
        case RayBackend():
            own = _own_slots(settings)
            return tuple(
                ModelTerms(
                    name, start_seconds=starts.get(name, usual),
                    rate=(rates[name].rate if name in rates else None) or settings.rows_per_second,
                    own=own[name], least=model.engines[0],
                )
                for name, model in settings.models.items()
            )  # fmt: skip
        case _:
            assert_never(settings)
