"""Who serves a backend, in OpenTelemetry's names; a backend whose addresses go by its region has no single one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.daemon.telemetry.reader import served_by
from orchestrator.daemon.telemetry.spans import ServedBy
from orchestrator.settings.backends import Backend
from orchestrator.settings.config import Config
from orchestrator.settings.config import Report as ReportSettings
from orchestrator.settings.discovery import Place
from tests.support.aws import bedrock_settings
from tests.support.google import vertex_settings


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        (vertex_settings("", "k"), ServedBy("gcp.vertex_ai")),
        (vertex_settings("http://127.0.0.1:8080", "k"), ServedBy("gcp.vertex_ai", "127.0.0.1", 8080)),
        (bedrock_settings("http://127.0.0.1:4566", "k").model_copy(update={"base_url": ""}), ServedBy("aws.bedrock")),
    ],
)
def test_a_backend_without_a_single_address_has_none(backend: Backend, found: ServedBy, tmp_path: Path) -> None:
    place = Place(None, tmp_path, None, 10.0)
    assert served_by(backend, Config(place, {"it": backend}, {}, {}, ReportSettings()), now) == found
