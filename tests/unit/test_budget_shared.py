"""Budgets that jobs share: when their periods begin and end, and that no order of events takes one past its mark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.core.errors import InputError, RefusedError
from orchestrator.policy import budgets
from orchestrator.policy.budgets import BudgetMark, BudgetStanding, Period, period_at
from orchestrator.settings import config
from orchestrator.settings.config import Budget
from orchestrator.settings.discovery import Place

ZONES = (
    "UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata", "Asia/Beirut",
    "Australia/Lord_Howe", "Pacific/Apia",
)  # fmt: skip
NIGHT = {"period": "night"}
FIRST = datetime(2005, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def budget(period: str = "month", **terms: object) -> Budget:
    return Budget.model_validate({"name": "legal", "amount": 100, "period": period, **terms})


def at(text: str, zone: str = "Europe/Berlin") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize(
    ("terms", "now", "zone", "starts", "ends"),
    [
        ({}, "2026-11-21T03:00", "Europe/Berlin", "2026-11-01T00:00+01:00", "2026-12-01T00:00+01:00"),
        ({}, "2026-12-31T23:59", "Europe/Berlin", "2026-12-01T00:00+01:00", "2027-01-01T00:00+01:00"),
        ({}, "2028-02-29T12:00", "Europe/Berlin", "2028-02-01T00:00+01:00", "2028-03-01T00:00+01:00"),
        ({}, "2026-10-31T23:00", "Europe/Berlin", "2026-10-01T00:00+02:00", "2026-11-01T00:00+01:00"),
        (NIGHT, "2026-11-21T11:59", "Europe/Berlin", "2026-11-20T12:00+01:00", "2026-11-21T12:00+01:00"),
        (NIGHT, "2026-11-21T12:00", "Europe/Berlin", "2026-11-21T12:00+01:00", "2026-11-22T12:00+01:00"),
        (NIGHT, "2026-03-29T03:00", "Europe/Berlin", "2026-03-28T12:00+01:00", "2026-03-29T12:00+02:00"),
        (NIGHT, "2026-10-25T03:00", "Europe/Berlin", "2026-10-24T12:00+02:00", "2026-10-25T12:00+01:00"),
        (
            {"period": "night", "night_starts": "02:30"}, "2026-03-29T03:20", "Europe/Berlin",
            "2026-03-28T02:30+01:00", "2026-03-29T03:30+02:00",
        ),
        (
            {"period": "night", "night_starts": "02:30"}, "2026-10-25T02:40", "Europe/Berlin",
            "2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00",
        ),
        (
            NIGHT, "2011-12-29T13:00", "Pacific/Apia",
            "2011-12-29T12:00-10:00", "2011-12-31T12:00+14:00",
        ),
    ],
    ids=["month", "year's end", "leap day", "clocks go back", "before noon", "noon", "short night", "long night",
         "a start in the gap", "a start shown twice", "a day left out"],
)  # fmt: skip
def test_a_period_goes_by_local_clocks(terms: dict[str, str], now: str, zone: str, starts: str, ends: str) -> None:
    found = period_at(budget(**{"period": "month", **terms}), at(now, zone), ZoneInfo(zone))
    assert (found.starts, found.ends) == (datetime.fromisoformat(starts), datetime.fromisoformat(ends))
    assert found.renews == f"{datetime.fromisoformat(ends):%Y-%m-%d %H:%M}"


@given(
    now=st.integers(0, 35 * 366 * 86_400).map(lambda seconds: FIRST + timedelta(seconds=seconds)),
    zone=st.sampled_from(ZONES),
    period=st.sampled_from(["night", "month"]),
    starts=st.times(),
)
def test_periods_follow_each_other_without_gap_or_overlap(
    now: datetime, zone: str, period: str, starts: object
) -> None:
    terms = budget(period, **({"night_starts": starts} if period == "night" else {}))
    here = ZoneInfo(zone)
    found = period_at(terms, now, here)
    assert found.starts <= now < found.ends
    assert period_at(terms, found.starts, here) == period_at(terms, found.ends - MICROSECOND, here) == found
    assert period_at(terms, found.ends, here).starts == found.ends
    # Clocks are moved by an hour, a month has 28 to 31 days; Samoa left out a whole one.
    days = (found.ends - found.starts) / timedelta(days=1)
    assert (0.9 < days < 1.1 or (zone == "Pacific/Apia" and days < 2.1)) if period == "night" else 26.9 < days < 31.1


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_without_a_zone_it_is_this_machines(in_berlin: None) -> None:
    for now in ("2026-03-29T12:00", "2026-10-25T01:00", "2026-11-30T23:30"):
        for period in ("night", "month"):
            machine = period_at(budget(period), at(now))
            named = period_at(budget(period), at(now), ZoneInfo("Europe/Berlin"))
            assert machine == named


NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
NOVEMBER = Period(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC), "2026-12-01 00:00")


def standing(spent: str = "0", flying: str = "0", unbounded: str | None = None, **terms: object) -> BudgetStanding:
    return BudgetStanding(budget(**terms), NOVEMBER, Decimal(spent), Decimal(flying), unbounded)  # type: ignore[arg-type]


UNKNOWN = "c-1.001 is in flight, with unlimited answers"
HELD = (
    "this batch may cost up to $20.01, and $50.00 of the $100.00 of budget legal for the month is spent, up to "
    "$30.00 more in flight; it continues when batches settle for less, or when the budget renews at 2026-12-01 00:00"
)
ROOM = {
    "it fits exactly": (standing("50", "30"), "20", None),
    "it does not": (standing("50", "30"), "20.0001", HELD),
    "it costs nothing": (standing("100", "30", UNKNOWN), "0", None),
    "beside what has no bound": (standing(unbounded=UNKNOWN), "1", f"budget legal: {UNKNOWN}; this batch waits"),
    "above the stop mark": (standing("40", stop_at=0.5), "11", "of budget legal for the month, stopped at 50%"),
}


@pytest.mark.parametrize(("stands", "wanted", "told"), ROOM.values(), ids=ROOM.keys())
def test_a_batch_goes_when_all_that_flies_fits(stands: BudgetStanding, wanted: str, told: str | None) -> None:
    found = budgets.no_room(stands, Decimal(wanted))
    assert found is told if told is None else told in str(found)


def test_a_batch_that_fits_into_no_period_is_refused() -> None:
    told = r"up to \$50\.01, more than the \$100\.00 of budget legal for the month, stopped at 50% ever allows"
    with pytest.raises(RefusedError, match=told):
        budgets.no_room(standing(stop_at=0.5), Decimal("50.01"))


STOPS = (
    "budget legal reached: $99.00 of the $100.00 of budget legal for the month is spent, up to $1.00 more in flight"
)


HOURS = {
    "room to stop": (standing("98", "1"), "0.9", None, None),
    "no more": (standing("98", "1"), "1", "reached", "reached"),
    "nothing left": (standing("99", "1"), "0", STOPS, STOPS),
    "what has no bound only keeps it from starting": (standing(unbounded=UNKNOWN), "1", UNKNOWN, None),
}


@pytest.mark.parametrize(("stands", "more", "start", "stop"), HOURS.values(), ids=HOURS.keys())
def test_what_is_paid_by_the_hour_ends_while_stopping_still_fits(
    stands: BudgetStanding, more: str, start: str | None, stop: str | None
) -> None:
    for told, said in (
        (start, budgets.no_time(stands, Decimal(more))),
        (stop, budgets.used_up(stands, Decimal(more))),
    ):
        assert said is told if told is None else told in str(said)


@pytest.mark.parametrize(
    ("stands", "mark", "told"),
    [
        (standing("79.99"), BudgetMark.OK, None),
        (
            standing("80"),
            BudgetMark.WARNING,
            "until 2026-12-01 00:00: $80.00 of the $100.00 of budget legal for the month is spent",
        ),
        (standing("10", "90"), BudgetMark.STOPPED, None),
        (standing("0", unbounded=UNKNOWN), BudgetMark.STOPPED, None),
        (standing("50", stop_at=0.5, warn_at=0.5), BudgetMark.STOPPED, "(50%)"),
    ],
    ids=["below", "at its mark", "all in flight", "nobody knows", "at its stop"],
)
def test_marks_and_the_words_for_them(stands: BudgetStanding, mark: BudgetMark, told: str | None) -> None:
    found = budgets.warning(stands)
    assert stands.mark is mark
    assert found is None if told is None else told in str(found)
    assert budgets.warning_code(stands) == budgets.warning_code(replace(stands, spent=Decimal(99)))


Move = tuple[str, int, int]
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 130), st.just(0)),
        st.tuples(st.just("settle"), st.integers(0, 20), st.integers(0, 100)),
        st.tuples(st.just("wait"), st.integers(1, 80), st.just(0)),
    ),
    max_size=60,
)


@given(moves=MOVES, period=st.sampled_from(["night", "month"]), stop_at=st.sampled_from(["0.5", "1"]))
def test_no_period_is_overspent_and_each_new_one_is_free(moves: list[Move], period: str, stop_at: str) -> None:
    """Batches are sent as the budget lets them and settle for any part of their bound, while the clock goes on."""
    terms, now = budget(period, stop_at=stop_at), NOW
    flying: list[int] = []
    booked: dict[datetime, Decimal] = {}
    for what, number, share in moves:
        stands_in = period_at(terms, now, UTC)
        spent = booked.get(stands_in.starts, Decimal(0))
        stands = BudgetStanding(terms, stands_in, spent, Decimal(sum(flying)))
        if what == "wait":
            now += timedelta(hours=number)
        elif what == "settle" and flying:
            cost = Decimal(flying.pop(number % len(flying)) * share) / 100
            booked[stands_in.starts] = spent + cost
        elif what == "send":
            if number > stands.cap:
                with pytest.raises(RefusedError):
                    budgets.no_room(stands, Decimal(number))
                continue
            held = budgets.no_room(stands, Decimal(number))
            assert (held is None) is (number <= stands.left)
            if held is None:
                flying.append(number)
            else:
                anew = BudgetStanding(terms, period_at(terms, stands_in.ends, UTC), Decimal(0), Decimal(0))
                assert budgets.no_room(anew, Decimal(number)) is None, "what fits at all fits once it renews"
        assert all(cost <= stands.cap for cost in booked.values())
        assert booked.get(period_at(terms, now, UTC).starts, Decimal(0)) + sum(flying) <= stands.cap


def load(folder: Path, text: str) -> tuple[Budget, ...]:
    path = folder / "orch.toml"
    path.write_text(text)
    return config.load(Place(path, folder, "sqlite:///x", 1.0)).budgets


LEGAL = '[[budgets]]\nname = "legal"\namount = 120.00\nperiod = "month"\n'
NIGHTLY = LEGAL.replace("month", "night")


def test_what_orch_toml_says_of_budgets(tmp_path: Path) -> None:
    more = '[[budgets]]\nname = "night"\namount = 5\nperiod = "night"\nnight_starts = "18:30"\ntag = "team=a=b"\n'
    legal, night = load(tmp_path, LEGAL + more + "warn_at = 0.5\nstop_at = 0.9\n")
    assert (legal.amount, legal.key_value, legal.warn_at, legal.stop_at) == (120, None, Decimal("0.8"), 1)
    assert (str(night.night_starts), night.key_value) == ("18:30:00", ("team", "a=b"))
    assert (night.warn_at, night.stop_at) == (Decimal("0.5"), Decimal("0.9"))
    assert load(tmp_path, "") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LEGAL + LEGAL, "budgets: several budgets are named legal: names must be unique"),
        (LEGAL + 'tag = "legal"\n', "budgets[0].tag: "),
        (LEGAL + "warn_at = 0.9\nstop_at = 0.8\n", "budgets[0]: warn_at = 0.9 is never reached"),
        (LEGAL + "stop_at = 1.1\n", "budgets[0].stop_at: "),
        (LEGAL + 'night_starts = "12:00"\n', 'budgets[0]: night_starts is for `period = "night"`'),
        (NIGHTLY + 'night_starts = "12:00+01:00"\n', "budgets[0]: night_starts is local time"),
        (NIGHTLY + "night_starts = 22\n", "budgets[0].night_starts: 22 is not a time of day"),
        (LEGAL.replace("month", "week"), "budgets[0].period: "),
        (LEGAL.replace("120.00", "0"), "budgets[0].amount: "),
        (LEGAL + "stops_at = 1\n", "budgets[0].stops_at: unknown field"),
    ],
    ids=["a name twice", "half a tag", "a warning too late", "more than all", "a month's start", "an offset",
         "seconds", "a week", "nothing", "a slip"],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as raised:
        load(tmp_path, text)
    assert told in str(raised.value)
    assert raised.value.line is not None
