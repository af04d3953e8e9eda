"""The figures of a job's night: what it cost by backend, how long batches took, how its deadline was kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from orchestrator.core.model import Forecast


class BookedLine(Protocol):
    """What was booked for a job at one backend."""

    @property
    def backend(self) -> str:
        """Where."""

    @property
    def rows(self) -> int:
        """Rows that reached it."""

    @property
    def cost(self) -> Decimal:
        """What they cost, in dollars."""

    @property
    def wasted(self) -> Decimal:
        """How much of that brought no answer that is used."""

    @property
    def estimated(self) -> bool:
        """Whether some of it is an estimate."""


@dataclass(frozen=True, slots=True)
class BackendSpending:
    """What ran at a backend, and what it cost, in dollars; `wasted` is a part of `cost`."""

    backend: str
    rows: int
    cost: Decimal
    wasted: Decimal
    estimated: bool


@dataclass(frozen=True, slots=True)
class SlowestBatch:
    """How long batches at a backend took: the slowest, beside what was forecast of it; seconds."""

    backend: str
    batches: int
    late: int
    slowest: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class DeadlineResult:
    """How a deadline was kept. `spare` are the seconds that were left, below zero where it was missed.

    Of a job that is not over, `met` is None, and `spare` is counted from now.
    """

    at: datetime
    met: bool | None
    spare: float


def routes(lines: Iterable[BookedLine]) -> list[BackendSpending]:
    found: dict[str, BackendSpending] = {}
    for line in lines:
        old = found.get(line.backend, BackendSpending(line.backend, 0, Decimal(0), Decimal(0), False))
        found[line.backend] = BackendSpending(
            line.backend,
            old.rows + line.rows,
            old.cost + line.cost,
            old.wasted + line.wasted,
            old.estimated or line.estimated,
        )
    return sorted(found.values(), key=lambda route: (-route.cost, route.backend))


def foreseen(forecasts: Iterable[Forecast]) -> tuple[Decimal, Decimal] | None:
    """What the plan said that the job would cost: p50 and p95, in dollars."""
    return next(
        ((Decimal(repr(one.p50)), Decimal(repr(one.p95))) for one in forecasts if one.kind == "cost"),
        None,
    )


def turnarounds(forecasts: Iterable[Forecast]) -> list[SlowestBatch]:
    known: dict[str, list[tuple[float, Forecast]]] = {}
    for one in forecasts:
        if one.kind == "turnaround" and one.actual is not None:
            known.setdefault(one.backend, []).append((one.actual, one))
    found = []
    for backend, batches in sorted(known.items()):
        slowest, forecast = max(batches, key=lambda batch: batch[0])
        late = sum(actual > one.p95 for actual, one in batches)
        found.append(SlowestBatch(backend, len(batches), late, slowest, forecast.p50, forecast.p95))
    return found
