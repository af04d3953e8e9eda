"""Prerequisites of a job: its predecessor has succeeded, and its output can be written."""

from __future__ import annotations

from datetime import datetime

from orchestrator.core.errors import OutputError
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobFault
from orchestrator.pipeline import predecessors
from orchestrator.pipeline.finish.delivery import Gate
from orchestrator.store import Store


def waits(store: Store, job: Job, now: datetime) -> bool | None:
    """Check the predecessor of an unbuilt job. Return None if the job may be built.

    Otherwise return True if the job has failed, because its predecessor did not succeed, and False if it waits.
    """
    before = job.options.get(predecessors.AFTER)
    if before is None:
        return None
    stands, why = predecessors.standing(store, store.jobs.find(before))
    if stands is predecessors.Predecessor.OPEN:
        return False
    if stands is predecessors.Predecessor.WELL:
        return None
    error = f"job {before}, which it comes after, did not succeed: {why}"
    store.jobs.fail(job.id, error, JobFault.AFTER)
    store.jobs.note(job.id, EventKind.FAILED, error, now)
    return True


def may_ask(store: Store, gate: Gate, job: Job, now: datetime) -> bool:
    """True if rows of a job may be asked. The output is tested before the first row is paid for.

    Raises OutputError while a fault may pass. Any other fault fails the job.
    """
    if store.shards.of_job(job.id):
        return True
    try:
        held = gate.hold(job)
    except OutputError as error:
        store.jobs.fail(job.id, str(error), error.code)
        store.jobs.note(job.id, EventKind.FAILED, f"{error.code}: {error.message}", now)
        return False
    if held is not None:
        raise held
    return True
