"""Schedules and their nights: the words for them, and the facts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from orchestrator.core.model import JobId


class NightState(StrEnum):
    """Where one night of a schedule stands."""

    DUE = "due"  # it is due, and it has not begun: it waits, as its reason says
    RUNNING = "running"  # begun: its job is being made, or runs
    DONE = "done"  # its job is at its end, or nothing had changed
    FAILED = "failed"  # the job could not be made, could not go on, or was cancelled
    SKIPPED = "skipped"  # left out, by the schedule's rule
    MISSED = "missed"  # nobody was there in time

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the night by itself."""
        return self not in (NightState.DUE, NightState.RUNNING)


class Misfire(StrEnum):
    """What a schedule does with a night that is found late, but within its grace."""

    RUN = "run"
    SKIP = "skip"


class Overlap(StrEnum):
    """What a schedule does with a night that comes while a job of the same file is still going."""

    SKIP = "skip"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job file that is run by itself: `cron` by the clocks of the time zone `tz`, by the engine of `home`.

    `deadline` is text (06:00, 8h) and counts from when a night is due; None leaves it to the job file. `config` is
    the settings file that the schedule was made under. Nights that come after `since` are run. One that runs `after`
    another schedule, named by its id, has no `cron`.
    """

    id: str
    name: str
    home: str
    config: str
    file: str
    cron: str
    tz: str
    deadline: str | None
    budget: Decimal | None
    misfire: Misfire
    grace: timedelta
    overlap: Overlap
    created_at: datetime
    since: datetime
    paused_at: datetime | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Night:
    """One run of a schedule. `id` is 0 until the store has given it one.

    `night` is its date; of several runs a date, `slot` is the time of day. `code` says why it failed, where it did;
    `asked_by` who asked for it, where its time did not.
    `job_id` may name a job that was removed since, or, where nothing had changed, an earlier night's.
    """

    schedule_id: str
    night: date
    due_at: datetime
    state: NightState
    reason: str
    created_at: datetime
    job_id: JobId | None = None
    ended_at: datetime | None = None
    id: int = 0
    slot: str = ""
    code: str | None = None
    asked_by: str | None = None

    @property
    def name(self) -> str:
        """What it is called: 2026-11-20, or 2026-11-20 14:00."""
        return f"{self.night} {self.slot}".rstrip()
