"""The pages *Nights*, *Schedules*, *Money*, *Backends* and *Quarantine*."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any

from orchestrator.core.clock import night_of, now
from orchestrator.core.durations import seconds_of
from orchestrator.core.errors import InputError, UsageError
from orchestrator.core.model import Job, JobId, JobState
from orchestrator.daemon.health import fetch_health
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.policy.forecast_trust import calibrate
from orchestrator.policy.row_errors import is_passing
from orchestrator.reports.backends import backends_report
from orchestrator.reports.cost_reader import GROUPS, cost_of
from orchestrator.reports.listings import held_json, night_json, schedule_json, standing_json
from orchestrator.reports.night import NightReport, counted_runs
from orchestrator.reports.night_formats import headline, sections
from orchestrator.reports.night_reader import compare, job_report, jobs_of, oldest_first
from orchestrator.reports.pages import cost_page, cost_plot
from orchestrator.reports.status import JobLine
from orchestrator.reports.words import cost_headline
from orchestrator.settings.config import Config
from orchestrator.web.figures import CommandJson, moment_text
from orchestrator.web.figures import day as day_text
from orchestrator.web.reader import HomeReader
from orchestrator.web.views import PageAddress, View, require_page

WEEKS = 6
NEWEST = 500
"""Number of newest jobs that the calendar covers."""
COMPARED = 60
"""Maximum number of ended jobs offered for a comparison, newest first."""
NIGHTS = 30
DIFFERENT = 100
SPANS = ("7d", "30d", "90d", "all")
HELD = 100
_LARGE = "The documents of so large a job are not compared here: `orch report night {}` does."
MOST_ROWS = 100_000
"""Maximum rows of a job for which a page compares documents with the run before. This takes two to five seconds."""


def _settings(reader: HomeReader) -> Config:
    if (found := reader.readable) is None:
        raise InputError("orch.toml cannot be read just now", hint="`orch doctor` shows what is wrong with it")
    return found


def nights(reader: HomeReader, address: PageAddress) -> View:
    """Show a calendar of nights, and a form to compare two jobs."""
    at = now()
    tonight = night_of(at)
    first = tonight - timedelta(days=tonight.weekday() + 7 * (WEEKS - 1))
    jobs = reader.store.jobs.newest(NEWEST)
    shown = [job for place, job in enumerate(jobs) if place < COMPARED or night_of(job.created_at) >= first]
    lines = reader.lines_of(reader.store, shown)
    of_night: dict[date, list[JobLine]] = defaultdict(list)
    for line in lines:
        of_night[night_of(line.job.created_at)].append(line)
    lost = {night_of(one.due_at) for one in reader.store.schedules.nights(since=first) if one.is_lost}
    over = [line.job for line in lines if line.state.is_final][:COMPARED]
    return View(
        "nights.html",
        "Nights",
        "nights",
        {
            "weeks": [
                [
                    _cell(day, of_night.get(day, ()), at, is_lost=day in lost)
                    for day in (first + timedelta(days=7 * week + n) for n in range(7))
                ]
                for week in range(WEEKS)
            ],
            "jobs": over,
            "compared": _last_two_runs(over),
        },
    )


def _last_two_runs(over: Sequence[Job]) -> list[tuple[str, JobId]]:
    """Return a pair of jobs to compare: the newest two runs of a series, or else the two newest jobs.

    The older job comes first, as `before`. The list is empty if there are fewer than two jobs.
    """
    for number, job in enumerate(over):
        earlier = next((one for one in over[number + 1 :] if one.series == job.series), None)
        if earlier is not None:
            return [("before", earlier.id), ("after", job.id)]
    return [("before", over[1].id), ("after", over[0].id)] if len(over) > 1 else []


def schedules(reader: HomeReader, address: PageAddress) -> View:
    at = now()
    found = reader.store.schedules.all()
    called = {one.id: one.name for one in found}
    history = [night for night in reader.store.schedules.nights(None) if night.schedule_id in called]
    told = [{"schedule": called[night.schedule_id], **night_json(night)} for night in history]
    return View(
        "schedules.html",
        "Schedules",
        "schedules",
        {
            "schedules": CommandJson("schedule list", [schedule_json(reader.store, one, at) for one in found]),
            "nights": list(reversed(list(CommandJson("schedule nights --all", told))))[:NIGHTS],
        },
    )


def _cell(day: date, lines: Sequence[JobLine], at: datetime, *, is_lost: bool) -> dict[str, Any]:
    tonight = night_of(at)
    final = counted_runs(lines, lambda line: line.job)
    rows, answered = sum(line.counts.total for line in final), sum(line.answered_so_far for line in final)
    why = [
        *(["deadline missed"] if any(line.counts.expired or line.is_late(at) for line in final) else []),
        *(["job failed"] if any(line.job.error is not None for line in final) else []),
        *(["run missed"] if is_lost else []),
    ]
    going = any(not line.state.is_final for line in final)
    is_stopped = any(line.state is JobState.STOPPED for line in final)
    partial = "warn" if is_stopped or answered < rows else "good"
    state = "bad" if why else "" if not lines else "going" if going and not is_stopped else partial
    return {
        "day": day,
        "state": state,
        "why": why,
        "is_stopped": is_stopped,
        "is_lost": is_lost,
        "is_tonight": day == tonight,
        "is_ahead": day > tonight,
        "jobs": len(lines),
        "rows": rows,
        "answered": answered,
        "failed": sum(line.failed_so_far for line in final),
        "known": sum(line.failing.known + line.failing.acknowledged for line in final),
        "cost": sum(line.cost for line in lines),
    }


def night(reader: HomeReader, address: PageAddress) -> View:
    try:
        day = date.fromisoformat(str(address.path["night"]))
    except ValueError:
        raise UsageError("a night is named by its date, such as 2026-11-21") from None
    jobs = jobs_of(reader.store, day)
    if not jobs:
        raise UsageError(f"no job was submitted in the night of {day_text(day)} (noon to noon)")
    at, lines = now(), oldest_first(reader.lines_of(reader.store, jobs))
    large = {line.job.id for line in lines if line.counts.total > MOST_ROWS}
    parts = [job_report(reader.store, reader.home, line, at, glance=line.job.id in large) for line in lines]
    report = NightReport(day, at, parts)
    return View(
        "night.html",
        f"Night of {day_text(day)}",
        "nights",
        {
            "day": day,
            "told": CommandJson(f"report night {day}", report.to_json()),
            "headline": headline(report),
            "needs": report.needs,
            "jobs": sections(report, dict.fromkeys(large, _LARGE.format(day)), moment_text, dated=False),
            "links": True,
        },
        live=False,
    )


def diff(reader: HomeReader, address: PageAddress) -> View:
    """Show the difference between two jobs, by field."""
    names = [address.query.get(name, "") for name in ("before", "after")]
    jobs = [reader.store.jobs.find(JobId(name)) for name in names]
    if jobs[0] is None or jobs[1] is None:
        raise UsageError("name two jobs", hint="choose them on the Nights page")
    found = compare(reader.store, reader.home, jobs[0], jobs[1], DIFFERENT)
    told = CommandJson(f"diff {names[0]} {names[1]} --limit {DIFFERENT}", found.to_json())
    return View(
        "diff.html", "What changed", "nights", {"before": jobs[0], "after": jobs[1], "told": told}, live=False
    )


def money(reader: HomeReader, address: PageAddress) -> View:
    """Show the amounts paid, by a chosen group, beside list prices, forecasts and budgets."""
    settings = _settings(reader)
    by, span, since = _span(address)
    option = "" if since is None else f" --since {span}"
    report = cost_of(reader.store, settings, by, since, None, reader.running_cost)
    told = CommandJson(f"report cost --by {by}{option}", report.to_json())
    standings = SharedBudgets(reader.store, settings, now).standings()
    return View(
        "money.html",
        "Money",
        "money",
        {
            "by": by,
            "groups": GROUPS,
            "span": span,
            "spans": SPANS,
            "told": told,
            "headline": cost_headline(report) if report.lines or report.running else "",
            "order": sorted(range(len(report.lines)), key=lambda n: report.lines[n].group, reverse=True)
            if by == "day"
            else sorted(range(len(report.lines)), key=lambda n: report.lines[n].cost, reverse=True),
            "plot": cost_plot(report),
            "budgets": CommandJson("budget", [standing_json(one) for one in standings]),
            "forecasts": CommandJson(
                f"report forecast{option}", [one.to_json() for one in calibrate(reader.store.forecasts.since(since))]
            ),
        },
    )


def cost_file(reader: HomeReader, address: PageAddress) -> str:
    """Return the Money page's cost report as an HTML file for download."""
    by, span, since = _span(address)
    report = cost_of(reader.store, _settings(reader), by, since, None, reader.running_cost)
    return cost_page(report, now(), None if since is None else span)


def _span(address: PageAddress) -> tuple[str, str, datetime | None]:
    by, span = address.choice("by", GROUPS, "day"), address.choice("since", SPANS, "30d")
    seconds = seconds_of(span)
    return by, span, None if seconds is None else now() - timedelta(seconds=seconds)


def backends(reader: HomeReader, address: PageAddress) -> View:
    found = backends_report(reader.store, _settings(reader), lambda name: fetch_health(reader.home, name), now())
    return View("backends.html", "Backends", "backends", {"backends": CommandJson("report backends", found)})


def quarantine(reader: HomeReader, address: PageAddress) -> View:
    page = address.page()
    found = reader.store.quarantine.held(reader.home.identity(), is_passing)
    shown = list(islice(found, (page + 1) * HELD + 1))
    require_page(page, shown[page * HELD :])
    told = CommandJson("quarantine list", [held_json(one) for one in shown])
    return View(
        "quarantine.html",
        "Quarantine",
        "quarantine",
        {
            "held": [told[number] for number in range(page * HELD, min(len(shown), (page + 1) * HELD))],
            "page": page,
            "has_more": len(shown) > (page + 1) * HELD,
        },
        live=False,
    )
