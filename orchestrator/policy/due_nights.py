"""When a schedule's nights are due, which one a moment belongs to, and what deadline a night has.

A night is named by a date, as clocks in the schedule's time zone have it, and there is one a date; of a schedule that
comes several times a day, by the date and the time. Cron gives the hands of that clock; which instant they stand for
is decided here: a time that the clocks skip is the moment after the gap as long as the time lies in it, and one that
they show twice is the first of the two. Where cron names every hour, hours that are skipped do not come, and those
that come twice do so: what runs every hour goes on doing that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from orchestrator.core.durations import duration, seconds_of
from orchestrator.core.errors import InputError
from orchestrator.core.schedules import Schedule
from orchestrator.policy.cron_expressions import LONGEST, comes_often, trigger, zone_of

LOOK_BACK = LONGEST
"""Nights that nobody was there for longer ago are not recorded."""
MOST_MISSED = 100
"""So many of several runs a day that nobody was there for are recorded, the newest."""
OFTEN_BACK = timedelta(days=1)
"""Runs of a schedule that comes several times a day are not recorded where nobody was there for them longer ago than
this, and than their grace."""
_DAY, _HOURS = timedelta(days=1), timedelta(hours=4)
_AGAIN = "+"
"""Behind the time of a run that comes when clocks show that time for the second time."""


Key = tuple[date, str]
"""What a schedule has one run of: a date, and of several runs a date the time of day, else ""."""


@dataclass(frozen=True, slots=True)
class DueNight:
    """A night whose time has come; of several runs a date, `slot` is the time of day."""

    night: date
    at: datetime
    slot: str = ""

    @property
    def key(self) -> Key:
        """Which one it is."""
        return self.night, self.slot

    @property
    def name(self) -> str:
        """What it is called: 2026-11-20, or 2026-11-20 14:00."""
        return f"{self.night} {self.slot}".rstrip()


def deadline_at(text: str, due_at: datetime, zone: ZoneInfo) -> datetime:
    """The instant (UTC) that a deadline means for a night: `8h` and `06:00` count from when the night is due.

    An ISO time is itself, in `zone` where it names none. Raises InputError.
    """
    if (seconds := seconds_of(text)) is not None:
        try:
            return due_at + timedelta(seconds=seconds)
        except OverflowError:
            raise InputError(f"{text!r} is too far away") from None
    local = due_at.astimezone(zone).replace(tzinfo=None)
    try:
        if found := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
            today = local.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0)
            times = (_instant(today + days * _DAY, zone, fold) for days in (0, 1, 2) for fold in (0, 1))
            return next(at for at in times if at > due_at)
        given = datetime.fromisoformat(text)
        return given.astimezone(UTC) if given.tzinfo else _instant(given, zone)
    except ValueError:
        raise InputError(f"{text!r} is not a deadline of a night; write 06:00 or 8h") from None


def check_deadline(text: str) -> None:
    """Whether a deadline can hold for every night. Raises InputError."""
    if seconds_of(text) is None and not re.fullmatch(r"\d{1,2}:\d{2}", text):
        raise InputError(f"{text!r} is not a deadline for every night; write 06:00, or 8h from when the night is due")
    deadline_at(text, datetime(2026, 1, 1, tzinfo=UTC), ZoneInfo("UTC"))


def look_back(schedule: Schedule) -> timedelta:
    """How far back nights are recorded that nobody was there for."""
    return min(LOOK_BACK, max(OFTEN_BACK, schedule.grace)) if comes_often(schedule.cron) else LOOK_BACK


def due(schedule: Schedule, now: datetime, known: Collection[Key]) -> list[DueNight]:
    """The nights whose time has come since the schedule began, oldest first, without those that are `known`."""
    began = max(schedule.since, now - look_back(schedule))
    found = [one for one in _between(schedule, began, now) if one.key not in known]
    return found[-MOST_MISSED:] if comes_often(schedule.cron) else found


def next_due(schedule: Schedule, now: datetime) -> DueNight | None:
    """The first night after `now`; None where none comes in the next years, or it follows another schedule's."""
    if schedule.after is not None:
        return None
    for days in (2, 40, 400, 3000):
        if found := next(_between(schedule, now, now + timedelta(days=days)), None):
            return found
    return None


def last_due(schedule: Schedule, moment: datetime) -> DueNight | None:
    """The night that a moment belongs to: the last one whose time had come. None where none had in over a year."""
    for days in (0.1, 2, 40, 400):
        if found := list(_between(schedule, moment - timedelta(days=days), moment)):
            return found[-1]
    return None


def local(schedule: Schedule, at: datetime) -> str:
    """An instant as the schedule's clocks show it, for people."""
    return at.astimezone(zone_of(schedule.tz)).strftime("%a %Y-%m-%d %H:%M")


def ahead(schedule: Schedule, at: datetime, now: datetime) -> str:
    """An instant to come, for people."""
    return f"{local(schedule, at)}, in {_told(at - now)}"


def _between(schedule: Schedule, after: datetime, until: datetime) -> Iterator[DueNight]:
    """The nights due in `(after, until]`, in order."""
    often = comes_often(schedule.cron)
    found = (one for one in _all_around(schedule, after, until) if after < one.at <= until)
    return iter(sorted(found, key=lambda one: one.at)) if often else found


def _all_around(schedule: Schedule, after: datetime, until: datetime) -> Iterator[DueNight]:
    """The nights between two moments and some around them, by the hands of the clock."""
    zone, fires = zone_of(schedule.tz), trigger(schedule.cron)
    often = comes_often(schedule.cron)
    every_hour = often and schedule.cron.split()[1].startswith("*")
    around = _HOURS if often else _DAY
    # The hands of the clock, as if it stood in UTC: they never jump, so no fire is lost or doubled by the trigger.
    hands = (after.astimezone(zone) - around).replace(tzinfo=UTC)
    end = (until.astimezone(zone) + around).replace(tzinfo=UTC)
    while (fire := fires.get_next_fire_time(None, hands)) is not None and fire <= end:
        hands, shown = fire + timedelta(seconds=1), fire.replace(tzinfo=None)
        first, second = (_instant(shown, zone, fold) for fold in (0, 1))
        slot = f"{shown:%H:%M}" if often else ""
        if every_hour and second < first:
            continue  # the clocks skip it
        yield DueNight(fire.date(), first, slot)
        if every_hour and second > first:
            yield DueNight(fire.date(), second, slot + _AGAIN)


def _instant(local: datetime, zone: ZoneInfo, fold: int = 0) -> datetime:
    return local.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _told(late: timedelta) -> str:
    return duration(late.total_seconds())
