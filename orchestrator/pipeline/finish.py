"""The end of a job: its rows merged and put where its job file says, what was foreseen held against what came.

Where the job file names known answers, the job's are compared with them first; too few that are right, and the rows
are merged but not delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import exports, gold
from orchestrator.errors import InputError, JobFilesError, StorageError
from orchestrator.home import Home
from orchestrator.jobspec import JobSpec
from orchestrator.model import Job, JobKind, RequestState
from orchestrator.pipeline import foreseen, merge
from orchestrator.requests import custom_id
from orchestrator.results import OutputCheck
from orchestrator.store import Store
from orchestrator.store.checked import Quality

CHUNK = 500
ASKED = (RequestState.SUCCEEDED, RequestState.FAILED)


def finish(store: Store, home: Home, job: Job, now: Callable[[], datetime]) -> str:
    """Merge a job that has an outcome for every row, and end it; where its results are.

    Raises JobFilesError where they cannot be written; then the job goes on to be finished.
    """
    style = "batch" if job.kind is JobKind.BATCH else "jsonl"
    path = home.merged(job.id, style)
    try:
        merge.write(path, merged_lines(store, home, job, style=style))
        found = _compared(store, home, job, now())
        withheld = found is not None and found.withheld is not None
        place = (None if withheld else _delivered(store, home, job)) or str(path)
    except (StorageError, InputError) as error:
        where = f"{error.where}: " if isinstance(error, InputError) and error.where else ""
        raise JobFilesError(f"{where}{error.message}", hint=error.hint) from error
    over = now()
    foreseen.job_over(store, job, over)
    store.jobs.finish(job.id, place, over)
    return place


def _compared(store: Store, home: Home, job: Job, now: datetime) -> Quality | None:
    """How the job's answers compare with the known ones, kept and told; None where its file names none."""
    spec = JobSpec.model_validate(job.spec) if job.kind is JobKind.DOCUMENTS else None
    if spec is None or spec.gold is None:
        return None
    known = gold.read(Path(job.source).parent / spec.gold, [task.id for task in spec.tasks])
    by_id = {custom_id(one.document, one.task): one for one in known}
    score = gold.score((by_id[name], answer) for name, answer in _answers(store, home, job, sorted(by_id)))
    absent, withheld = len(known) - score.rows, None
    if spec.quality_threshold is not None and not score.fields:
        withheld = f"none of {absent:,} known answers could be compared"
    elif spec.quality_threshold is not None and score.hits < spec.quality_threshold * score.fields:
        withheld = f"{score.hits / score.fields:.1%} is below the threshold of {spec.quality_threshold:.1%}"
    found = Quality(score.hits, score.fields, score.rows, absent, withheld)
    store.checked.note_quality(job.id, found, now)
    flag = "" if withheld is None else f"; not delivered: {withheld}"
    store.jobs.note(job.id, "quality", f"{gold.told(score, absent)}{flag}", now)
    return found


def _answers(store: Store, home: Home, job: Job, custom_ids: list[str]) -> Iterator[tuple[str, Any]]:
    """What rows that were asked answered, None where that failed; by custom_id."""
    for start in range(0, len(custom_ids), CHUNK):
        rows = [row for row in store.rows.finished(job.id, custom_ids[start : start + CHUNK]) if row.state in ASKED]
        for row, line in zip(rows, merge.lines(home.results, rows, checks_of(job), style="jsonl"), strict=True):
            yield row.custom_id, msgspec.json.decode(line)["output"] if row.state is RequestState.SUCCEEDED else None


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
