"""Errors for rows that no backend takes, in the provider's words if it refused them all."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.errors import RefusedError, RequestRefused
from orchestrator.core.model import Job
from orchestrator.policy.planner import Option
from orchestrator.store import Store
from orchestrator.store.refusal_holds import RefusalHold


def why_not(
    store: Store, job: Job, avoid: tuple[str, ...], options: Sequence[Option]
) -> RefusedError | RequestRefused:
    """Return the error for rows that avoid some backends and that no other takes."""
    holds = [hold for hold in store.holds.of(job.id) if hold.backend in avoid]
    if not holds:
        objections = "; ".join(f"{option.backend}: {option.objection}" for option in options)
        gave_up = " and ".join(avoid)
        return RefusedError(f"job {job.id}: no other backend takes rows that {gave_up} gave up: {objections}")
    return request_refused(job, holds)


def request_refused(job: Job, holds: Sequence[RefusalHold]) -> RequestRefused:
    """Return the error for rows that wait because a backend refuses them all."""
    first = holds[0]
    tasks = ", ".join(dict.fromkeys(hold.task for hold in holds if hold.code == first.code))
    return RequestRefused(
        f"job {job.id}: {first.backend} refuses all rows of {tasks or 'the file'} alike: {first.message}",
        hint="all of them wait, and none has failed. Correct the model, the field or the backend, then run the same "
        f"command again, or `orch retry {job.id}`",
        code=first.code,
        job_id=job.id,
        holds=[hold.to_json() for hold in holds],
    )
