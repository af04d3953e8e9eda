"""Models: found when whole, never half made. The engine's Python is this one, which has no torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.core.errors import InputError
from orchestrator.server.engines import EngineDir, EngineUnavailable
from orchestrator.server.engines.cpu_models import PLAIN_TURNS, STAMP, TEMPLATE
from orchestrator.server.engines.install import CONSTRAINTS, fingerprint
from tools.cpu_engine.models import RECIPES, find_model, make_model


@pytest.fixture
def engine(tmp_path: Path) -> EngineDir:
    engine = EngineDir.at(tmp_path / "engine")
    engine.python.parent.mkdir(parents=True)
    engine.python.symlink_to(sys.executable)
    engine.stamp.write_text(fingerprint(CONSTRAINTS))
    return engine


def test_an_unknown_model(engine: EngineDir) -> None:
    with pytest.raises(InputError, match="no model 'huge'; there are: gemma, tiny, tiny-vision"):
        find_model(engine, "huge")


def test_a_model_that_was_not_made(engine: EngineDir) -> None:
    with pytest.raises(EngineUnavailable) as caught:
        find_model(engine, "gemma")
    assert caught.value.hint == "orch demo"


def test_making_one_takes_an_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="is not installed"):
        make_model(EngineDir.at(tmp_path), "tiny")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the engine runs on Linux")
def test_a_failure_leaves_nothing_that_looks_like_a_model(engine: EngineDir) -> None:
    with pytest.raises(EngineUnavailable, match="No module named 'torch'"):
        make_model(engine, "tiny")
    assert list(engine.models.iterdir()) == []


def test_a_made_model_is_found_and_not_made_again(engine: EngineDir) -> None:
    folder = engine.models / RECIPES["tiny"].folder
    folder.mkdir(parents=True)
    (folder / STAMP).write_text(RECIPES["tiny"].fingerprint() + "\n")
    model = make_model(engine, "tiny")
    assert model == find_model(engine, "tiny")
    assert (model.path, model.chat_template) == (folder, folder / TEMPLATE)
    (folder / STAMP).write_text("of another recipe\n")
    with pytest.raises(EngineUnavailable):
        find_model(engine, "tiny")


def test_a_model_is_made_again_when_a_script_that_it_uses_changes() -> None:
    vision = RECIPES["tiny-vision"]
    assert vision.fingerprint() != replace(vision, uses=()).fingerprint()


def test_the_template_begins_with_bos() -> None:
    assert PLAIN_TURNS.startswith("{{ bos_token }}")
