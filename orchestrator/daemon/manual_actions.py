"""Actions that people request on the command line or the pages. Each is recorded as an event with the person's name.

A repeated request has no further effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from orchestrator.core.counts import number_of
from orchestrator.core.errors import RefusedError, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import SUPERSEDED_BY, CancelCode, Job, RequestState
from orchestrator.core.schedules import Night, NightState, Schedule
from orchestrator.pipeline.build.awaited_rows import takes_answers
from orchestrator.pipeline.build.changed_terms import NewTerms
from orchestrator.pipeline.succession import open_jobs, successor
from orchestrator.policy import schedule_times
from orchestrator.store import Store
from orchestrator.store.quarantine import Held

USER = "the user"
RETRIED = (RequestState.FAILED, RequestState.CANCELLED, RequestState.EXPIRED)
"""States of rows that a retry sends again."""
_NOT_AGAIN = (NightState.DUE, NightState.RUNNING, NightState.DONE)


def cancel(store: Store, job: Job, who: str, at: datetime) -> None:
    """Request the cancellation of a job. Raises UsageError if it has ended."""
    if job.finished_at is not None or job.error is not None:
        raise UsageError(f"job {job.id} has already ended")
    if store.jobs.request_cancel(job.id, CancelCode.USER, f"cancelled by {who}", at):
        store.jobs.note(job.id, EventKind.CANCEL, f"asked for by {who}", at)


def retry(store: Store, job: Job, states: Sequence[RequestState], task: str | None, who: str, at: datetime) -> int:
    """Make rows pending again, and send refused rows to their backend again. Return the number of these rows.

    If a later run or another job has answered a row, the row takes that answer. If the row is in flight there, it
    waits for the answer. Raises RefusedError for a superseded job: the superseding job sends the rows that both have.
    """
    _require_not_superseded(store, job)
    others = open_jobs(store, job.home)
    runs = [run.id for run in store.jobs.of_series(job.series)]
    if not Path(job.source).exists():  # the job's file was moved, and may have a newer run at its new path
        runs += [of.id for of in map(store.jobs.get, others) if (of.name, of.kind) == (job.name, job.kind)]
    taken = store.awaited.taken(job, runs, others, states, task=task) if takes_answers(job) else {}
    number = store.rows.retry(job.id, states, task=task, awaiting=taken) + send_held(store, job, task)
    if number:
        store.jobs.allow(job.id, **{SUPERSEDED_BY: None})
        of_task = "" if task is None else f" to the task {task}"
        by = "" if who == USER else f", asked for by {who}"
        store.jobs.note(job.id, EventKind.RETRY, f"{number_of(number, 'row')}{of_task} will be retried{by}", at)
    return number


def _require_not_superseded(store: Store, job: Job) -> None:
    last = job
    while last.cancel_code == CancelCode.SUPERSEDED and (following := successor(store, last)) is not None:
        last = following
    is_given_up = last.error is not None or (last.finished_at is not None and last.cancel_requested_at is not None)
    if last.id != job.id and not is_given_up:
        raise RefusedError(
            f"job {job.id} was superseded by job {last.id}, which asks for the rows that both have",
            hint=f"`orch retry {last.id}` retries its failed rows; `orch run {last.source}` asks for the rest",
        )


def send_held(store: Store, job: Job, task: str | None = None) -> int:
    """Send refused rows to their backend again. Return the number of these rows."""
    holds = [hold for hold in store.holds.of(job.id) if task is None or hold.task == task]
    number = sum(map(store.holds.waiting, holds))
    store.holds.lift(holds)
    return number


def release(store: Store, held: Sequence[Held], who: str, at: datetime) -> int:
    """Release rows from quarantine: the next run of each job file may send them again. Return their number."""
    number = store.quarantine.release(held, at)
    for of, rows in Counter(one.job for one in held).items():
        store.jobs.note(of, EventKind.RELEASED, f"{number_of(rows, 'row')} from quarantine, by {who}", at)
    return number


def revise(
    store: Store, job: Job, deadline_at: datetime | None, budget: Decimal | None, who: str, at: datetime
) -> None:
    """Change the deadline or budget of an open job. None keeps the current value. Raises UsageError for an ended
    job.
    """
    require_open(job)
    NewTerms(job, deadline_at, budget).record(store, at, by=f", by {who}")


def require_open(job: Job) -> None:
    """Raise UsageError if a job has ended, because its terms no longer matter."""
    if job.finished_at is not None or job.error is not None:
        raise UsageError(f"job {job.id} has already ended")


def make_due(store: Store, one: Schedule, who: str, at: datetime) -> Night:
    """Start the last due night of a schedule by hand, at `at`.

    Raises UsageError if the schedule has had no night, or if this night is already due, running or done.
    """
    last = schedule_times.last_due(one, at) if one.after is None else _last_followed(store, one)
    if last is None:
        raise UsageError(f"{one.name} has not had a night yet", hint=f"`orch run {one.file}` runs the file now")
    reason = f"asked for by {who}"
    night = Night(one.id, last.night, at, NightState.DUE, reason, at, slot=last.slot, asked_by=who)
    if not store.schedules.claim(night):
        there = store.schedules.night_of(one.id, last.night, last.slot)
        if there is None or there.state in _NOT_AGAIN:
            told = f"{last.name} is gone" if there is None else f"{there.name} is {night_words(there)}"
            raise UsageError(f"the night of {told}", hint=f"`orch run {one.file}` analyses what has changed since")
        store.schedules.again(there, at, reason, who)
    return night


def night_words(night: Night) -> str:
    job = "" if night.job_id is None else f", job {night.job_id}"
    return f"{night.state}{job}: {night.reason}"


def _last_followed(store: Store, one: Schedule) -> Night | None:
    found = store.schedules.nights(one.after)
    return found[-1] if found else None
