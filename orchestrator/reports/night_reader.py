"""Data for night reports and `orch diff`, from the store and the home's result lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date, datetime, timedelta

import msgspec

from orchestrator.core.clock import night_of
from orchestrator.core.counts import number_of
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.model import FinishedRow, Job, RequestState
from orchestrator.core.quote_marks import has_marks
from orchestrator.pipeline.build.reused_answers import last_run
from orchestrator.pipeline.finish.confidences import checks_of
from orchestrator.pipeline.finish.merge import ResultLines
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.policy.diff import ComparedRow, Difference, Said, difference
from orchestrator.policy.grounding import QuoteStatus, read_quotes
from orchestrator.policy.merged_rows import output_of
from orchestrator.reports import night as nights
from orchestrator.reports.night import JobReport, NightFacts, NightReport
from orchestrator.reports.status import JobLine
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.store import Store
from orchestrator.store.comparisons import Comparisons
from orchestrator.store.job_names import job_named


def compare(store: Store, home: Home, before: Job, after: Job, most: int) -> Difference:
    """Compare two runs. List the first `most` rows of each kind of difference."""
    known = store.comparisons
    return difference(
        before.id,
        after.id,
        known.only_in(after.id, before.id),
        known.only_in(before.id, after.id),
        _moved(known, home, before, after),
        most,
    )


def _moved(
    known: Comparisons, home: Home, before: Job, after: Job
) -> Iterator[tuple[ComparedRow, Said | None, Said | None]]:
    then, now = checks_of(before), checks_of(after)
    with closing(ResultLines(home.results)) as lines:
        for old, new in known.moved(before.id, after.id):
            asked = ComparedRow(new.custom_id, new.document, new.task)
            yield asked, _said(lines, old, then.get(old.task)), _said(lines, new, now.get(new.task))


def _said(lines: ResultLines, row: FinishedRow, check: AnswerCheck | None) -> Said | None:
    """Return a row's outcome, or None if its result line is gone or nested too deeply."""
    if row.state is not RequestState.SUCCEEDED:
        return Said(row.state, row.error_code)
    try:
        output, _ = output_of(row, lines.read(row), check)
        return Said(row.state, msgspec.json.decode(output) if isinstance(output, msgspec.Raw) else output)
    except (StorageError, RecursionError):
        return None


def job_report(
    store: Store, home: Home, line: JobLine, now: datetime, most: int = nights.MOST, *, glance: bool = False
) -> JobReport:
    """Report on a job, using the state in its line. A `glance` leaves out the job's documents and the previous
    run.
    """
    job = line.job
    earlier = None if glance else last_run(store, job)
    since = None if earlier is None else earlier.id
    known = store.comparisons
    quality, reasons = store.quality.of(job.id), store.failures.reasons(job.id)
    shards = store.shards.of_job(job.id)
    # A missing document is not gone if the job is limited, or has not read all documents yet.
    is_whole = job.built_at is not None and not job.is_limited
    removed = known.removed_documents(earlier.id, job.id) if earlier is not None and is_whole else ()
    facts = NightFacts(
        job=job,
        state=line.state,
        counts=line.counts,
        finished_in_batches=line.finished_in_batches,
        failed_in_batches=line.failed_in_batches,
        running=line.running,
        documents=nights.fates(() if glance else known.documents(since, job.id), removed, most),
        before=since,
        answers=None if earlier is None else compare(store, home, earlier, job, most),
        lines=store.ledger.totals("backend", None, job.id),
        forecasts=store.forecasts.of_job(job.id),
        events=store.jobs.events(job.id),
        reasons=[(one.code, one.message, one.new) for one in reasons if one.new],
        known=[(one.code, one.message, one.rows - one.new, one.since) for one in reasons if one.rows > one.new],
        withheld=None if quality is None else quality.withheld,
        held=[shard.held for shard in shards if shard.held and not shard.state.is_final],
        shards=shards,
        quotes=None if glance else _quotes(store, job),
        run=store.schedules.run_of(job.id),
    )
    return nights.job_report(facts, now)


def _quotes(store: Store, job: Job) -> Mapping[QuoteStatus, int] | None:
    try:
        tasks = tasks_of(job)
    except ValueError:  # a job of another version: its report is sent without quotes
        return None
    if not any(task.check or has_marks(task.output_schema) for task in tasks):
        return None
    quotes = store.rows_by_document.quotes(job.id)
    return Counter(quote.status for stored in quotes for quote in read_quotes(stored)) or None


def night_report(
    store: Store, home: Home, night: date | None, lines: Sequence[JobLine], now: datetime
) -> NightReport:
    """Build the report of a night from the lines of its jobs."""
    return NightReport(night, now, [job_report(store, home, line, now) for line in oldest_first(lines)])


def oldest_first(lines: Sequence[JobLine]) -> list[JobLine]:
    """Return lines in report order, oldest first."""
    return sorted(lines, key=lambda line: (line.job.created_at, line.job.id))


def job_of(store: Store, home: str, which: str) -> Job:
    """Return the job with this id or name, or the single job of the night with this date. Raises UsageError."""
    try:
        night = date.fromisoformat(which)
    except ValueError:
        runs = jobs_of_run(store, which)
        return runs[0] if len(runs) == 1 else job_named(store, home, which)
    jobs = jobs_of(store, night)
    jobs = [job for job in jobs if not job.is_limited] or jobs
    if len(jobs) == 1:
        return jobs[0]
    names = ", ".join(job.id for job in jobs) or "none"
    raise UsageError(
        f"the night of {which}, from noon to noon, has {number_of(len(jobs), 'job')}: {names}",
        hint="name one of them by its id",
    )


def jobs_of(store: Store, night: date) -> list[Job]:
    return [job for job in store.jobs.newest() if night_of(job.created_at) == night]


def jobs_of_run(store: Store, name: str) -> list[Job]:
    """Return the jobs of all runs with this name, such as 2026-11-20 14:00. Only schedules with several runs a day
    name their runs.

    Return an empty list if there is no such run. Raises UsageError if the run has no job.
    """
    try:
        day = date.fromisoformat(name[:10])
    except ValueError:
        return []
    runs = [night for night in store.schedules.nights(since=day) if night.slot and night.name == name]
    ids = {night.job_id for night in runs}
    jobs = [job for job in store.jobs.newest() if job.id in ids]
    if runs and not jobs:
        hint = "`orch schedule nights` lists all runs"
        raise UsageError(f"the run of {name} has no job; it is {runs[-1].state}: {runs[-1].reason}", hint=hint)
    return jobs


def night_before(store: Store, day: date) -> date | None:
    """Return the night of the jobs that began before noon on this day, or None if there are no such jobs."""
    night = day - timedelta(days=1)
    return night if any(job.created_at.astimezone().date() == day for job in jobs_of(store, night)) else None
