"""What people ask for by hand, from the command line or from the pages: each is an event that says who asked.

Asked for twice, it is done once: the second time there is nothing left to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from orchestrator.core.errors import UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import SUPERSEDED_BY, CancelCode, Job, RequestState
from orchestrator.core.schedules import Night, NightState, Schedule
from orchestrator.policy import due_nights
from orchestrator.store import Store
from orchestrator.store.quarantine import Held

USER = "the user"
_NOT_AGAIN = (NightState.DUE, NightState.RUNNING, NightState.DONE)


def cancel(store: Store, job: Job, who: str, at: datetime) -> None:
    """Ask for a job's end. Raises UsageError where it has ended."""
    if job.finished_at is not None or job.error is not None:
        raise UsageError(f"job {job.id} has already ended")
    if store.jobs.request_cancel(job.id, CancelCode.USER, f"cancelled by {who}", at):
        store.jobs.note(job.id, EventKind.CANCEL, f"asked for by {who}", at)


def retry(store: Store, job: Job, states: Sequence[RequestState], task: str | None, who: str, at: datetime) -> int:
    """Make rows pending again, and those that a backend refused go there again; how many."""
    number = store.rows.retry(job.id, states, task=task) + send_held(store, job, task)
    if number:
        store.jobs.allow(job.id, **{SUPERSEDED_BY: None})
        of_task = "" if task is None else f" to the task {task}"
        by = "" if who == USER else f", asked for by {who}"
        store.jobs.note(job.id, EventKind.RETRY, f"{number:,} rows{of_task} will be retried{by}", at)
    return number


def send_held(store: Store, job: Job, task: str | None = None) -> int:
    """Let rows that a backend refused go there again; how many wait for that."""
    holds = [hold for hold in store.holds.of(job.id) if task is None or hold.task == task]
    number = sum(map(store.holds.waiting, holds))
    store.holds.lift(holds)
    return number


def release(store: Store, held: Sequence[Held], who: str, at: datetime) -> int:
    """Let the next run of their job file ask rows again; how many that are."""
    number = store.quarantine.release(held, at)
    for of, rows in Counter(one.job for one in held).items():
        store.jobs.note(of, EventKind.RELEASED, f"{rows:,} rows from quarantine, by {who}", at)
    return number


def revise(
    store: Store, job: Job, deadline_at: datetime | None, budget: Decimal | None, who: str, at: datetime
) -> None:
    """Give an open job another deadline or budget; None leaves one as it is. Raises UsageError where it is over."""
    if job.finished_at is not None or job.error is not None:
        raise UsageError(f"job {job.id} has already ended")
    terms: dict[str, datetime | Decimal] = {}
    if deadline_at is not None and deadline_at != job.deadline_at:
        terms["deadline_at"] = deadline_at
    if budget is not None and budget != job.budget:
        terms["budget"] = budget
    if terms:
        store.jobs.revise(job.id, **terms)
        told = ", ".join(f"{name}: {value}" for name, value in terms.items())
        store.jobs.note(job.id, EventKind.REVISED, f"{told}, by {who}", at)


def make_due(store: Store, one: Schedule, who: str, at: datetime) -> Night:
    """Make the night that the moment belongs to due, for somebody. Raises UsageError where it runs, or has."""
    last = due_nights.last_due(one, at) if one.after is None else _last_followed(store, one)
    if last is None:
        raise UsageError(f"{one.name} has not had a night yet", hint=f"`orch run {one.file}` runs the file now")
    reason = f"asked for by {who}"
    night = Night(one.id, last.night, at, NightState.DUE, reason, at, slot=last.slot, asked_by=who)
    if not store.schedules.claim(night):
        there = store.schedules.night_of(one.id, last.night, last.slot)
        if there is None or there.state in _NOT_AGAIN:
            told = "is gone" if there is None else f"is {night_words(there)}"
            raise UsageError(
                f"the night of {last.name} {told}", hint=f"`orch run {one.file}` analyses what has changed since"
            )
        store.schedules.again(there, at, reason, who)
    return night


def night_words(night: Night) -> str:
    """A night's state, its job and why."""
    job = "" if night.job_id is None else f", job {night.job_id}"
    return f"{night.state}{job}: {night.reason}"


def _last_followed(store: Store, one: Schedule) -> Night | None:
    """The last night of the schedule that this one follows."""
    found = store.schedules.nights(one.after)
    return found[-1] if found else None
