"""Decides about a due night, by the schedule's rules: it begins, waits, or is missed or skipped."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.durations import duration
from orchestrator.core.schedules import Misfire, NightState, Overlap, Schedule
from orchestrator.policy.due_nights import DueNight

ON_TIME = timedelta(minutes=15)
"""A night found this late still counts as on time: a daemon that builds another job looks for nights only afterwards.
"""


class NightVerdict(Struct, frozen=True):
    """The verdict on a due night: `running` (begin it now), `due` (it waits), or how it ends; and why."""

    state: NightState
    reason: str


def verdict(
    schedule: Schedule,
    one: DueNight,
    now: datetime,
    *,
    found_at: datetime,
    newest: DueNight,
    deadline: datetime | None,
    running: str | None,
) -> NightVerdict:
    """Judge a night that was found due at `found_at` and has not begun.

    `newest` is the schedule's latest due night; `running` names an unfinished job of the same file.
    """
    late, found_late = now - one.at, found_at - one.at
    if one.key != newest.key and one.at < newest.at:
        return NightVerdict(
            NightState.MISSED, f"not started before the night of {newest.name} was due: only the newest is run"
        )
    if late >= schedule.grace:
        waited = f", waiting for {running}" if running else ""
        limit = duration(schedule.grace.total_seconds())
        return NightVerdict(
            NightState.MISSED, f"not started {_length(late)} after it was due{waited}; the grace is {limit}"
        )
    if deadline is not None and deadline <= now:
        return NightVerdict(NightState.MISSED, f"not started by its deadline, {_length(late)} after it was due")
    if found_late > ON_TIME and schedule.misfire is Misfire.SKIP:
        return NightVerdict(NightState.SKIPPED, f"found {_length(found_late)} late; the schedule skips late nights")
    if running is not None:
        if schedule.overlap is Overlap.SKIP:
            return NightVerdict(NightState.SKIPPED, f"job {running} of the same file was still running")
        return NightVerdict(NightState.DUE, f"waits for job {running} of the same file")
    return NightVerdict(NightState.RUNNING, "on time" if late <= ON_TIME else f"started {_length(late)} late")


def _length(late: timedelta) -> str:
    return duration(late.total_seconds())
