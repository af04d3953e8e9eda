"""Parsed specs of stored jobs, cached in memory."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.core.model import Job, JobKind
from orchestrator.settings.job_spec import JobSpec
from orchestrator.settings.model_lists import alias_words
from orchestrator.settings.task_spec import Task

KEPT = 256
"""Maximum number of jobs whose parsed specs are kept."""


class _Stored:
    __slots__ = ("data", "id")

    def __init__(self, job: Job) -> None:
        self.id, self.data = job.id, job.spec

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stored) and other.id == self.id and other.data == self.data


@lru_cache(maxsize=KEPT)
def _parsed(stored: _Stored) -> JobSpec:
    return JobSpec.model_validate(stored.data)


def spec_of(job: Job) -> JobSpec | None:
    """Return a job's spec, or None for a ready batch file. Raises ValueError if this version rejects the stored
    spec.
    """
    return None if job.kind is JobKind.BATCH else _parsed(_Stored(job))


def tasks_of(job: Job) -> tuple[Task, ...]:
    """Return the tasks of a job; a ready batch file has none."""
    spec = spec_of(job)
    return () if spec is None else spec.tasks


def refused_rows(job: Job, model: str, task: str) -> str:
    """Describe the rows that a backend refuses, by model, and also by task if the job has several tasks."""
    of_task = f"task {task} and " if len(tasks_of(job)) > 1 else ""
    return f"all rows of {of_task}model {alias_words(model)}"


def expires(job: Job) -> bool:
    """True if the job gives up rows that miss the deadline."""
    spec = spec_of(job)
    return spec is not None and spec.on_late == "expire"
