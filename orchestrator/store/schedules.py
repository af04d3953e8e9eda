"""Schedules and their nights. The process that inserts a night owns it. State changes are compare-and-set."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, delete, select, update

from orchestrator.core.errors import StateConflict, UsageError
from orchestrator.core.model import JobId
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.store.database import Database
from orchestrator.store.night_tables import nights, schedules

_OPEN = (NightState.DUE, NightState.RUNNING)
_AGAIN = (NightState.FAILED, NightState.SKIPPED, NightState.MISSED)


def _schedule(row: Any) -> Schedule:
    values = dict(row._mapping)
    values["misfire"], values["overlap"] = Misfire(values["misfire"]), Overlap(values["overlap"])
    values["grace"] = timedelta(seconds=values.pop("grace_seconds"))
    return Schedule(**values)


def _night(row: Any) -> Night:
    values = dict(row._mapping)
    return Night(**{**values, "state": NightState(values["state"])})


def _taken(name: str) -> UsageError:
    return UsageError(
        f"there is already a schedule {name}",
        hint=f"--name gives this one another name; `orch schedule remove {name}` ends that one",
    )


class Schedules:
    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, schedule: Schedule) -> None:
        """Store a new schedule. Raises UsageError if its name is taken."""
        values = asdict(schedule)
        values["grace_seconds"] = int(values.pop("grace").total_seconds())
        with self._db.write() as tx:
            # The returned row decides, because a driver need not report a row count for INSERT.
            add = self._db.upsert(schedules).values(**values).on_conflict_do_nothing().returning(schedules.c.id)
            added = tx.execute(add).first()
        if added is None:
            raise _taken(schedule.name)

    def check_free(self, name: str) -> None:
        if self.find(name) is not None:
            raise _taken(name)

    def find(self, name: str) -> Schedule | None:
        with self._db.read() as tx:
            row = tx.execute(select(schedules).where(schedules.c.name == name)).first()
        return None if row is None else _schedule(row)

    def get(self, schedule_id: str) -> Schedule | None:
        with self._db.read() as tx:
            row = tx.execute(select(schedules).where(schedules.c.id == schedule_id)).first()
        return None if row is None else _schedule(row)

    def over(self, schedule_id: str, since: datetime) -> list[Night]:
        """Return a schedule's nights that ended after `since`, sorted by due time."""
        here = (nights.c.schedule_id == schedule_id, nights.c.ended_at > since)
        return self._nights(select(nights).where(*here).order_by(nights.c.due_at, nights.c.id))

    def all(self) -> list[Schedule]:
        """Return every schedule of every home, by name."""
        with self._db.read() as tx:
            return [_schedule(row) for row in tx.execute(select(schedules).order_by(schedules.c.name))]

    def pause(self, schedule_id: str, now: datetime) -> bool:
        """Pause a schedule. False if it is paused already, or gone."""
        return self._set(schedule_id, schedules.c.paused_at.is_(None), paused_at=now)

    def resume(self, schedule_id: str, now: datetime) -> bool:
        """Resume a schedule for nights after `now`. False if it is not paused, or gone."""
        return self._set(schedule_id, schedules.c.paused_at.is_not(None), paused_at=None, since=now)

    def _set(self, schedule_id: str, condition: ColumnElement[bool], **values: datetime | None) -> bool:
        statement = update(schedules).where(schedules.c.id == schedule_id, condition).values(**values)
        with self._db.write() as tx:
            return tx.execute(statement).rowcount == 1

    def remove(self, schedule_id: str) -> bool:
        """Delete a schedule and its nights, but not their jobs. False if it is gone already."""
        with self._db.write() as tx:
            return tx.execute(delete(schedules).where(schedules.c.id == schedule_id)).rowcount == 1

    def claim(self, night: Night) -> bool:
        """Store a night. False if another process owns it, or its schedule is gone."""
        values = {name: getattr(night, name) for name in Night.__struct_fields__ if name != "id"}
        there = select(schedules.c.id).where(schedules.c.id == night.schedule_id).with_for_update(key_share=True)
        with self._db.write() as tx:
            if tx.execute(there).first() is None:
                return False
            add = self._db.upsert(nights).values(**values).on_conflict_do_nothing().returning(nights.c.id)
            return tx.execute(add).first() is not None

    def nights(self, schedule_id: str | None = None, since: date | None = None) -> list[Night]:
        """Return nights sorted by due time: of one schedule or of all, optionally only from the date `since` on."""
        query = select(nights).order_by(nights.c.due_at, nights.c.id)
        if schedule_id is not None:
            query = query.where(nights.c.schedule_id == schedule_id)
        if since is not None:
            query = query.where(nights.c.night >= since)
        return self._nights(query)

    def unended(self) -> list[Night]:
        """Return all schedules' nights that wait or run, by due time."""
        return self._nights(select(nights).where(nights.c.state.in_(_OPEN)).order_by(nights.c.due_at, nights.c.id))

    def _nights(self, query: Any) -> list[Night]:
        with self._db.read() as tx:
            return [_night(row) for row in tx.execute(query)]

    def night_of(self, schedule_id: str, night: date, slot: str = "") -> Night | None:
        """Return a schedule's night on a date, or its run at the time `slot` on that date."""
        here = (nights.c.schedule_id == schedule_id, nights.c.night == night, nights.c.slot == slot)
        found = self._nights(select(nights).where(*here))
        return found[0] if found else None

    def run_of(self, job: JobId) -> Night | None:
        """Return the run that made a job, if its schedule has several runs a day, or None."""
        here = (nights.c.job_id == job, nights.c.slot != "")
        return next(iter(self._nights(select(nights).where(*here).order_by(nights.c.id))), None)

    def failed_without_job(self, home: str, since: datetime) -> list[tuple[str, Night]]:
        """Return a home's nights that have no job and failed since a time, each with its schedule's name."""
        query = (
            select(schedules.c.name.label("of"), nights)
            .join(schedules, schedules.c.id == nights.c.schedule_id)
            .where(schedules.c.home == home, nights.c.state == NightState.FAILED, nights.c.job_id.is_(None))
            .where(nights.c.ended_at >= since)
            .order_by(nights.c.ended_at, nights.c.id)
        )
        with self._db.read() as tx:
            rows = [dict(row._mapping) for row in tx.execute(query)]
        return [(row.pop("of"), Night(**{**row, "state": NightState(row["state"])})) for row in rows]

    def waits(self, night: Night, reason: str) -> None:
        """Record why a due night waits. Raises StateConflict if the night is not due."""
        self._move(night, (NightState.DUE,), reason=reason)

    def begun(self, night: Night, reason: str) -> None:
        """Mark a due night as running, before its job is made. Raises StateConflict if the night is not due."""
        self._move(night, (NightState.DUE,), state=NightState.RUNNING, reason=reason)

    def given(self, night: Night, job_id: JobId) -> None:
        """Record the job of a running night. Raises StateConflict if the night is not running."""
        self._move(night, (NightState.RUNNING,), job_id=job_id)

    def awaits_job(self, night_id: int) -> bool:
        """True if a night runs and has no job yet."""
        query = select(nights.c.id).where(nights.c.id == night_id, nights.c.state == NightState.RUNNING)
        with self._db.read() as tx:
            return tx.execute(query.where(nights.c.job_id.is_(None))).first() is not None

    def ended(self, night: Night, state: NightState, reason: str, at: datetime, code: str | None = None) -> None:
        """End a night; `code` says why it failed. Raises StateConflict if the night has ended already."""
        self._move(night, _OPEN, state=state, reason=reason, ended_at=at, code=code)

    def again(self, night: Night, due_at: datetime, reason: str, asked_by: str | None = None) -> None:
        """Make a failed, skipped or missed night due again. Raises StateConflict if it is in another state."""
        afresh = {"job_id": None, "ended_at": None, "created_at": due_at, "code": None, "asked_by": asked_by}
        self._move(night, _AGAIN, state=NightState.DUE, due_at=due_at, reason=reason, **afresh)

    def _move(self, night: Night, expected: tuple[NightState, ...], **values: Any) -> None:
        here = (nights.c.schedule_id == night.schedule_id, nights.c.night == night.night, nights.c.slot == night.slot)
        with self._db.write() as tx:
            if tx.execute(update(nights).where(*here, nights.c.state.in_(expected)).values(**values)).rowcount != 1:
                raise StateConflict(f"the night of {night.name} is not in the expected state")
