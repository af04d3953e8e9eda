"""The page *Tonight*: problems that need attention, then open jobs and jobs submitted since noon."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from orchestrator.core.clock import night_of, now
from orchestrator.core.model import Job
from orchestrator.core.schedules import Night, Schedule
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.policy import schedule_times
from orchestrator.policy.budgets import BudgetMark
from orchestrator.reports.night import NightReport, counted_runs
from orchestrator.reports.status import JobLine
from orchestrator.web.figures import CommandJson
from orchestrator.web.outlook_cache import Outlooks
from orchestrator.web.reader import HomeReader
from orchestrator.web.report_cache import Glances
from orchestrator.web.views import PageAddress, View

NEWEST = 200
"""Number of newest jobs to search for tonight's jobs."""
MOST_NEEDS = 50


class Tonight:
    """The page, with outlooks and job reports cached briefly."""

    def __init__(self, outlooks: Outlooks) -> None:
        self._outlooks = outlooks
        self._glances = Glances()

    def __call__(self, reader: HomeReader, address: PageAddress) -> View:
        at = now()
        night = night_of(at)
        jobs = _jobs(reader, at)
        lines = reader.lines_of(reader.store, jobs)
        reports = [self._glances.of(reader, line, at) for line in lines]
        schedules = reader.store.schedules.all()
        found = [
            {
                "job": job,
                "is_late": line.is_late(at),
                "line": CommandJson(f"status {job.id}", line.to_json()),
                "outlook": self._outlooks.told(reader, job),
                "report": CommandJson(f"report night {job.id}", NightReport(None, at, [report]).to_json()),
            }
            for job, line, report in zip(jobs, lines, reports, strict=True)
        ]
        needs = NightReport(night, at, reports).needs
        return View(
            "tonight.html",
            "Tonight",
            "tonight",
            {
                "night": night,
                "jobs": found,
                "needs": needs[:MOST_NEEDS],
                "more_needs": max(0, len(needs) - MOST_NEEDS),
                "budgets": _budgets(reader),
                "lost_nights": _lost_nights(reader, schedules),
                "sums": _sums(lines),
                "foreseen": _foreseen(reports),
                "coming": sorted(
                    (due.at, one.name, one.tz)
                    for one in schedules
                    if one.paused_at is None and (due := schedule_times.next_due(one, at)) is not None
                )[:3],
                "is_broken": reader.readable is None,
            },
        )


def _jobs(reader: HomeReader, at: datetime) -> list[Job]:
    """Return open jobs and tonight's jobs. Without any of these jobs, return the jobs of the newest night."""
    newest = reader.store.jobs.newest(NEWEST)
    night = night_of(at)
    tonight = [
        job for job in newest if night_of(job.created_at) == night or (job.finished_at is None and not job.error)
    ]
    if tonight or not newest:
        return tonight
    last = night_of(newest[0].created_at)
    return [job for job in newest if night_of(job.created_at) == last]


def _sums(lines: Sequence[JobLine]) -> dict[str, Any]:
    final = counted_runs(lines, lambda line: line.job)
    return {
        "left_out": len(lines) - len(final),
        "total": sum(line.counts.total for line in final),
        "done": sum(line.done for line in final),
        "failed": sum(line.failed_so_far for line in final),
        "cost": sum((line.cost for line in lines), Decimal(0)),
        "running": sum((line.running for line in lines), Decimal(0)),
        "open": sum(not line.state.is_final for line in lines),
    }


def _foreseen(reports: Sequence[Any]) -> tuple[Decimal, Decimal] | None:
    known = [report.foreseen for report in reports if report.foreseen is not None]
    return (sum((p50 for p50, _ in known), Decimal(0)), sum((p95 for _, p95 in known), Decimal(0))) if known else None


def _lost_nights(reader: HomeReader, schedules: Sequence[Schedule]) -> list[tuple[str, Night]]:
    last = {night.schedule_id: night for night in reader.store.schedules.nights()}
    found = [(one.name, last.get(one.id)) for one in schedules if one.paused_at is None]
    return [(name, night) for name, night in found if night is not None and night.is_lost]


def _budgets(reader: HomeReader) -> list[Any]:
    if (settings := reader.readable) is None or not settings.budgets:
        return []
    standings = SharedBudgets(reader.store, settings, now).standings()
    return [one for one in standings if one.mark is not BudgetMark.OK]
