"""Which job a user means: by its id, the beginning of that, or the name of a job or schedule for its newest night."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job, JobId
from orchestrator.store import Store


def job_named(store: Store, home: str, name: str) -> Job:
    """The job with this id; else the newest run of the job or schedule of this name; else the one whose id begins so.

    Runs that were limited to a part of their documents or tasks are found by their id, or where there are no others.
    Of names that several homes have, that of `home` is meant. Raises UsageError where there is none, or several.
    """
    if (exact := store.jobs.find(JobId(name))) is not None:
        return exact
    runs = [*store.jobs.of_name(name), *_of_schedule(store, name)]
    of_home = [job for job in runs if job.home == home] or runs
    newest = _newest_of_series(of_home)
    if len(newest) > 1:
        told = ", ".join(f"{job.id} ({job.source})" for job in newest[:5])
        raise UsageError(f"{name!r} is the name of {len(newest)} job files: {told}", hint="give the id of a job")
    return newest[0] if newest else store.jobs.get(name)


def _of_schedule(store: Store, name: str) -> list[Job]:
    """The newest job that a schedule's nights made."""
    schedule = store.schedules.find(name)
    nights = [] if schedule is None else store.schedules.nights(schedule.id)
    made = (store.jobs.find(night.job_id) for night in reversed(nights) if night.job_id is not None)
    found = next((job for job in made if job is not None), None)
    return [] if found is None else [found]


def _newest_of_series(runs: Sequence[Job]) -> list[Job]:
    """The newest run of each job file, a whole one where there is one."""
    found: dict[str, Job] = {}
    for job in sorted(runs, key=lambda run: (not run.is_limited, run.created_at), reverse=True):
        found.setdefault(job.series, job)
    return sorted(found.values(), key=lambda job: job.created_at, reverse=True)
