"""Cron expressions and durations of schedules: validation and triggers.

Triggers are in wall-clock time. `schedule_times` maps them to instants, even when the clocks change.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestrator.core.counts import number_of
from orchestrator.core.durations import seconds_of
from orchestrator.core.errors import InputError

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

LONGEST = timedelta(days=31)
_SAMPLE = 400
_RANGES = {"minute": "0-59", "hour": "0-23", "day": "1-31", "month": "1-12"}
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")


def length(text: str) -> timedelta:
    """Parse a duration such as 90m or 6h. Raises InputError."""
    seconds = seconds_of(text) or 0.0
    if not 0 < seconds <= LONGEST.total_seconds():
        raise InputError(f"{text!r} is not a length of time up to {LONGEST.days}d; write 90m, 6h or 2d")
    return timedelta(seconds=seconds)


def check_cron(cron: str) -> None:
    """Raise InputError if a cron expression is invalid or never fires."""
    if trigger(cron).get_next_fire_time(None, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise InputError(f"{cron!r} never comes: no month has that day")


@lru_cache(maxsize=256)
def comes_often(cron: str) -> bool:
    """True if a cron expression fires more than once on some day."""
    dates: set[date] = set()
    at, fires = datetime(2024, 1, 1, tzinfo=UTC), trigger(cron)
    for _ in range(_SAMPLE):
        fire = fires.get_next_fire_time(None, at)
        if fire is None:
            return False
        if fire.date() in dates:
            return True
        dates.add(fire.date())
        at = fire + timedelta(seconds=1)
    return False


def trigger(cron: str) -> CronTrigger:
    """Return the trigger of a cron expression, in wall-clock time. Raises InputError."""
    fields = cron.split()
    if len(fields) != 5:
        raise InputError(
            f"{cron!r} has {number_of(len(fields), 'field')}, not 5: minute, hour, day, month, day of the week; "
            'every night at 22:00 is "0 22 * * *"'
        )
    if fields[2] != "*" and fields[4] != "*":
        raise InputError(
            f"{cron!r} names a day of the month and a day of the week, which cron implementations read differently: "
            "make a schedule for each"
        )
    from apscheduler.triggers.cron import CronTrigger  # half of this module's import time

    dated = dict(zip(_RANGES, fields, strict=False))
    try:
        return CronTrigger(**dated, day_of_week=_weekdays(fields[4]), timezone=UTC)
    except ValueError as error:
        for name, field in dated.items():
            try:
                CronTrigger(**{name: field}, timezone=UTC)
            except ValueError:
                raise InputError(
                    f"{cron!r} is not a cron expression: {field!r} is not a valid {name}; write {_RANGES[name]}, a "
                    "list or range of these, */5 or *"
                ) from None
        raise InputError(f"{cron!r} is not a cron expression: {error}") from None


def _weekdays(field: str) -> str:
    """Return a cron field with weekday names. In cron, 0 and 7 are Sunday; in the trigger, 0 is Monday."""
    if field == "*":
        return field
    names: list[str] = []
    for item in field.lower().split(","):
        found = re.fullmatch(r"(\w+)|(?:\*|(\w+)-(\w+))(?:/([1-9]))?", item)
        if found is None:
            raise ValueError(f'"{item}" is not a day of the week; write mon-fri, sat,sun or 1-5')
        one, begins, ends, step = found.groups()
        first = _weekday(one or begins or "0")
        # `sun` ends a range as 7, so that fri-sun is three days.
        last = first if one else 6 if ends is None else _weekday(ends) or (7 if first else 0)
        if last < first:
            raise ValueError(f'"{item}" ends before it begins; a week begins with sun or mon')
        names += _WEEKDAYS[first : last + 1 : int(step or 1)]
    return ",".join(dict.fromkeys(names))


def _weekday(text: str) -> int:
    if text in _WEEKDAYS:
        return _WEEKDAYS.index(text)
    if re.fullmatch("[0-7]", text):
        return int(text)
    raise ValueError(f'"{text}" is not a day of the week; write mon-fri, sat,sun or 1-5')
