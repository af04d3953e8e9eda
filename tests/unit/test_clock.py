"""ORCH_NOW."""

from __future__ import annotations

import pytest

from orchestrator.clock import now
from orchestrator.errors import InputError


@pytest.mark.parametrize("text", ["x", "", "9999-12-31T23:59:59-12:00"])
def test_a_time_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ORCH_NOW", text)
    with pytest.raises(InputError, match=r"^ORCH_NOW: .* is no time"):
        now()
