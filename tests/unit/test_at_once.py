"""Which backends `orch try` may ask, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.pipeline.plan.synchronous_backends import at_once
from orchestrator.settings import config
from orchestrator.settings.discovery import Place
from tests.support.process import Upstream

ENGINES = '[backends.b]\nkind = "engines"\ncost_per_hour = 1\n[backends.b.models]\nsmall = {model = "/models/a"}\n'
HOSTED = '[backends.b]\nkind = "openai"\napi_key_env = "KEY"\n'


def found(folder: Path, text: str) -> tuple[tuple[str, ...], dict[str, str]]:
    place = Place(folder / "orch.toml", folder, f"sqlite:///{folder / 'orch.db'}", 1.0)
    answer = at_once(config.parse(place, text))
    return answer.names, answer.others


@pytest.mark.parametrize(
    ("text", "why"),
    [(ENGINES, "its engines may have to start first"), (HOSTED, "its batches take minutes to hours")],
    ids=["engines", "hosted"],
)
def test_a_backend_that_cannot_answer_at_once_is_told_why(tmp_path: Path, text: str, why: str) -> None:
    assert found(tmp_path, text) == ((), {"b": why})


def test_a_running_upstream_answers_at_once(tmp_path: Path, upstream: Upstream) -> None:
    text = f'[backends.b]\nkind = "local"\nidle = true\nupstreams = ["{upstream.base_url}"]\n'
    assert found(tmp_path, text) == (("b",), {})
