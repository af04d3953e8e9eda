"""Moves the clock of this process on, and with it that of a server in one of its threads."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.core.clock import now


def later(monkeypatch: pytest.MonkeyPatch, **passed: float) -> None:
    """From now on, until the test's end, it is so much later than it is: `later(monkeypatch, minutes=61)`."""
    wanted = datetime.now(UTC) + timedelta(**passed)
    monkeypatch.setenv("ORCH_NOW", wanted.isoformat())
    # What has passed since this process began is added to ORCH_NOW, and in a long run of tests that is much.
    monkeypatch.setenv("ORCH_NOW", (wanted - (now() - wanted)).isoformat())


class HeldClock:
    """A clock that stands still until a test moves it: for this process, and for those that are given `environment`.

    A window of seconds then ends when the test says so, however slow the machine is.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._at = datetime.now(UTC)
        self.move()
        self.environment = {"ORCH_CLOCK": str(path)}
        monkeypatch.setenv("ORCH_CLOCK", str(path))

    def move(self, **passed: float) -> None:
        """It is so much later from now on: `move(seconds=2)`."""
        self._at += timedelta(**passed)
        told = {"at": self._at.isoformat(), "since": 0.0, "speed": 0.0}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(told), encoding="utf-8")
        beside.replace(self._path)  # it is read meanwhile
