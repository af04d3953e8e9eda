"""Backends as the pipeline uses them, for tests that ask nothing of an API."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, cast

from orchestrator.backends import Backend
from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.backends.profiles import BatchLimits
from orchestrator.core.model import Outcome, Price, Usage
from orchestrator.pipeline.backend_handles import BackendHandle


class EachRow:
    """Every row costs the same."""

    def __init__(self, cost: Decimal) -> None:
        self._price = Price(cost, "a row")

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        return self._price

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price:
        return Price(self._price.cost * sends, "uncertain", estimated=True)

    def of_time(self, seconds: float) -> Price:
        return Price(Decimal(0), "by the row")

    def known(self, model: str, endpoint: str) -> str:
        return "a row"

    def at_most(self, model: str, usage: Usage) -> Price:
        return self._price

    def synchronous(self) -> EachRow:
        return self

    def at(self, moment: datetime) -> EachRow:
        return self


def handle(api: Any = None, *, cost: Decimal = Decimal(0), is_own: bool = True, **facts: Any) -> BackendHandle:
    """A backend without an API unless one is given."""
    given = {"name": "gpu", "profile": PROFILES["orch"], "limits": BatchLimits(), "poll_seconds": 60.0, **facts}
    return BackendHandle(api=cast(Backend, api), price=EachRow(cost), is_own=is_own, **given)
