"""Figures of a job's night: cost by backend, durations of batches, and whether the deadline was met. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from msgspec import Struct

from orchestrator.core.counts import Counts
from orchestrator.core.model import BookedUsage, Forecast, Job, JobState


class BackendSpending(Struct, frozen=True):
    """Rows at a backend, and their cost in dollars. `cost` includes `wasted`.

    `unpriced` rows have usage that the cost does not cover.
    """

    backend: str
    rows: int
    cost: Decimal
    wasted: Decimal
    estimated: bool
    unpriced: int = 0


class SlowestBatch(Struct, frozen=True):
    """The slowest batch at a backend and its forecast, in seconds. `late` counts the `batches` that exceeded their
    p95.
    """

    backend: str
    batches: int
    late: int
    slowest: float
    p50: float
    p95: float


class DeadlineResult(Struct, frozen=True):
    """Result of a deadline. `spare` is the seconds left at the end, negative if the deadline was missed.

    For an unfinished job, `spare` counts from now. `met` is then None, or False once the deadline has passed.
    """

    at: datetime
    met: bool | None
    spare: float


def deadline_result(job: Job, state: JobState, counts: Counts, now: datetime) -> DeadlineResult | None:
    """Return the result of a job's deadline. Returns None without a deadline, or if the job was cancelled or
    failed.
    """
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
    """Return the p50 and p95 of the job's planned cost, in dollars, or None if no cost was forecast."""
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
