"""ORCH_NOW and ORCH_CLOCK."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.core.errors import InputError


@pytest.mark.parametrize("text", ["x", "", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ORCH_NOW", text)
    with pytest.raises(InputError, match=r"^ORCH_NOW: .* is not a time"):
        now()


def test_a_shared_clock_is_read_anew_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = tmp_path / "clock.json"
    monkeypatch.setenv("ORCH_CLOCK", str(clock))
    clock.write_text(json.dumps({"at": "2026-12-01T06:00:00+01:00", "since": time.time(), "speed": 0}))
    assert now() == datetime(2026, 12, 1, 5, tzinfo=UTC)
    clock.write_text(json.dumps({"at": "2026-12-01T06:00:00", "since": time.time() - 10, "speed": 3600}))
    assert now() >= datetime(2026, 12, 1, 6, tzinfo=UTC) + timedelta(hours=10)


@pytest.mark.parametrize(
    "content",
    ["", "x", "[]", '{"at": "x", "since": 0, "speed": 1}', '{"at": "2026-12-01", "since": 0}', None],
    ids=["empty", "no JSON", "a list", "no time", "a field missing", "no file"],
)
def test_a_shared_clock_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    clock = tmp_path / "clock.json"
    monkeypatch.setenv("ORCH_CLOCK", str(clock))
    if content is not None:
        clock.write_text(content)
    with pytest.raises(InputError, match=r"^ORCH_CLOCK: .*clock\.json holds no clock"):
        now()
