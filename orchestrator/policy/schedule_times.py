"""Times of a schedule's nights: when a night is due, its deadline, its start, and the night of a given moment.

A night is named by a date in the schedule's time zone, one night per date. If a schedule runs several times a day, a
night is named by date and time. Cron gives wall-clock times; this module maps them to instants. A time that the
clocks skip is moved forward by the length of the gap. Of a time that the clocks show twice, the first counts. If cron
names every hour, hourly schedules stay hourly: skipped hours are left out, and repeated hours run twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct

from orchestrator.core.clock import night_of
from orchestrator.core.durations import duration, seconds_of
from orchestrator.core.errors import InputError
from orchestrator.core.schedules import Misfire, NightState, Overlap, Schedule
from orchestrator.core.zones import zone_of
from orchestrator.policy.cron_expressions import LONGEST, comes_often, trigger

ON_TIME = timedelta(minutes=15)
"""Maximum lateness of a night that counts as on time. While a daemon builds a job, it does not look for nights."""
LOOK_BACK = LONGEST
"""Maximum age of a missed night. An older night is not recorded. See `OFTEN_BACK` for several runs a day."""
MOST_MISSED = 100
"""Maximum number of missed runs to record for a schedule with several runs a day. The newest are recorded."""
OFTEN_BACK = timedelta(days=1)
"""Maximum age of recorded missed runs if a schedule runs several times a day.

If the schedule's `grace` is longer, the maximum is the grace, up to `LOOK_BACK`.
"""
_DAY, _HOURS = timedelta(days=1), timedelta(hours=4)
_AGAIN = "+"
"""Suffix of a run's time when the clocks show that time for the second time."""


Key = tuple[date, str]
"""Key of a run: its date, and its time of day if there are several runs a day, otherwise ""."""


class DueNight(Struct, frozen=True):
    """A night that is due. `slot` is the time of day if there are several runs a day, otherwise empty."""

    night: date
    at: datetime
    slot: str = ""

    @property
    def key(self) -> Key:
        """Key of the night: its date and slot."""
        return self.night, self.slot

    @property
    def name(self) -> str:
        """Name of the night: 2026-11-20, or 2026-11-20 14:00."""
        return f"{self.night if self.slot else night_of(self.at)} {self.slot}".rstrip()


class NightVerdict(Struct, frozen=True):
    """The verdict on a due night, with its reason.

    `state` is `running` (begin now), `due` (wait), or the state in which the night ends.
    """

    state: NightState
    reason: str


def deadline_at(text: str, due_at: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant (UTC) of a night's deadline. `8h` and `06:00` count from the time the night is due.

    An ISO time is taken as it is, in `zone` if it names no zone. Raises InputError if `text` is not a deadline.
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
    """Raise InputError if a deadline cannot apply to every night."""
    if seconds_of(text) is None and not re.fullmatch(r"\d{1,2}:\d{2}", text):
        raise InputError(f"{text!r} is not a deadline for every night; write 06:00, or 8h from when the night is due")
    deadline_at(text, datetime(2026, 1, 1, tzinfo=UTC), ZoneInfo("UTC"))


def look_back(schedule: Schedule) -> timedelta:
    """Return the maximum age of missed nights that are recorded."""
    return min(LOOK_BACK, max(OFTEN_BACK, schedule.grace)) if comes_often(schedule.cron) else LOOK_BACK


def due(schedule: Schedule, now: datetime, known: Collection[Key]) -> list[DueNight]:
    """Return the nights due since the schedule began, oldest first, without the `known` nights.

    Nights older than `look_back` are left out. Of a schedule with several runs a day, only the newest `MOST_MISSED`
    are returned.
    """
    began = max(schedule.since, now - look_back(schedule))
    found = [one for one in _between(schedule, began, now) if one.key not in known]
    return found[-MOST_MISSED:] if comes_often(schedule.cron) else found


def next_due(schedule: Schedule, now: datetime) -> DueNight | None:
    """Return the first night after `now`. Returns None if it is years away, or if the schedule follows another
    schedule.
    """
    if schedule.after is not None:
        return None
    for days in (2, 40, 400, 3000):
        if found := next(_between(schedule, now, now + timedelta(days=days)), None):
            return found
    return None


def last_due(schedule: Schedule, moment: datetime) -> DueNight | None:
    """Return the night to which a moment belongs: the last night due before it. Returns None if that was over a year
    ago.
    """
    for days in (0.1, 2, 40, 400):
        if found := list(_between(schedule, moment - timedelta(days=days), moment)):
            return found[-1]
    return None


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
    """Return the verdict on a night that was found due at `found_at` and has not begun.

    `newest` is the schedule's latest due night. `running` names an unfinished job of the same file, or is None.
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


def local(schedule: Schedule, at: datetime) -> str:
    """Format an instant in the schedule's time zone."""
    return at.astimezone(zone_of(schedule.tz)).strftime("%a %Y-%m-%d %H:%M")


def other_zone(schedule: Schedule, at: datetime) -> str | None:
    """Return the schedule's time zone if its clocks differ from this machine's at `at`, otherwise None."""
    return None if at.astimezone(zone_of(schedule.tz)).utcoffset() == at.astimezone().utcoffset() else schedule.tz


def ahead(schedule: Schedule, at: datetime, now: datetime, zone: str | None = None) -> str:
    """Format a future instant in the schedule's time zone, with the time until then. Includes the name `zone` if
    given.
    """
    return f"{' '.join(filter(None, (local(schedule, at), zone)))}, in {_length(at - now)}"


def _between(schedule: Schedule, after: datetime, until: datetime) -> Iterator[DueNight]:
    often = comes_often(schedule.cron)
    found = (one for one in _all_around(schedule, after, until) if after < one.at <= until)
    return iter(sorted(found, key=lambda one: one.at)) if often else found


def _all_around(schedule: Schedule, after: datetime, until: datetime) -> Iterator[DueNight]:
    """Yield the nights between two moments, and some nights before and after, in wall-clock order."""
    zone, fires = zone_of(schedule.tz), trigger(schedule.cron)
    often = comes_often(schedule.cron)
    every_hour = often and schedule.cron.split()[1].startswith("*")
    around = _HOURS if often else _DAY
    # Wall-clock time as if it were UTC: it never jumps, so the trigger neither loses nor doubles a fire.
    hands = (after.astimezone(zone) - around).replace(tzinfo=UTC)
    end = (until.astimezone(zone) + around).replace(tzinfo=UTC)
    while (fire := fires.get_next_fire_time(None, hands)) is not None and fire <= end:
        hands, shown = fire + timedelta(seconds=1), fire.replace(tzinfo=None)
        first, second = (_instant(shown, zone, fold) for fold in (0, 1))
        slot = f"{shown:%H:%M}" if often else ""
        if every_hour and second < first:
            continue  # the clocks skip this time
        yield DueNight(fire.date(), first, slot)
        if every_hour and second > first:
            yield DueNight(fire.date(), second, slot + _AGAIN)


def _instant(local: datetime, zone: ZoneInfo, fold: int = 0) -> datetime:
    return local.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _length(late: timedelta) -> str:
    return duration(late.total_seconds())
