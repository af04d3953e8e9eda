"""Moves the clock of this process on, and with it that of a server in one of its threads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.clock import now


def later(monkeypatch: pytest.MonkeyPatch, **passed: float) -> None:
    """From now on, until the test's end, it is so much later than it is: `later(monkeypatch, minutes=61)`."""
    wanted = datetime.now(UTC) + timedelta(**passed)
    monkeypatch.setenv("ORCH_NOW", wanted.isoformat())
    # What has passed since this process began is added to ORCH_NOW, and in a long run of tests that is much.
    monkeypatch.setenv("ORCH_NOW", (wanted - (now() - wanted)).isoformat())
