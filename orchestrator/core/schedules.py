"""Schedules and their nights, with the states and rules of nights."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.clock import night_of
from orchestrator.core.durations import day_words
from orchestrator.core.model import Job, JobId


class NightState(StrEnum):
    """States of a night of a schedule."""

    DUE = "due"  # due but not started, for the given reason
    RUNNING = "running"  # its job is being built, or runs
    DONE = "done"  # its job has ended, or nothing had changed
    FAILED = "failed"  # its job could not be built, could not continue, or was cancelled
    SKIPPED = "skipped"  # skipped by the schedule's rule
    MISSED = "missed"  # no daemon was running in time


class Misfire(StrEnum):
    """Rules for a night that orch finds late, but within the grace period."""

    RUN = "run"
    SKIP = "skip"


class Overlap(StrEnum):
    """Rules for a night that is due while a job of the same file still runs."""

    SKIP = "skip"
    WAIT = "wait"


class Schedule(Struct, frozen=True):
    """A job file that runs automatically: at `cron` in time zone `tz`, by the daemon of `home`.

    `deadline` is text (06:00, 8h) and counts from when a night is due; None uses the job file's deadline. `config` is
    the settings file with which the schedule was created. Only nights after `since` run. A schedule that runs `after`
    another schedule, given by its id, has no `cron`.
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


class Night(Struct, frozen=True):
    """A run of a schedule. `id` is 0 until the store assigns it.

    `night` is its date by `cron` and identifies the run; users see the date `called`. `slot` is the time of day if a
    date has several runs. `code` says why the night failed. `asked_by` names the person who started it by hand, at
    `due_at`. `job_id` may name a job that was removed later. If nothing had changed, it names an earlier night's job.
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
    def is_lost(self) -> bool:
        """True if the night should have run and has no job."""
        return self.state is NightState.MISSED or (self.state is NightState.FAILED and self.job_id is None)

    @property
    def called(self) -> date:
        """Date in the night's name: by `cron` if the night has a `slot`, else the date on which it began."""
        return self.night if self.slot else night_of(self.due_at)

    @property
    def name(self) -> str:
        """Name of the night: 2026-11-20, or 2026-11-20 14:00."""
        return f"{self.called} {self.slot}".rstrip()


def night_title(job: Job, run: Night | None) -> str:
    """Return the name of a job's night with the day of the week: Fri 2026-11-20, or Fri 2026-11-20 14:00.

    The time of day appears if `run`, the night that made the job, has a `slot`. `run` is None if no schedule made the
    job.
    """
    return day_words(night_of(job.created_at)) if run is None else f"{day_words(run.called)} {run.slot}".rstrip()
