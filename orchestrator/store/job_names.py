"""Job lookup by what a user types: an id, the beginning of an id, or the name of a job or schedule."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job, JobId
from orchestrator.store import Store


def job_named(store: Store, home: str, name: str) -> Job:
    """Return the job with this id, else the newest run with this name, else the job whose id begins with it.

    A name finds a limited run only if no unlimited run exists. If several homes have the name, `home` wins. Raises
    UsageError if no job or several jobs match.
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
    schedule = store.schedules.find(name)
    nights = [] if schedule is None else store.schedules.nights(schedule.id)
    made = (store.jobs.find(night.job_id) for night in reversed(nights) if night.job_id is not None)
    found = next((job for job in made if job is not None), None)
    return [] if found is None else [found]


def _newest_of_series(runs: Sequence[Job]) -> list[Job]:
    found: dict[str, Job] = {}
    for job in sorted(runs, key=lambda run: (not run.is_limited, run.created_at), reverse=True):
        found.setdefault(job.series, job)
    return sorted(found.values(), key=lambda job: job.created_at, reverse=True)
