"""The figures of a job's night: cost by backend, durations of batches, and the deadline's result. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from msgspec import Struct

from orchestrator.core.counts import Counts
from orchestrator.core.model import BookedUsage, Forecast, Job, JobState


class BackendSpending(Struct, frozen=True):
    """Rows at a backend, and their cost in dollars; `wasted` is a part of `cost`.

    `unpriced` rows used something that the cost does not cover.
    """

    backend: str
    rows: int
    cost: Decimal
    wasted: Decimal
    estimated: bool
    unpriced: int = 0


class SlowestBatch(Struct, frozen=True):
    """Durations of batches at a backend: the slowest, beside its forecast, in seconds."""

    backend: str
    batches: int
    late: int
    slowest: float
    p50: float
    p95: float


class DeadlineResult(Struct, frozen=True):
    """How a deadline was met. `spare` is the seconds that were left, below zero if it was missed.

    For an unfinished job `met` is None, and `spare` counts from now.
    """

    at: datetime
    met: bool | None
    spare: float


def deadline_result(job: Job, state: JobState, counts: Counts, now: datetime) -> DeadlineResult | None:
    """Return how a job meets its deadline; None if it has no deadline, or was cancelled or failed as a whole."""
    if job.deadline_at is None or state in (JobState.CANCELLED, JobState.FAILED):
        return None
    if job.finished_at is not None:
        spare = (job.deadline_at - job.finished_at).total_seconds()
        return DeadlineResult(job.deadline_at, spare >= 0 and not counts.expired, spare)
    spare = (job.deadline_at - now).total_seconds()
    return DeadlineResult(job.deadline_at, None if spare >= 0 else False, spare)


def routes(lines: Iterable[BookedUsage]) -> list[BackendSpending]:
    found: dict[str, BackendSpending] = {}
    for line in lines:
        old = found.get(line.backend, BackendSpending(line.backend, 0, Decimal(0), Decimal(0), False))
        found[line.backend] = BackendSpending(
            line.backend,
            old.rows + line.rows,
            old.cost + line.cost,
            old.wasted + line.wasted,
            old.estimated or line.estimated,
            old.unpriced + line.unpriced,
        )
    return sorted(found.values(), key=lambda route: (-route.cost, route.backend))


def foreseen(forecasts: Iterable[Forecast]) -> tuple[Decimal, Decimal] | None:
    """Return the job's planned cost in dollars, p50 and p95; None if no cost was forecast."""
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
