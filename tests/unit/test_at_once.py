"""Which backends `orch try` may ask, and what is said of the others."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from orchestrator.core.clock import now
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.synchronous_backends import at_once
from orchestrator.settings import config
from orchestrator.settings.discovery import Place
from tests.support.process import Upstream

ENGINES = '[backends.b]\nkind = "engines"\ncost_per_hour = 1\n[backends.b.models]\nsmall = {model = "/models/a"}\n'
HOSTED = '[backends.b]\nkind = "openai"\napi_key_env = "KEY"\n'


def found(folder: Path, text: str, wanted: str | None = None) -> tuple[tuple[str, ...], dict[str, str]]:
    place = Place(folder / "orch.toml", folder, f"sqlite:///{folder / 'orch.db'}", 1.0)
    answer = at_once(config.parse(place, text), wanted)
    return answer.names, answer.others


def test_a_backend_that_cannot_answer_at_once_is_told_why(tmp_path: Path) -> None:
    assert found(tmp_path, HOSTED) == ((), {"b": "its batches take minutes to hours"})


@pytest.mark.parametrize("address", ["", 'base_url = "http://127.0.0.1:8123/v1"\nprofile = "openai"\n'])
def test_the_backend_that_it_proposes_has_prices(tmp_path: Path, address: str) -> None:
    place = Place(tmp_path / "orch.toml", tmp_path, f"sqlite:///{tmp_path / 'orch.db'}", 1.0)
    hint = at_once(config.parse(place, HOSTED + address), None).hint
    assert hint is not None
    added = config.parse(place, dedent(hint.partition("orch.toml:\n")[2]))
    prices_of(added.backends["now"], added, now).known("gpt-5.4-mini", "/v1/chat/completions")


@pytest.mark.slow
def test_engines_are_started_if_nothing_else_answers_or_if_wanted(tmp_path: Path, upstream: Upstream) -> None:
    local = f'[backends.now]\nkind = "local"\nidle = true\nupstreams = ["{upstream.base_url}"]\n'
    assert found(tmp_path, ENGINES) == (("b",), {})
    assert found(tmp_path, ENGINES + local)[0] == ("now",)
    assert found(tmp_path, ENGINES + local, "b")[0] == ("now", "b")


def test_a_running_upstream_answers_at_once(tmp_path: Path, upstream: Upstream) -> None:
    text = f'[backends.b]\nkind = "local"\nidle = true\nupstreams = ["{upstream.base_url}"]\n'
    assert found(tmp_path, text) == (("b",), {})
