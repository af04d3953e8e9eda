"""The nights of a home's schedules, run by the daemon of `orch up`.

`tick` is an idempotent step, called repeatedly. It records due nights, starts the nights that may start, and ends a
night once its job has ended. A night is recorded before its job, and the job is found again by its file. So a process
that is killed between these steps causes neither a second night nor a second job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct

from orchestrator.core.counts import number_of
from orchestrator.core.errors import (
    DataRefused,
    InputError,
    JobFilesError,
    NoRoom,
    OrchError,
    OutputError,
    RefusedError,
    StateConflict,
    StorageError,
)
from orchestrator.core.model import NIGHT, Job, JobFault, JobKind, JobState
from orchestrator.core.schedules import Night, NightState, Schedule
from orchestrator.core.shards import AT_BACKEND
from orchestrator.core.zones import zone_of
from orchestrator.pipeline import predecessors
from orchestrator.pipeline.build import builder
from orchestrator.pipeline.build.build_orders import BuildDied, Builds, BuildSite, TakeIn, carried_out
from orchestrator.pipeline.build.submission import How, Options, kind_of
from orchestrator.policy import schedule_times
from orchestrator.policy.internal_errors import TRIES, Faults
from orchestrator.settings import job_file
from orchestrator.settings.config import Config
from orchestrator.settings.discovery import is_same_file
from orchestrator.settings.home import Home
from orchestrator.store import Store

log = logging.getLogger(__name__)


class _Looked(Struct, frozen=True):
    """A past check of a schedule. It is valid until `next_at`, unless the schedule changes or the clock is set
    back.
    """

    schedule: Schedule
    at: datetime
    next_at: datetime


class Scheduler:
    """Runs the schedules of a home that belong to one settings file. Only one daemon at a time may do so."""

    def __init__(
        self, store: Store, home: Home, config: Config, now: Callable[[], datetime], builds: Builds | None = None
    ) -> None:
        """Create a scheduler. `builds` builds the jobs; without it, this process builds them."""
        self._store = store
        self._home = home
        self._config = config
        self._now = now
        self._looked: dict[str, _Looked] = {}
        self._problems: dict[str, str] = {}
        self._builds = builds
        self._faults = Faults()

    def use(self, config: Config) -> None:
        self._config = config

    def tick(self) -> list[str]:
        """Take one step, and return a message about each change. Raises StorageError for a problem of the home.

        A problem with one schedule or night, even a defect, does not affect other schedules and nights.
        """
        told: list[str] = []
        ours: dict[str, Schedule] = {}
        home = self._home.identity()
        for schedule in self._store.schedules.all():
            if schedule.home != home:
                continue
            problem = self._record_due_nights(schedule)
            if problem is None:
                ours[schedule.id] = schedule
            elif self._problems.get(schedule.id) != problem:
                told.append(f"{schedule.name}: {problem}")
            self._problems[schedule.id] = problem or ""
        for night in self._store.schedules.unended():
            if night.schedule_id in ours:
                told += self._advance(ours[night.schedule_id], night)
        return told

    def _record_due_nights(self, schedule: Schedule) -> str | None:
        """Record a schedule's due nights. Return why the schedule cannot have nights, or None."""
        if not is_same_file(schedule.config, self._config.path):
            return f"waits for a daemon with the settings it was made with: {schedule.config}"
        try:
            if schedule.after is None:
                self._record(schedule, self._now())
            elif schedule.paused_at is None:
                predecessors.record(self._store, schedule, self._now())
        except InputError as error:
            return f"cannot be run: {error}"
        except StorageError:
            raise
        except Exception as error:
            log.exception("schedule %s", schedule.name)
            return f"cannot be run: {JobFault.INTERNAL}: {type(error).__name__}: {error}"
        return None

    def _record(self, schedule: Schedule, now: datetime) -> None:
        looked = self._looked.get(schedule.id)
        if looked is not None and looked.schedule == schedule and looked.at <= now < looked.next_at:
            return
        if schedule.paused_at is None:
            self._claim(schedule, now)
        coming = schedule_times.next_due(schedule, now)
        self._looked[schedule.id] = _Looked(schedule, now, coming.at if coming else now + timedelta(days=1))

    def _claim(self, schedule: Schedule, now: datetime) -> None:
        first = (now - schedule_times.look_back(schedule) - timedelta(days=2)).date()
        known = {(night.night, night.slot) for night in self._store.schedules.nights(schedule.id, first)}
        found = schedule_times.due(schedule, now, known)
        newest = schedule_times.last_due(schedule, now) if found else None
        for one in found:
            if newest is not None and one.key == newest.key:
                why = "it is due"
                night = Night(schedule.id, one.night, one.at, NightState.DUE, why, now, slot=one.slot)
            else:
                only = newest.name if newest else "none"
                why = f"no daemon was running at its time; only the newest missed night, {only}, is run"
                night = Night(
                    schedule.id, one.night, one.at, NightState.MISSED, why, now, ended_at=now, slot=one.slot
                )
            self._store.schedules.claim(night)

    def _advance(self, schedule: Schedule, night: Night) -> list[str]:
        try:
            if night.state is NightState.DUE:
                said = self._begin(schedule, night)
            elif night.job_id is None:
                if (job := self._cancelled(night)) is not None:
                    self._store.schedules.given(night, job.id)
                    return []
                is_due = self._faults.is_due(_key(night), self._now())
                said = self._make_job(schedule, night) if is_due else []
            else:
                said = self._end_if_job_ended(night, self._store.jobs.find(night.job_id))
        except StateConflict as conflict:
            log.info("%s", conflict)  # removed, or moved by another process; the next tick reads the new state
            return []
        except (BuildDied, NoRoom) as error:
            said = self._not_built(night, error)
        except OrchError as error:
            if isinstance(error, StorageError) and not isinstance(error, JobFilesError):
                raise
            said = self._failed(night, str(error), _code_of(error))
        except Exception as error:
            log.exception("%s, night of %s", schedule.name, night.name)
            why = f"{JobFault.INTERNAL}: {type(error).__name__}: {error}; engine.log has the details"
            said = self._failed(night, why, JobFault.INTERNAL)
        return [f"{schedule.name}, night of {night.name}: {text}" for text in said]

    def _begin(self, schedule: Schedule, night: Night) -> list[str]:
        now, due = self._now(), schedule_times.DueNight(night.night, night.due_at, night.slot)
        verdict = schedule_times.verdict(
            schedule,
            due,
            now,
            found_at=night.created_at,
            newest=self._newest(schedule, now) or due,
            deadline=self._deadline(schedule, night),
            running=self._running_job(schedule),
        )
        if verdict.state is NightState.RUNNING:
            reason = verdict.reason if night.asked_by is None else f"asked for by {night.asked_by}"
            self._store.schedules.begun(night, reason)
            return [f"begins, {reason}", *self._make_job(schedule, night)]
        if verdict.state is not NightState.DUE:
            return self._end(night, verdict.state, verdict.reason)
        if verdict.reason == night.reason:
            return []
        self._store.schedules.waits(night, verdict.reason)
        return [verdict.reason]

    def _newest(self, schedule: Schedule, now: datetime) -> schedule_times.DueNight | None:
        if schedule.after is None:
            return schedule_times.last_due(schedule, now)
        found = self._store.schedules.nights(schedule.id)
        return schedule_times.DueNight(found[-1].night, found[-1].due_at, found[-1].slot) if found else None

    def _deadline(self, schedule: Schedule, night: Night) -> datetime | None:
        text = schedule.deadline or file_deadline(Path(schedule.file))
        return None if text is None else schedule_times.deadline_at(text, night.due_at, zone_of(schedule.tz))

    def _running_job(self, schedule: Schedule) -> str | None:
        file = os.path.realpath(schedule.file)
        unfinished = self._store.jobs.unfinished(self._home.identity())
        wanted = [job for job in unfinished if not job.options.get("dry_run") and not job.is_limited]
        return next(
            (job.id for job in wanted if os.path.realpath(job.source) == file and not self._is_held(job)), None
        )

    def _is_held(self, job: Job) -> bool:
        """True if rows of a job were refused and no shard is at a backend: a person has to correct the job's file."""
        shards = self._store.shards.of_job(job.id)
        return bool(self._store.holds.of(job.id)) and not any(shard.state in AT_BACKEND for shard in shards)

    def _make_job(self, schedule: Schedule, night: Night) -> list[str]:
        def make() -> tuple[TakeIn, datetime | None]:
            deadline = self._deadline(schedule, night)
            told = None if deadline is None else deadline.isoformat()
            by = f"the night of {night.name} of {schedule.name}, by {night.asked_by}"
            asked = None if night.asked_by is None else by
            options = Options(told, schedule.budget, unattended=True, night=night.id, asked=asked)
            return TakeIn(Path(schedule.file), options), deadline

        if self._builds is None:
            submission = make()[0].carry_out(BuildSite(self._store, self._home, self._config, self._now))
        elif (done := carried_out(self._builds, _key(night), make)) is None:
            return []
        else:
            submission = done.value
        self._faults.cleared(_key(night))
        self._store.schedules.given(night, submission.job.id)
        if submission.how is not How.UNCHANGED:
            return [f"job {submission.job.id}, {submission.reason}"]
        if submission.job.options.get(NIGHT) == night.id:
            # The job was made by a process that ended before recording it, and its rows are already answered.
            return [f"job {submission.job.id} was made before a restart"]
        return self._end(night, NightState.DONE, submission.reason)

    def _unbuilt_jobs(self, night: Night) -> list[Job]:
        unfinished = self._store.jobs.unfinished(self._home.identity())
        return [job for job in unfinished if job.options.get(NIGHT) == night.id and job.built_at is None]

    def _cancelled(self, night: Night) -> Job | None:
        """Return a night's job that was cancelled during its build, or None. Ends the build of the job."""
        if self._builds is None:
            return None
        job = next((job for job in self._unbuilt_jobs(night) if job.cancel_requested_at is not None), None)
        if job is not None:
            self._builds.end(_key(night))
        return job

    def _not_built(self, night: Night, error: Exception) -> list[str]:
        """Retry a build that died or found no room: other work may have caused the failure. After TRIES failures,
        fail the night.
        """
        code = JobFault.NO_ROOM if isinstance(error, NoRoom) else JobFault.INTERNAL
        log.warning("night of %s: %s", night.name, error)
        fault = self._faults.caught(_key(night), error, self._now(), code)
        if fault.times < TRIES:
            return [f"{fault.told}; its job is built again at {fault.next_at.astimezone():%H:%M:%S}"]
        self._faults.cleared(_key(night))
        for job in self._unbuilt_jobs(night):
            builder.discard(self._store, self._home, job)
        return self._failed(night, str(error), code)

    def _end_if_job_ended(self, night: Night, job: Job | None) -> list[str]:
        if job is None:
            return self._end(night, NightState.FAILED, "its job was removed before it ended")
        if job.error is not None:
            return self._end(night, NightState.FAILED, job.error, job.error_code)
        if job.finished_at is None:
            return []
        if job.cancel_requested_at is not None:
            return self._end(night, NightState.FAILED, f"cancelled: {job.cancel_reason}", JobState.CANCELLED)
        counts = self._store.jobs.counts([job.id])[job.id]
        ends = [(name, getattr(counts, name)) for name in ("succeeded", "failed", "cancelled", "expired")]
        rows = ", ".join(f"{number:,} {name}" for name, number in ends if number)
        return self._end(night, NightState.DONE, f"{number_of(counts.total, 'row')}: {rows}")

    def _failed(self, night: Night, reason: str, code: str) -> list[str]:
        try:
            return self._end(night, NightState.FAILED, reason, code)
        except StateConflict as conflict:
            log.info("%s", conflict)  # removed, or ended by another process
            return []

    def _end(self, night: Night, state: NightState, reason: str, code: str | None = None) -> list[str]:
        self._store.schedules.ended(night, state, reason, self._now(), code)
        return [f"{state}: {reason}"]


def _key(night: Night) -> str:
    return f"night {night.id}"


def _code_of(error: OrchError) -> str:
    match error:
        case OutputError():
            return error.code
        case RefusedError():
            return JobFault.REFUSED
        case JobFilesError():
            return JobFault.FILES
        case DataRefused():
            return JobFault.INTERNAL
        case _:
            return JobFault.INPUT


def file_deadline(file: Path) -> str | None:
    """Return a job file's deadline as text, or None if it has none, like every batch file. Raises OrchError."""
    return job_file.load(file).deadline if kind_of(file) is JobKind.DOCUMENTS else None
