"""Predecessors: jobs that other jobs wait for, and schedules whose nights other schedules follow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

from msgspec.structs import replace

from orchestrator.core.errors import InputError, RefusedError, UsageError
from orchestrator.core.model import Job, JobFault
from orchestrator.core.schedules import Night, NightState, Schedule
from orchestrator.policy.schedule_times import LOOK_BACK
from orchestrator.store import Store

AFTER = "after"
"""Job option with the id of the predecessor."""


class Predecessor(StrEnum):
    OPEN = "open"  # not ended yet
    WELL = "well"  # completed, and its output delivered if it has one; rows may have failed
    NOT_WELL = "not well"


def standing(store: Store, job: Job | None) -> tuple[Predecessor, str]:
    """Return a job's state as a predecessor, with the reason."""
    if job is None:
        return Predecessor.NOT_WELL, "it was removed"
    if job.error is not None:
        return Predecessor.NOT_WELL, f"{job.error_code}: {job.error}".partition("\n")[0]
    if job.finished_at is None:
        return Predecessor.OPEN, "it has not ended yet"
    if job.cancel_requested_at is not None:
        return Predecessor.NOT_WELL, f"it was cancelled: {job.cancel_reason}"
    quality = store.quality.of(job.id)
    if quality is not None and quality.withheld is not None:
        return Predecessor.NOT_WELL, f"its output was not delivered: {quality.withheld}"
    return Predecessor.WELL, "it succeeded"


def named(store: Store, home: str, text: str) -> Job:
    """Return the newest job with this id or name. Raises UsageError."""
    for job in store.jobs.newest():
        if job.home == home and text in (job.id, job.name):
            return job
    raise UsageError(
        f"there is no job {text!r} to come after", hint="`orch status` lists the jobs; name one by its id or its name"
    )


def require(store: Store, home: str, text: str) -> tuple[Job, Predecessor]:
    """Return a predecessor with its state. Raises UsageError without such a job, RefusedError if the job failed."""
    job = named(store, home, text)
    found, why = standing(store, job)
    if found is Predecessor.NOT_WELL:
        raise RefusedError(f"job {job.id}, which this one comes after, did not succeed: {why}")
    return job, found


def record(store: Store, schedule: Schedule, now: datetime) -> None:
    """Record the nights that follow ended nights of a schedule's predecessor. Raises InputError if it was removed."""
    if store.schedules.get(str(schedule.after)) is None:
        raise InputError("the schedule that it comes after was removed")
    for night in _following(store, schedule, now):
        if night.id:
            store.schedules.again(night, night.due_at, night.reason)
        else:
            store.schedules.claim(night)


def _following(store: Store, schedule: Schedule, now: datetime) -> Iterator[Night]:
    since = max(schedule.since, now - LOOK_BACK)
    ended = store.schedules.over(str(schedule.after), since)
    if not ended:
        return
    oldest = min(night.night for night in ended)
    known = {(night.night, night.slot): night for night in store.schedules.nights(schedule.id, oldest)}
    for night in ended:
        mine, at = known.get((night.night, night.slot)), night.ended_at
        assert at is not None, "it has ended"
        came, why = _state_after(store, night)
        if mine is not None:
            # The predecessor failed at first, and was run again.
            stale = mine.code == JobFault.AFTER and mine.ended_at is not None and mine.ended_at < at
            if stale and came is NightState.DUE:
                yield replace(mine, due_at=at, reason=why)
            continue
        if came is NightState.DUE and night is not ended[-1]:
            came, why = NightState.MISSED, f"only the newest missed night, {ended[-1].name}, is run"
        ends = None if came is NightState.DUE else now
        code = JobFault.AFTER if came is NightState.SKIPPED else None
        yield Night(schedule.id, night.night, at, came, why, now, ended_at=ends, slot=night.slot, code=code)


def _state_after(store: Store, night: Night) -> tuple[NightState, str]:
    if night.state is not NightState.DONE:
        return NightState.SKIPPED, f"the night that it comes after was {night.state}: {night.reason}"
    job = None if night.job_id is None else store.jobs.find(night.job_id)
    found, why = standing(store, job)
    if found is Predecessor.NOT_WELL:
        return NightState.SKIPPED, f"the job of the night that it comes after: {why}"
    return NightState.DUE, "its predecessor succeeded"
