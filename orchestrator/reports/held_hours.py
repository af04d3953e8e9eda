"""GPU hours held by our own engines, and their cost, busy or idle. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from msgspec import Struct

from orchestrator.core.counts import number_of
from orchestrator.core.durations import HOUR, duration
from orchestrator.core.engines import EngineHold
from orchestrator.core.money import money


class HeldHours(Struct, frozen=True):
    """GPU hours that a backend held for a model, and their cost. `starting_hours` passed before engines were warm."""

    backend: str
    model: str
    starts: int
    gpu_hours: float
    starting_hours: float
    cost: Decimal

    @property
    def words(self) -> str:
        """The hours as a sentence."""
        starts = number_of(self.starts, "start")
        return (
            f"{self.backend} held GPUs for {self.model}: {duration(self.gpu_hours * HOUR)} of one GPU, "
            f"{duration(self.starting_hours * HOUR)} of it in {starts}: {money(self.cost)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return {
            "backend": self.backend,
            "model": self.model,
            "starts": self.starts,
            "gpu_hours": round(self.gpu_hours, 6),
            "starting_gpu_hours": round(self.starting_hours, 6),
            "cost_usd": f"{self.cost:f}",
        }


def held_hours(holds: Iterable[EngineHold]) -> list[HeldHours]:
    """Sum holds by backend and model, in order of first appearance."""
    found: dict[tuple[str, str], list[EngineHold]] = {}
    for one in holds:
        found.setdefault((one.backend, one.model), []).append(one)
    return [
        HeldHours(
            backend,
            model,
            len(of_it),
            sum(one.hours * one.gpus for one in of_it),
            sum(_starting(one) * one.gpus for one in of_it),
            sum((one.cost for one in of_it), Decimal(0)),
        )
        for (backend, model), of_it in found.items()
    ]


def _starting(one: EngineHold) -> float:
    until = one.warm_at or one.seen_at
    return max(0.0, (until - one.began_at).total_seconds() / HOUR)
