"""The end of a job: its rows merged and put where its job file says, what was foreseen held against what came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache

from orchestrator import exports
from orchestrator.errors import InputError, JobFilesError, StorageError
from orchestrator.home import Home
from orchestrator.jobspec import JobSpec
from orchestrator.model import Job, JobKind
from orchestrator.pipeline import merge
from orchestrator.results import OutputCheck
from orchestrator.store import Store


def finish(store: Store, home: Home, job: Job, now: datetime) -> str:
    """Merge a job that has an outcome for every row, and end it; where its results are.

    Raises JobFilesError where they cannot be written; then the job goes on to be finished.
    """
    style = "batch" if job.kind is JobKind.BATCH else "jsonl"
    path = home.merged(job.id, style)
    try:
        merge.write(path, merged_lines(store, home, job, style=style))
        place = _delivered(store, home, job) or str(path)
    except (StorageError, InputError) as error:
        raise JobFilesError(error.message, hint=error.hint) from error
    store.forecasts.settled(job.id, "cost", float(store.ledger.spent(job.id)), now)
    for task, mean in store.rows.mean_outputs(job.id).items():
        store.forecasts.settled(job.id, "output", mean, now, task=task)
    store.jobs.finish(job.id, place, now)
    return place


def _delivered(store: Store, home: Home, job: Job) -> str | None:
    """Where the job file wants its rows, once they are there; None where it says nothing."""
    output = JobSpec.model_validate(job.spec).output if job.kind is JobKind.DOCUMENTS else None
    if output is None:
        return None
    style = "batch" if output.format == "batch" else "jsonl"
    lines = merged_lines(store, home, job, style=style)
    return exports.deliver(output, job, lines, job.created_at.astimezone().date()).place


def merged_lines(store: Store, home: Home, job: Job, *, style: str) -> Iterator[bytes]:
    """The merged rows of a job, in input order; rows without outcome are told as pending."""
    return merge.lines(home.results, store.rows.finished(job.id), checks_of(job), style=style)


def checks_of(job: Job) -> Mapping[str, OutputCheck]:
    """What the answers to each task of a job must be; a ready batch file asks for nothing."""
    return {} if job.kind is JobKind.BATCH else _checks(_SpecKey(job))


class _SpecKey:
    """A job's spec as a cache key: schemas are compiled once a job."""

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.spec = job.spec

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SpecKey) and other.id == self.id


@lru_cache(maxsize=64)
def _checks(key: _SpecKey) -> Mapping[str, OutputCheck]:
    spec = JobSpec.model_validate(key.spec)
    return {task.id: OutputCheck(task.output_schema) for task in spec.tasks}
