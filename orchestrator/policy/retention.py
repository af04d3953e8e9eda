"""Retention: which data of finished jobs to remove, by `[retention]`, and why other data stays. Pure.

A job's files are removed first, its rows and its ledger lines later: reports reach further back than results. Data
that a kept job's rows refer to stays, however old it is. For example, a carried answer is stored in the job that
first received it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration
from orchestrator.core.model import JobId
from orchestrator.settings.config import Retention

Carriers = Mapping[JobId, Mapping[JobId, int]]
"""For each job that owns answers, the jobs that use some of the answers, each with its number of rows."""


class JobFate(StrEnum):
    """Retention verdict on a job."""

    KEPT = "kept"  # all of it stays
    FILES = "files"  # its request and result files go; its rows stay for reports
    JOB = "job"  # its files, rows, events and ledger are removed


class Leaving(Struct, frozen=True):
    """A job and its data in the home.

    `ended_at` is None while the job is unfinished. `is_run` is True if the job ran to its end (not cancelled, not
    failed). `cleared` is True if its files were removed earlier. `bytes` is the size of its existing files.
    """

    job_id: JobId
    series: str
    created_at: datetime
    ended_at: datetime | None
    is_run: bool
    cleared: bool
    bytes: int


class RetentionVerdict(Struct, frozen=True):
    """The fate of a job, the reason, and the bytes of files that are freed."""

    job_id: JobId
    fate: JobFate
    reason: str
    bytes: int = 0


def counts_since(now: datetime) -> datetime:
    """Return the earliest time whose bookings may count in a current budget period.

    This is the start of the month by local clocks, or two days ago if that is earlier.
    """
    first = now.astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    # On the first of a month, the current night began in the month before.
    return min(first.astimezone(UTC), now - timedelta(days=2))


def plan(
    jobs: Iterable[Leaving], carriers: Carriers, booked: Collection[JobId], terms: Retention, now: datetime,
    used_bytes: int,
) -> list[RetentionVerdict]:  # fmt: skip
    """Return the verdict on each job, newest first.

    `booked` are jobs with a cost that counts in a current budget period. `used_bytes` is the present size of the
    home.
    """
    ordered = sorted(jobs, key=lambda job: (job.created_at, job.job_id), reverse=True)
    # Until its own turn, a job counts as keeping its files.
    keeping = {job.job_id for job in ordered if not job.cleared}
    shielded = _kept_jobs(ordered, terms.keep_last)
    verdicts: dict[JobId, RetentionVerdict] = {}
    for job in ordered:
        stays = shielded.get(job.job_id) or _carrier_words(job, carriers, keeping)
        found = RetentionVerdict(job.job_id, JobFate.KEPT, stays) if stays else _by_age(job, booked, terms, now)
        verdicts[job.job_id] = found
        if found.fate is not JobFate.KEPT:
            keeping.discard(job.job_id)
    used = used_bytes - sum(verdict.bytes for verdict in verdicts.values())
    if terms.max_bytes is not None and used > terms.max_bytes:
        _make_room(ordered, verdicts, carriers, keeping, shielded, terms.max_bytes, used)
    return list(verdicts.values())


def _kept_jobs(newest_first: Sequence[Leaving], keep_last: int) -> dict[JobId, str]:
    found: dict[JobId, str] = {}
    runs: dict[str, int] = {}
    for job in newest_first:
        if job.ended_at is None:
            found[job.job_id] = "it is not finished"
        elif job.is_run and (number := runs.get(job.series, 0)) < keep_last:
            runs[job.series] = number + 1
            which = "the newest" if number == 0 else f"one of the newest {keep_last}"
            found[job.job_id] = f"{which} of its job file (keep_last = {keep_last})"
    return found


def _carrier_words(job: Leaving, carriers: Carriers, keeping: Collection[JobId]) -> str | None:
    """Describe the kept jobs whose rows use answers stored in this job. Returns None if there is no such job."""
    held = {other: rows for other, rows in carriers.get(job.job_id, {}).items() if other in keeping}
    if not held:
        return None
    first, *more = sorted(held, key=lambda other: (-held[other], other))
    others = f" and {number_of(len(more), 'other job')}" if more else ""
    return f"its answers are used by {first} ({number_of(held[first], 'row')}){others}"


def _by_age(job: Leaving, booked: Collection[JobId], terms: Retention, now: datetime) -> RetentionVerdict:
    assert job.ended_at is not None
    age = (now - job.ended_at).total_seconds()
    ended = f"ended {duration(age)} ago"
    if terms.jobs is not None and age >= terms.jobs and job.job_id not in booked:
        return RetentionVerdict(
            job.job_id, JobFate.JOB, f"{ended}, jobs are kept for {duration(terms.jobs)}", job.bytes
        )
    span = terms.results if terms.results is not None else terms.jobs
    if not job.cleared and span is not None and age >= span:
        return RetentionVerdict(
            job.job_id, JobFate.FILES, f"{ended}, results are kept for {duration(span)}", job.bytes
        )
    if terms.jobs is not None and age >= terms.jobs:
        return RetentionVerdict(job.job_id, JobFate.KEPT, "its cost counts in this month's budgets")
    if job.cleared:
        return RetentionVerdict(job.job_id, JobFate.KEPT, "its files are gone; its rows are kept for reports")
    return RetentionVerdict(
        job.job_id, JobFate.KEPT, f"{ended}" + (f", results are kept for {duration(span)}" if span else "")
    )


def _make_room(
    newest_first: Sequence[Leaving], verdicts: dict[JobId, RetentionVerdict], carriers: Carriers, keeping: set[JobId],
    shielded: Mapping[JobId, str], most: int, used: int,
) -> None:  # fmt: skip
    """Mark files for early removal, oldest first, until the home takes at most `most` bytes."""
    left = [job for job in reversed(newest_first) if job.job_id in keeping and job.job_id not in shielded]
    while used > most:
        # Removing a job may free an older job whose answers it carried, so each search begins with the oldest job.
        job = next((job for job in left if job.bytes and _carrier_words(job, carriers, keeping) is None), None)
        if job is None:
            return
        left.remove(job)
        keeping.discard(job.job_id)
        used -= job.bytes
        reason = f"the home takes {words(used + job.bytes)}; the limit is {words(most)}; this job is the oldest"
        verdicts[job.job_id] = replace(verdicts[job.job_id], fate=JobFate.FILES, reason=reason, bytes=job.bytes)


def words(size: int) -> str:
    """Format a size: `812 B`, `3.4 MB`."""
    number, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            break
        number /= 1000
    return f"{size} B" if unit == "B" else f"{number:.1f} {unit}"
