"""The models of the CPU engine by name: the demo's, and tiny random ones for tests, with and without vision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.errors import InputError
from orchestrator.server.engines import cpu_models
from orchestrator.server.engines.cpu_models import GEMMA, LocalModel, Recipe
from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.layout import EngineDir

HERE = Path(__file__).resolve().parent

RECIPES: Mapping[str, Recipe] = {
    "gemma": GEMMA,
    "tiny": Recipe(
        folder="tiny-llama",
        script=HERE / "make_tiny.py",
        command="python -m tools.cpu_engine model tiny",
        max_model_len=8192,
        note="a tiny Llama with random weights: nothing to fetch, under 1 MB, some seconds",
        space=10_000_000,
    ),
    "tiny-vision": Recipe(
        folder="tiny-idefics3",
        script=HERE / "make_tiny_vision.py",
        command="python -m tools.cpu_engine model tiny-vision",
        max_model_len=8192,
        note="a tiny Idefics3 with random weights, which takes pictures: nothing to fetch, under 1 MB, some seconds",
        space=10_000_000,
        uses=(HERE / "make_tiny.py",),
    ),
}


def find_model(engine: EngineDir, name: str) -> LocalModel:
    """Return a finished model. Raises EngineUnavailable if it has not been made."""
    recipe = _recipe(name)
    if (model := cpu_models.made_model(engine, recipe)) is None:
        raise EngineUnavailable(f"the model {recipe.folder} is not in {engine.models}", hint=recipe.command)
    return model


def make_model(engine: EngineDir, name: str) -> LocalModel:
    """Make a model unless it exists. Raises EngineUnavailable with the reason."""
    return cpu_models.make_model(engine, _recipe(name))


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(f"no model {name!r}; there are: {', '.join(RECIPES)}")
    return RECIPES[name]
