"""When nights are due by cron and time zone, and what becomes of one that is due: pure."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.core.schedules import Misfire, NightState, Overlap, Schedule
from orchestrator.core.zones import zone_of
from orchestrator.policy import cron_expressions, schedule_times
from orchestrator.policy.schedule_times import DueNight

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu", "Pacific/Apia")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def schedule(cron: str = "0 22 * * *", tz: str = "Europe/Berlin", **facts: Any) -> Schedule:
    terms: dict[str, Any] = {
        "id": "letters-1", "name": "letters", "home": "home", "config": "/orch.toml", "file": "/job.yaml",
        "deadline": None, "budget": None, "misfire": Misfire.RUN, "grace": timedelta(hours=6),
        "overlap": Overlap.SKIP, "created_at": BEGAN, "since": BEGAN,
    }  # fmt: skip
    return Schedule(cron=cron, tz=tz, **{**terms, **facts})


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def coming(cron: str, tz: str, after: str, number: int) -> list[str]:
    """The next nights, as `date: instant in UTC`."""
    found, at = [], utc(after)
    for _ in range(number):
        one = schedule_times.next_due(schedule(cron, tz), at)
        assert one is not None
        found.append(f"{one.night:%m-%d}: {one.at:%m-%d %H:%M}")
        at = one.at
    return found


DST = {
    "spring, a time that is not there": (
        "30 2 * * *", "Europe/Berlin", "2026-03-28 00:00",
        ["03-28: 03-28 01:30", "03-29: 03-29 01:30", "03-30: 03-30 00:30"],
    ),
    "autumn, a time that is there twice": (
        "30 2 * * *", "Europe/Berlin", "2026-10-24 00:00",
        ["10-24: 10-24 00:30", "10-25: 10-25 00:30", "10-26: 10-26 01:30"],
    ),
    "New York, spring": (
        "15 2 * * *", "America/New_York", "2026-03-07 00:00",
        ["03-07: 03-07 07:15", "03-08: 03-08 07:15", "03-09: 03-09 06:15"],
    ),
    "New York, autumn": (
        "15 1 * * *", "America/New_York", "2026-10-31 00:00",
        ["10-31: 10-31 05:15", "11-01: 11-01 05:15", "11-02: 11-02 06:15"],
    ),
    "Lord Howe moves by half an hour, spring": (
        "10 2 * * *", "Australia/Lord_Howe", "2026-10-02 16:00",
        ["10-04: 10-03 15:40", "10-05: 10-04 15:10"],
    ),
    "Lord Howe, autumn": (
        "45 1 * * *", "Australia/Lord_Howe", "2026-04-03 16:00",
        ["04-05: 04-04 14:45", "04-06: 04-05 15:15"],
    ),
    "month ends": (
        "0 22 last * *", "UTC", "2028-01-31 22:00",
        ["02-29: 02-29 22:00", "03-31: 03-31 22:00", "04-30: 04-30 22:00"],
    ),
    "the 31st, where there is one": (
        "0 22 31 * *", "UTC", "2026-01-31 22:00", ["03-31: 03-31 22:00", "05-31: 05-31 22:00"],
    ),
    "leap days": ("0 22 29 2 *", "UTC", "2026-01-01 00:00", ["02-29: 02-29 22:00"]),
    "cron's Sunday is 0": ("0 22 * * 0", "UTC", "2026-11-20 00:00", ["11-22: 11-22 22:00", "11-29: 11-29 22:00"]),
    "and 7": ("0 22 * * 7", "UTC", "2026-11-20 00:00", ["11-22: 11-22 22:00", "11-29: 11-29 22:00"]),
    "the working week": (
        "0 22 * * 1-5", "UTC", "2026-11-20 00:00", ["11-20: 11-20 22:00", "11-23: 11-23 22:00"],
    ),
    "names, over Sunday": (
        "0 22 * * FRI-sun", "UTC", "2026-11-19 00:00",
        ["11-20: 11-20 22:00", "11-21: 11-21 22:00", "11-22: 11-22 22:00", "11-27: 11-27 22:00"],
    ),
    "every second weekday from Sunday": (
        "0 22 * * */2", "UTC", "2026-11-22 00:00",
        ["11-22: 11-22 22:00", "11-24: 11-24 22:00", "11-26: 11-26 22:00", "11-28: 11-28 22:00"],
    ),
    "a list": ("0 22 * * sun,3", "UTC", "2026-11-22 00:00", ["11-22: 11-22 22:00", "11-25: 11-25 22:00"]),
    "Sunday alone, as a range": (
        "0 22 * * 0-0", "UTC", "2026-11-22 00:00", ["11-22: 11-22 22:00", "11-29: 11-29 22:00"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cron", "tz", "after", "expected"), DST.values(), ids=DST.keys())
def test_when_nights_are_due(cron: str, tz: str, after: str, expected: list[str]) -> None:
    cron_expressions.check_cron(cron)
    assert coming(cron, tz, after, len(expected)) == expected


@pytest.mark.slow
@given(
    tz=st.sampled_from(ZONES),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    start=st.integers(0, 20 * 365 * 1440),
    steps=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
)
def test_every_date_has_one_night_however_often_it_is_looked(
    tz: str, hour: int, minute: int, start: int, steps: list[int]
) -> None:
    """Looking at any moments gives each date once, in order; the time is what cron says, but where clocks skip it."""
    began = now = utc("2010-01-01") + timedelta(minutes=start)
    one = schedule(f"{minute} {hour} * * *", tz, since=began)
    found: list[DueNight] = []
    for step in steps:
        now += timedelta(minutes=step)
        found += schedule_times.due(one, now, {night.key for night in found})
    zone = ZoneInfo(tz)
    assert [night.night for night in found] == sorted({night.night for night in found})
    assert [night.at for night in found] == sorted(night.at for night in found)
    for night in found:
        hands = datetime.combine(night.night, time(hour, minute))
        assert began < night.at <= now
        there = hands.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == hands
        assert not there or night.at.astimezone(zone).replace(tzinfo=None) == hands
    local = [began.astimezone(zone).date() + timedelta(days=days) for days in range((now - began).days + 1)]
    assert set(local[1:-1]) <= {night.night for night in found}


def test_a_clock_that_was_set_back_makes_no_night_again() -> None:
    one = schedule(tz="UTC", since=utc("2026-11-20 12:00"))
    first = schedule_times.due(one, utc("2026-11-21 22:30"), ())
    assert [night.night.day for night in first] == [20, 21]
    assert schedule_times.due(one, utc("2026-11-20 22:30"), {night.key for night in first}) == []
    later = schedule_times.due(one, utc("2026-11-22 22:30"), {(date(2026, 11, 21), "")})
    assert [night.night.day for night in later] == [20, 22]


def test_nights_of_long_ago_and_of_before_the_schedule_are_not_due() -> None:
    assert len(schedule_times.due(schedule(tz="UTC"), utc("2026-11-21 21:00"), ())) == 31
    assert schedule_times.due(schedule(tz="UTC", since=utc("2026-11-21 22:00")), utc("2026-11-22 21:59"), ()) == []
    assert schedule_times.due(schedule(tz="UTC", since=utc("2027-01-01 00:00")), utc("2026-11-22 21:59"), ()) == []


def test_which_night_a_moment_belongs_to() -> None:
    every = schedule(tz="Europe/Berlin")
    assert last(every, "2026-11-21 20:59") == "2026-11-20"
    assert last(every, "2026-11-21 21:00") == "2026-11-21"
    assert last(every, "2026-11-22 12:00") == "2026-11-21"
    assert last(schedule("0 22 1 * *", "UTC"), "2026-11-21 20:59") == "2026-11-01"
    assert last(schedule("0 22 1 1 *", "UTC"), "2026-11-21 20:59") == "2026-01-01"
    assert last(schedule("*/20 * * * *", "UTC"), "2026-11-21 20:59") == "2026-11-21 20:40"
    assert schedule_times.last_due(schedule("0 22 29 2 *", "UTC"), utc("2026-11-21 20:59")) is None


def last(one: Schedule, moment: str) -> str:
    found = schedule_times.last_due(one, utc(moment))
    assert found is not None
    return found.name


OFTEN = {
    "every hour": (
        "0 * * * *", "2026-11-21 20:30", 3, ["21 22:00: 21:00", "21 23:00: 22:00", "22 00:00: 23:00"],
    ),
    "every hour, over an hour that is there twice": (
        "0 * * * *", "2026-10-24 23:30", 4,
        ["25 02:00: 00:00", "25 02:00+: 01:00", "25 03:00: 02:00", "25 04:00: 03:00"],
    ),
    "every hour, over an hour that is not there": (
        "0 * * * *", "2026-03-28 23:30", 3, ["29 01:00: 00:00", "29 03:00: 01:00", "29 04:00: 02:00"],
    ),
    "every half hour, over an hour that is there twice": (
        "*/30 * * * *", "2026-10-24 23:30", 5,
        ["25 02:00: 00:00", "25 02:30: 00:30", "25 02:00+: 01:00", "25 02:30+: 01:30", "25 03:00: 02:00"],
    ),
    "twice a day at its hours: each once, whatever clocks do": (
        "30 2,14 * * *", "2026-10-24 23:30", 3, ["25 02:30: 00:30", "25 14:30: 13:30", "26 02:30: 01:30"],
    ),
    "twice a day, one of them at a time that is not there": (
        "30 2,14 * * *", "2026-03-28 23:30", 2, ["29 02:30: 01:30", "29 14:30: 12:30"],
    ),
    "in the working hours": (
        "0 8-17/3 * * mon-fri", "2026-11-20 12:30", 3, ["20 14:00: 13:00", "20 17:00: 16:00", "23 08:00: 07:00"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cron", "after", "number", "expected"), OFTEN.values(), ids=OFTEN.keys())
def test_several_runs_a_day(cron: str, after: str, number: int, expected: list[str]) -> None:
    cron_expressions.check_cron(cron)
    one, at, found = schedule(cron), utc(after), list[DueNight]()
    while len(found) < number:
        coming = schedule_times.next_due(one, at)
        assert coming is not None
        found.append(coming)
        at = coming.at
    assert [f"{due.night:%d} {due.slot}: {due.at:%H:%M}" for due in found] == expected
    known = {due.key for due in found}
    assert len(known) == number
    later = schedule(cron, since=utc(after), grace=timedelta(days=5))
    assert schedule_times.due(later, found[-1].at, ()) == found
    assert schedule_times.due(later, found[-1].at, known) == []


@given(
    start=st.integers(0, 20 * 365 * 1440), tz=st.sampled_from(ZONES), steps=st.lists(st.integers(1, 600), max_size=9)
)
def test_what_comes_every_hour_comes_every_hour(start: int, tz: str, steps: list[int]) -> None:
    """However often it is looked, and whatever clocks do: an hour apart, each once (a zone may move by less)."""
    began = now = utc("2010-01-01") + timedelta(minutes=start)
    one, found = schedule("0 * * * *", tz, since=began), list[DueNight]()
    for step in steps:
        now += timedelta(minutes=step)
        found += schedule_times.due(one, now, {due.key for due in found})
    at = [due.at for due in found]
    assert at == sorted(at)
    assert len({due.key for due in found}) == len(found)
    if tz != "Australia/Lord_Howe":
        assert {after - before for before, after in pairwise(at)} <= {timedelta(hours=1)}


def test_runs_that_nobody_was_there_for_are_not_recorded_without_end() -> None:
    found = schedule_times.due(schedule("* * * * *", "UTC"), utc("2026-11-21 21:00"), ())
    assert (len(found), found[-1].name) == (schedule_times.MOST_MISSED, "2026-11-21 21:00")


@pytest.mark.long
def test_a_night_that_never_comes_is_not_waited_for() -> None:
    assert schedule_times.next_due(schedule("0 22 31 2 *", "UTC"), BEGAN) is None


BAD_CRON = {
    "0 22 * *": "has 4 fields, not 5",
    "22:00": "has 1 field, not 5",
    "0 22 * * * *": "has 6 fields, not 5",
    "61 * * * *": "is not a cron expression: '61' is not a valid minute; write 0-59, a list or range of these, ",
    "0 25 * * *": "is not a cron expression: '25' is not a valid hour; write 0-23, ",
    "0 22 1-32 * *": "is not a cron expression: '1-32' is not a valid day; write 1-31, ",
    "0 22 1 13 *": "is not a cron expression: '13' is not a valid month; write 1-12, ",
    "x 22 * * *": "is not a cron expression: 'x' is not a valid minute; write 0-59, ",
    "0 22 * * 8": 'is not a cron expression: "8" is not a day of the week',
    "0 22 * * mon-": 'is not a cron expression: "mon-" is not a day of the week',
    "0 22 * * 5-1": 'is not a cron expression: "5-1" ends before it begins',
    "0 22 31 2 *": "never comes",
    "0 22 1 * 1": "names a day of the month and a day of the week",
}


@pytest.mark.parametrize(("cron", "problem"), BAD_CRON.items())
def test_a_cron_that_means_no_nights_is_told(cron: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        cron_expressions.check_cron(cron)


def test_a_zone_that_is_none_is_told_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean Europe/Berlin"):
        zone_of("Europe/Berln")
    for name in ("", "../etc/passwd", "qqqqqq"):
        with pytest.raises(InputError, match="is not a time zone; write one such as"):
            zone_of(name)


def test_lengths_of_time() -> None:
    assert cron_expressions.length("90m") == timedelta(minutes=90)
    assert cron_expressions.length("31d") == timedelta(days=31)
    for text in ("0h", "32d", "6", "h", "-6h", "6 weeks", ""):
        with pytest.raises(InputError, match="is not a length of time"):
            cron_expressions.length(text)


DEADLINES = {
    "06:00 is the next one after the night's time": ("06:00", "2026-11-21 21:00", "2026-11-22 05:00"),
    "the same minute is the next day's": ("22:00", "2026-11-21 21:00", "2026-11-22 21:00"),
    "later the same evening": ("23:30", "2026-11-21 21:00", "2026-11-21 22:30"),
    "by the hands of the clock in a night that is longer": ("06:00", "2026-10-24 20:00", "2026-10-25 05:00"),
    "and by the length, where it is one": ("8h", "2026-10-24 20:00", "2026-10-25 04:00"),
    "of two 02:30 the first to come": ("02:30", "2026-10-24 20:00", "2026-10-25 00:30"),
    "half hours": ("1.5h", "2026-11-21 21:00", "2026-11-21 22:30"),
    "a time by itself, where clocks are the schedule's": ("2026-12-01T06:00", "2026-11-21 21:00", "2026-12-01 05:00"),
    "or its own": ("2026-12-01T06:00Z", "2026-11-21 21:00", "2026-12-01 06:00"),
}


@pytest.mark.parametrize(("text", "due_at", "expected"), DEADLINES.values(), ids=DEADLINES.keys())
def test_a_deadline_counts_from_when_the_night_is_due(text: str, due_at: str, expected: str) -> None:
    assert schedule_times.deadline_at(text, utc(due_at), ZoneInfo("Europe/Berlin")) == utc(expected)


def test_a_deadline_that_is_none_is_told() -> None:
    for text in ("25:00", "soon", "06:00:00:00"):
        with pytest.raises(InputError, match="is not a deadline"):
            schedule_times.deadline_at(text, BEGAN, ZoneInfo("UTC"))
    for text in ("25:00", "2026-12-01T06:00", "x"):
        with pytest.raises(InputError, match="is not a deadline"):
            schedule_times.check_deadline(text)
    schedule_times.check_deadline("06:00")
    schedule_times.check_deadline("8h")


DUE_AT = utc("2026-11-21 22:00")
NIGHT = DUE_AT.date()


def judged(now: str, *, terms: dict[str, Any] | None = None, **facts: Any) -> tuple[NightState, str]:
    at = utc(f"2026-{now}")
    given = {"found_at": at, "newest": DueNight(NIGHT, DUE_AT), "deadline": None, "running": None, **facts}
    found = schedule_times.verdict(schedule(tz="UTC", **(terms or {})), DueNight(NIGHT, DUE_AT), at, **given)
    return found.state, found.reason


SKIP, WAIT = {"misfire": Misfire.SKIP}, {"overlap": Overlap.WAIT}
VERDICTS: dict[str, tuple[str, dict[str, Any], NightState, str]] = {
    "on time": ("11-21 22:00", {}, NightState.RUNNING, "on time"),
    "a few minutes are nothing": ("11-21 22:15", {"terms": SKIP}, NightState.RUNNING, "on time"),
    "late, and run": ("11-22 03:00", {}, NightState.RUNNING, "started 5 h late"),
    "late, and skipped": ("11-22 03:00", {"terms": SKIP}, NightState.SKIPPED, "found 5 h late"),
    "found in time, begun late: not what is skipped": (
        "11-22 03:00", {"terms": SKIP, "found_at": DUE_AT}, NightState.RUNNING, "started 5 h late"),
    "past the grace": ("11-22 04:00", {}, NightState.MISSED, "not started 6 h after it was due; the grace is 6 h"),
    "past the grace, whatever the rule": ("11-22 04:00", {"terms": SKIP}, NightState.MISSED, "the grace is 6 h"),
    "before the deadline": ("11-22 03:00", {"deadline": utc("2026-11-22 03:01")}, NightState.RUNNING, "started"),
    "past the deadline": (
        "11-22 03:00", {"deadline": utc("2026-11-22 03:00")}, NightState.MISSED, "not started by its deadline"),
    "another night has come": (
        "11-22 03:00", {"newest": DueNight(date(2026, 11, 22), utc("2026-11-22 02:00"))}, NightState.MISSED,
        "not started before the night of 2026-11-21 was due: only the newest"),
    "another run of the day has come": (
        "11-21 23:00", {"newest": DueNight(NIGHT, utc("2026-11-21 23:00"), "23:00")}, NightState.MISSED,
        "not started before the night of 2026-11-21 23:00 was due"),
    "a clock set back": ("11-21 21:00", {}, NightState.RUNNING, "on time"),
    "a job still going": ("11-21 22:00", {"running": "j-1"}, NightState.SKIPPED, "job j-1 of the same file"),
    "a job still going, and waited for": (
        "11-22 03:00", {"running": "j-1", "terms": WAIT, "found_at": DUE_AT}, NightState.DUE, "waits for job j-1"),
    "waited for too long": (
        "11-22 04:00", {"running": "j-1", "terms": WAIT, "found_at": DUE_AT}, NightState.MISSED,
        "not started 6 h after it was due, waiting for j-1"),
}  # fmt: skip


@pytest.mark.parametrize(("now", "facts", "state", "reason"), VERDICTS.values(), ids=VERDICTS.keys())
def test_what_becomes_of_a_night(now: str, facts: dict[str, Any], state: NightState, reason: str) -> None:
    found = judged(now, **facts)
    assert found[0] is state
    assert reason in found[1]


def test_how_instants_are_told() -> None:
    one = schedule()
    assert schedule_times.local(one, utc("2026-11-21 21:00")) == "Sat 2026-11-21 22:00"
    assert (
        schedule_times.ahead(one, utc("2026-11-21 21:00"), utc("2026-11-21 18:00")) == "Sat 2026-11-21 22:00, in 3 h"
    )
