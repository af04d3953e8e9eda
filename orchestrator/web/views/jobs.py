"""The pages *Jobs* and *Job* (rows by state, timeline of shards, events, cost)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.durations import duration
from orchestrator.core.errors import OrchError, UsageError
from orchestrator.core.model import FinishedRow, Forecast, Job, JobId
from orchestrator.core.money import money
from orchestrator.core.probability_words import chance_words
from orchestrator.core.shards import Shard
from orchestrator.policy.advice import added_advice
from orchestrator.reports.cost_reader import cost_of
from orchestrator.reports.night import last_runs
from orchestrator.reports.status import JobDetail
from orchestrator.reports.words import kept_words
from orchestrator.store.rows_by_document import RowFilter
from orchestrator.web.figures import NOTHING, CommandJson
from orchestrator.web.outlook_cache import Outlooks
from orchestrator.web.reader import HomeReader
from orchestrator.web.views import PageAddress, View, require_page

EVENTS, SHARDS, FORECASTS = 100, 200, 40
PAGE = 50
MOST_DOCUMENTS = 50
MOST_RUNS = 500
"""Number of newest jobs whose documents are searched."""


class JobPage:
    def __init__(self, outlooks: Outlooks) -> None:
        self._outlooks = outlooks

    def __call__(self, reader: HomeReader, address: PageAddress) -> View:
        job, at = found_job(reader, address), now()
        detail = reader.detail(job.id)
        due = detail.line.due(at)
        forecasts = reader.store.forecasts.of_job(job.id)
        told = {**replace(detail, events=()).to_json(), "outlook": self._outlooks.told(reader, job).get("outlook")}
        shown_events = None if address.query.get("events") == "all" else EVENTS
        return View(
            "job.html",
            job.name,
            "jobs",
            {
                "job": job,
                "told": CommandJson(f"status {job.id}", told),
                "is_open": not detail.line.state.is_final,
                "due": due and kept_words(due),
                "is_late": detail.line.is_late(at),
                "events": list(reversed(detail.events))[:shown_events],
                "more_events": 0 if shown_events is None else max(0, len(detail.events) - shown_events),
                "more_shards": max(0, len(detail.shards) - SHARDS),
                "line": _time_line(detail, at),
                "by_task": _by_task(reader, job),
                "forecasts": [_forecast(one) for one in forecasts if one.kind in _UNITS][:FORECASTS],
                "after": job.options.get("after"),
                "added_advice": added_advice,
            },
        )


def job_list(reader: HomeReader, address: PageAddress) -> View:
    """Show all jobs, newest first, or the jobs and documents whose name or id contains a search text."""
    text, page, at = address.query.get("q", "").strip(), address.page(), now()
    found = reader.store.jobs.newest(PAGE + 1, skip=page * PAGE, text=text)
    require_page(page, found)
    lines = reader.lines_of(reader.store, found[:PAGE])
    return View(
        "jobs.html",
        "Jobs",
        "jobs",
        {
            "jobs": [
                (line.job, CommandJson(f"status {line.job.id}", line.to_json()), line.is_late(at)) for line in lines
            ],
            "text": text,
            "documents": _documents(reader, text) if text and not page else [],
            "most_documents": MOST_DOCUMENTS,
            "page": page,
            "has_more": len(found) > PAGE,
        },
    )


def _documents(reader: HomeReader, text: str) -> list[tuple[Job, FinishedRow]]:
    """Return rows whose document or id contains a text, from the newest run of each job file."""
    runs = last_runs(reader.store.jobs.newest(MOST_RUNS), lambda job: job)
    found: list[tuple[Job, FinishedRow]] = []
    for run in runs:
        rows = reader.store.rows_by_document.page(run.id, RowFilter(text=text), MOST_DOCUMENTS + 1 - len(found))
        found += ((run, one.row) for one in rows)
        if len(found) > MOST_DOCUMENTS:
            break
    return found


def found_job(reader: HomeReader, address: PageAddress) -> Job:
    """Return the job that an address names. Raises UsageError if the job does not exist."""
    job_id = JobId(str(address.path["job"]))
    if (job := reader.store.jobs.find(job_id)) is None:
        raise UsageError(f"there is no job {job_id}", hint="it may have been removed by [retention]")
    return job


def _by_task(reader: HomeReader, job: Job) -> CommandJson | None:
    if (settings := reader.readable) is None:
        return None
    try:
        return CommandJson(
            f"report cost --by task --job {job.id}",
            cost_of(reader.store, settings, "task", None, job.id, reader.running_cost).to_json(),
        )
    except OrchError:
        return None  # the compared model has no price, which the Money page says


_UNITS: Mapping[str, Callable[[float], str]] = {
    "cost": lambda value: money(Decimal(repr(value))),
    "finish": duration,
    "turnaround": duration,
    "in_time": chance_words,
    "output": lambda value: f"{value:,.0f} tokens",
}


def _forecast(one: Forecast) -> dict[str, str]:
    words = _UNITS[one.kind]
    return {
        "kind": one.kind.replace("_", " "),
        "task": one.task,
        "where": ", batch ".join(filter(None, (one.backend, one.shard_id.rpartition(".")[2]))) or "whole job",
        "p50": words(one.p50),
        "p95": words(one.p95) if one.kind != "in_time" else NOTHING,
        "actual": NOTHING if one.actual is None else words(one.actual),
    }


def _time_line(detail: JobDetail, at: datetime) -> dict[str, Any] | None:
    shards = detail.shards[-SHARDS:]
    job = detail.line.job
    starts = [job.created_at, *(shard.created_at for shard in shards)]
    ends = [job.finished_at or at, *filter(None, (_end(shard) for shard in shards)), *filter(None, [job.deadline_at])]
    if not shards:
        return None
    first, last = min(starts), max(ends)
    length = max(1.0, (last - first).total_seconds())

    def place(moment: datetime) -> float:
        return round(1000 * (moment - first).total_seconds() / length, 1)

    return {
        "first": first,
        "last": last,
        "now": place(at) if job.finished_at is None and at <= last else None,
        "deadline": None if job.deadline_at is None else place(job.deadline_at),
        "shards": [{"index": number, "parts": list(_parts(shard, at, place))} for number, shard in enumerate(shards)],
        "skipped": len(detail.shards) - len(shards),
    }


def _end(shard: Shard) -> datetime | None:
    return shard.collected_at or shard.ended_at


def _parts(shard: Shard, at: datetime, place: Any) -> Iterator[dict[str, Any]]:
    """Yield the phases of a shard: waiting, queued until its first row, answering, being collected."""
    over = shard.state.is_final
    moments = [
        ("waits", shard.created_at),
        ("queued", shard.submitted_at),
        ("works", shard.started_at),
        ("collects", shard.ended_at),
        ("", shard.collected_at or (None if not over else shard.ended_at) or (shard.rerouted_at if over else at)),
    ]
    known = [(name, moment) for name, moment in moments if moment is not None]
    for (name, begins), (_, ends) in pairwise(known):
        if ends > begins:
            yield {"name": name, "x": place(begins), "width": max(2.0, place(ends) - place(begins))}
