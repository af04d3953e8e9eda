"""Succession of edited job files: the new job supersedes the unfinished earlier job.

Once the new job is recorded, the earlier job sends no more rows. A batch in flight continues while the new job waits
for one of its rows. Then the earlier job is cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from orchestrator.core.events import EventKind
from orchestrator.core.model import SUPERSEDED_BY, Job, JobId
from orchestrator.store import Store

_SCOPE = ("limit", "only", "tasks", "at_once")


class Edited(StrEnum):
    SUPERSEDE = "supersede"  # the new job takes over the shared rows; the old job's other rows are cancelled
    BESIDE = "beside"  # both jobs continue; shared rows are asked once


def open_jobs(store: Store, home: str) -> list[JobId]:
    """Return the unfinished jobs of a home, without rehearsals."""
    return [job.id for job in _open(store, home)]


def successor(store: Store, job: Job) -> Job | None:
    """Return the job that superseded this job, or None. The build of the new job may have failed."""
    name = job.options.get(SUPERSEDED_BY)
    return None if name is None else store.jobs.find(name)


def edited(store: Store, job: Job) -> list[Job]:
    """Return the unfinished jobs of the same file and scope with other content, the oldest first."""
    found = [
        other
        for other in _open(store, job.home)
        if other.series == job.series
        and other.id != job.id
        and other.created_at <= job.created_at
        and _scope(other.options) == _scope(job.options)
        and (other.identity != job.identity or other.options.get(SUPERSEDED_BY) is not None)
    ]
    return sorted(found, key=lambda other: other.created_at)


def follow_folder(store: Store, job: Job) -> None:
    """Point unfinished jobs to their file in a moved folder, even if the file was edited there."""
    for other in _open(store, job.home):
        before = Path(other.source)
        is_same_name = other.kind is job.kind and before.name == Path(job.source).name
        if is_same_name and other.series != job.series and not before.parent.exists():
            store.jobs.follow(other, job, other.identity)


def supersede(store: Store, job: Job, now: datetime) -> None:
    """Let a job that is about to be built supersede the earlier jobs of its file, unless it runs beside them."""
    if job.options.get(Edited.BESIDE):
        return
    for other in edited(store, job):
        store.jobs.allow(other.id, **{SUPERSEDED_BY: job.id})
        store.jobs.note(other.id, EventKind.SUPERSEDED, f"its file was edited: job {job.id} supersedes it", now)


def _open(store: Store, home: str) -> list[Job]:
    return [job for job in store.jobs.unfinished(home) if not job.options.get("dry_run")]


def _scope(options: Mapping[str, Any]) -> list[Any]:
    return [options.get(name) or None for name in _SCOPE]
