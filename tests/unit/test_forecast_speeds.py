"""An engine's speed is learned as what it is: it differs by night and hour, stands still, dies, and comes back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.forecast import BENCH, STATED, Assumed, Pace, Stint, learn, pace

NIGHT = datetime(2026, 11, 21, 20, tzinfo=UTC)
MINUTE, HOUR = 60.0, 3600.0
UNKNOWN = Assumed(1.0, 1.0)
Rate = Callable[[int, float], float]
"""Rows a second, by the night (1 is last night) and the hours since it began."""


def night(rate: Callable[[float], float], days: int, hours: float = 8.0, tokens: float = 0.0) -> list[Stint]:
    """A night so many days ago, looked at every five minutes."""
    begin, found = NIGHT - timedelta(days=days), []
    for step in range(int(hours * 12)):
        rows = rate(step / 12) * 300.0
        at = begin + timedelta(minutes=5 * step)
        found.append(Stint(at, at + timedelta(minutes=5), rows, rows * tokens))
    return found


def nights(rate: Rate, count: int, hours: float = 8.0) -> list[Stint]:
    """So many nights, the last of them yesterday."""
    found: list[Stint] = []
    for days in range(count, 0, -1):
        found += night(lambda hour, days=days: rate(days, hour), days, hours)  # type: ignore[misc]
    return found


def usual(stints: list[Stint], now: datetime = NIGHT, **more: object) -> Pace:
    return pace(learn(stints, now), UNKNOWN, now=now, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_how_far_nights_differ_is_learned_from_all_of_them_and_not_from_the_last_few() -> None:
    """Thirty nights of a steady engine are surer than eight; one that drifts is as sure as what it did next."""
    chance = random.Random(4)
    steady = {days: chance.lognormvariate(0.0, 0.08) for days in range(1, 31)}
    few, many = (usual(nights(lambda days, _: steady[days], count)).spread for count in (8, 30))
    assert many < 0.85 * few
    assert 0.08 < many < 0.14
    drifts = usual(nights(lambda days, _: math.exp(0.08 * math.sin(days / 3.0)) * 1.02**days, 30)).spread
    assert 0.08 < drifts < 0.2
    jumps = usual(nights(lambda days, _: math.exp(0.3 * (days % 2)), 30)).spread
    assert jumps > 0.15


# --- a pace


def test_a_rate_that_nobody_has_seen_is_taken_as_told() -> None:
    told = pace(learn([], NIGHT), Assumed(4.0, 0.35, "stated"), now=NIGHT, ahead=100, start=30.0)
    assert (told.rate, told.spread, told.source, told.ahead, told.start) == (4.0, 0.35, "stated", 100, 30.0)
    assert not told.is_known


def rows_within(pace: Pace, seconds: float, chance: float = 0.5) -> float:
    """How many rows it does by then, second by second where its rate changes."""
    if seconds <= pace.start:
        return 0.0
    marks = sorted({pace.start, seconds, *(at for at, _ in pace.steps if pace.start < at < seconds)})
    done = 0.0
    for begin, end in pairwise(marks):
        factor = next((each for at, each in reversed(pace.steps) if at <= begin), 1.0)
        done += pace.rate * factor * (end - begin)
    return max(0.0, done * math.exp(-NormalDist().inv_cdf(chance) * pace.spread) - pace.ahead)


def test_a_queue_is_done_first() -> None:
    told = Pace(2.0, 0.2, "assumed", ahead=100, start=60.0)
    assert told.seconds_for(200) == pytest.approx(60 + 150)
    assert rows_within(told, 210) == pytest.approx(200)
    assert rows_within(told, 100) == 0.0
    assert told.seconds_for(200, 0.99) > told.seconds_for(200, 0.5)
    assert rows_within(told, 210, 0.99) < 200
    assert told.seconds_for(0) == 0.0


@given(
    st.floats(0.01, 100),
    st.floats(0.05, 1),
    st.integers(1, 10**6),
    st.floats(0.5, 0.999),
    st.sampled_from([(), ((600.0, 0.3), (5000.0, 1.0)), ((100.0, 2.0),)]),
)
def test_rows_and_seconds_are_each_others_inverse(
    rate: float, spread: float, rows: int, chance: float, steps: tuple[tuple[float, float], ...]
) -> None:
    told = Pace(rate, spread, "assumed", ahead=7, start=11.0, steps=steps)
    assert rows_within(told, told.seconds_for(rows, chance), chance) == pytest.approx(rows, rel=1e-6)


def test_what_it_does_today_says_more() -> None:
    known = Pace(2.0, 0.3, "from 60 nights", ahead=5, start=1.0)
    today = known.now(1.0, 1800)
    assert today.rate == pytest.approx(1.0, rel=0.1)
    assert today.spread < 0.15
    assert (today.source, today.ahead, today.start) == ("measured", 5, 1.0)
    assert known.now(1.0, 1).rate > 1.9
    assert Pace(0.0, 0.3, "measured as zero").now(3.0, 600).rate == pytest.approx(3.0)


@given(st.floats(0.05, 20.0), st.floats(0.05, 0.5))
def test_a_surprise_is_believed_upwards_as_well_as_down(factor: float, spread: float) -> None:
    """After ten minutes at another rate, what is expected is that far off the usual one on either side."""
    known = Pace(2.0, spread, "from 60 nights")
    up, down = known.now(2.0 * factor, 600), known.now(2.0 / factor, 600)
    assert up.rate / 2.0 == pytest.approx(2.0 / down.rate, rel=1e-6)
    assert up.spread == pytest.approx(down.spread)


def test_a_tier_that_comes_back_is_fast_again() -> None:
    """Weeks at 0.1 rows a second, and tonight ten times that: it is not taken for half of it."""
    assert Pace(0.1, 0.1, "from 60 nights").now(1.0, 600).rate == pytest.approx(1.0)


def test_what_stands_still_is_never_done() -> None:
    still = Pace(2.0, 0.3, "from 60 nights").now(0.0, 60)
    assert (still.rate, still.source) == (0.0, "measured as zero")
    assert still.seconds_for(1) == math.inf
    assert still.seconds_for(0) == 0.0
    assert rows_within(still, HOUR) == 0.0


# --- nights


@pytest.mark.slow
def test_rates_are_learned_with_their_spread() -> None:
    chance = random.Random(1)
    drawn = {spread: [chance.lognormvariate(math.log(2.0), spread) for _ in range(41)] for spread in (0.1, 0.5)}
    steady = usual(nights(lambda days, hour: drawn[0.1][days], 40))
    wild = usual(nights(lambda days, hour: drawn[0.5][days], 40))
    assert steady.rate == pytest.approx(2.0, rel=0.15)
    assert 0.08 < steady.spread < 0.22
    assert 0.35 < wild.spread < 0.8
    assert (steady.source, steady.is_known) == ("from 40 nights", True)
    assert usual(nights(lambda days, hour: 2.0, 2)).source == "from 2 nights, else assumed"


def test_one_slow_night_is_not_learned_for_good() -> None:
    """It makes nights like it thinkable, and says next to nothing of the others."""
    known = usual(nights(lambda days, hour: 0.1 if days == 2 else 2.0, 20))
    assert known.rate == pytest.approx(2.0, rel=0.1)
    assert known.spread < 0.2
    assert known.hazard > 10 * usual(nights(lambda days, hour: 2.0, 20)).hazard


def test_a_change_that_stays_is_followed_within_a_week_or_so() -> None:
    for since, off in ((2, 0.5), (8, 0.12)):
        known = usual(nights(lambda days, hour, since=since: 1.0 if days <= since else 2.0, 30))  # type: ignore[misc]
        assert abs(math.log(known.rate / 1.0)) == pytest.approx(0.0, abs=off + 0.2)


def test_users_who_come_at_an_hour_are_foreseen() -> None:
    """From two o'clock on it does 30 %; asked at ten in the evening, four hours before."""
    known = usual(nights(lambda days, hour: 2.0 if hour < 6 else 0.6, 4), NIGHT + timedelta(hours=2))
    assert known.rate == pytest.approx(2.0, rel=0.1)
    (at, factor), *_ = known.steps
    assert at == pytest.approx(4 * HOUR, abs=1.0)
    assert factor == pytest.approx(0.3, abs=0.1)
    assert rows_within(known, 6 * HOUR) == pytest.approx(2.0 * 4 * HOUR + 0.6 * 2 * HOUR, rel=0.12)
    assert known.hazard < 0.01, "what comes every night is not an outage"


@pytest.mark.parametrize(("before", "now"), [(6, 3), (3, 6)], ids=["earlier", "later"])
@pytest.mark.parametrize("since", [2, 3, 6])
def test_an_hour_that_moves_is_followed_after_two_nights(before: int, now: int, since: int) -> None:
    """Users came at one hour for weeks, and now come at another: the old hour is not averaged with it."""
    moved = nights(lambda days, hour: 2.0 if hour < (now if days <= since else before) else 0.6, 24)
    hours = learn(moved, NIGHT).hours
    slow = {hour for hour in range(8) if hours[(20 + hour) % 24] < 0.6}
    assert slow == set(range(now, 8)), "and neither hour is half of both"


def test_one_night_that_contradicts_weeks_moves_no_hour() -> None:
    odd = nights(lambda days, hour: 2.0 if hour < (3 if days <= 1 else 6) else 0.6, 24)
    assert learn(odd, NIGHT).hours == pytest.approx(
        learn(nights(lambda days, hour: 2.0 if hour < 6 else 0.6, 24), NIGHT).hours, abs=0.1
    )


def test_an_hour_that_was_slow_once_is_not_slow() -> None:
    known = usual(nights(lambda days, hour: 0.4 if days == 1 and hour > 6 else 2.0, 12))
    assert known.steps == ()


def test_an_engine_that_dies_now_and_then_is_known_for_it() -> None:
    """On every fourth night, after four hours."""
    known = usual(nights(lambda days, hour: 0.0 if days % 4 == 0 and hour >= 4 else 1.0, 24))
    assert known.rate == pytest.approx(1.0, rel=0.05)
    assert 0.5 * 0.036 < known.hazard < 2 * 0.036
    assert known.outage > 2 * HOUR
    sound = usual(nights(lambda days, hour: 1.0, 24))
    assert sound.hazard < 0.001


def test_flakiness_fades_once_it_is_mended() -> None:
    def outages(since: int) -> float:
        return usual(nights(lambda days, hour: 0.0 if days > since and 2 <= hour < 3 else 1.0, since + 8)).hazard

    assert outages(0) > 4 * outages(40)


def test_rows_are_weighed_by_their_tokens() -> None:
    """A night of short rows says of long ones how many tokens it does, not how many rows."""
    short = night(lambda hour: 10.0, 1, tokens=100.0)
    for tokens, rows in ((100.0, 10.0), (2000.0, 0.5)):
        known = pace(learn(short, NIGHT), UNKNOWN, now=NIGHT, tokens=tokens)
        assert known.rate == pytest.approx(rows, rel=0.05)
    other = [Stint(one.begin, one.end, one.rows, one.tokens, alike=0.0) for one in short]
    assert usual(other, tokens=100.0).spread > usual(short, tokens=100.0).spread


# --- tonight


def so_far(*rates: float) -> list[Stint]:
    """Minutes of this night, the last of them just over."""
    begin = NIGHT - timedelta(minutes=len(rates))
    return [
        Stint(begin + timedelta(minutes=number), begin + timedelta(minutes=number + 1), rate * MINUTE)
        for number, rate in enumerate(rates)
    ]


KNOWN = nights(lambda days, hour: 2.0, 20)


def tonight(*rates: float) -> Pace:
    begin = NIGHT + timedelta(minutes=0)
    return pace(learn(KNOWN, begin), UNKNOWN, today=so_far(*rates), now=begin)


def test_the_last_minutes_say_most() -> None:
    before = tonight(*[2.0] * 30).rate
    assert before == pytest.approx(2.0, rel=0.05)
    slowed = [tonight(*[2.0] * 30, *[0.6] * minutes).rate for minutes in (4, 8, 15)]
    assert slowed[0] < before
    assert slowed[1] < 1.2
    assert slowed[2] == pytest.approx(0.6, rel=0.35)


def stopped(known: list[Stint], unseen: float, answered: datetime | None = None) -> Pace:
    """The forecast so many minutes after an engine was last seen, which had stood still for five."""
    now = NIGHT + timedelta(minutes=unseen)
    return pace(learn(known, NIGHT), UNKNOWN, today=so_far(*[2.0] * 30, *[0.0] * 5), now=now, answered=answered)


def test_what_brings_nothing_for_minutes_stands_still() -> None:
    told = tonight(*[2.0] * 30, *[0.0] * 3)
    assert (told.rate, told.source) == (0.0, "measured as zero")
    assert tonight(*[2.0] * 30, *[0.0] * 3, 1.9, 2.0).rate > 1.0
    assert stopped(KNOWN, 0.0).hazard > tonight(*[2.0] * 30).hazard


def stands_for(minutes: int) -> list[Stint]:
    """Twenty nights of 2 rows a second, on each of which the engine stood still for so many minutes."""
    return nights(lambda days, hour: 0.0 if 3 <= hour < 3 + minutes / 60 else 2.0, 20)


@pytest.mark.parametrize("unseen", [1, 20, 25, 50])
def test_no_time_alone_makes_an_engine_well_again(unseen: float) -> None:
    """Nobody knows how long it stands, or it usually stands for hours."""
    for known in (KNOWN, stands_for(90)):
        assert stopped(known, unseen).rate == 0.0


def test_how_long_an_engine_usually_stands_still_says_how_sure_it_is_well_again() -> None:
    quick = [stopped(stands_for(10), unseen) for unseen in (1, 30, 120)]
    assert [one.rate > 1.0 for one in quick] == [False, True, True]
    assert 0.5 > quick[1].stands > quick[2].stands > 0.0


def test_an_answered_row_ends_a_standstill() -> None:
    answered = stopped(KNOWN, 3.0, NIGHT + timedelta(minutes=2))
    assert answered.rate == pytest.approx(2.0, rel=0.1)
    assert answered.stands == 0.0
    assert stopped(KNOWN, 3.0, NIGHT - timedelta(minutes=6)).rate == 0.0, "it was answered before"


def test_a_slow_engine_is_not_taken_for_a_dead_one() -> None:
    rare = nights(lambda days, hour: 0.01, 20)
    told = pace(learn(rare, NIGHT), UNKNOWN, today=so_far(*[0.01] * 20, 0.0, 0.0, 0.0), now=NIGHT)
    assert told.rate > 0.005


def test_a_first_night_is_unsure_until_it_runs() -> None:
    cold = pace(learn([], NIGHT), UNKNOWN, now=NIGHT)
    warm = pace(learn([], NIGHT), UNKNOWN, today=so_far(*[7.0] * 10), now=NIGHT)
    assert cold.spread == 1.0
    assert warm.rate == pytest.approx(7.0, rel=0.2)
    assert warm.spread < 0.3


@pytest.mark.parametrize("idle", [30, 45, 180, 600])
def test_what_an_engine_did_earlier_tonight_is_not_forgotten_while_it_is_idle(idle: int) -> None:
    """A few rows in the evening tell how fast the reroute of the small hours will be."""
    today = so_far(*[0.7] * 20)
    told = pace(learn([], NIGHT), Assumed(2.0, 1.0), today=today, now=NIGHT + timedelta(minutes=idle))
    assert told.rate == pytest.approx(0.7, rel=0.15)
    assert told.spread < 0.4


def test_what_nobody_used_for_long_is_known_less_and_a_probe_tells_more() -> None:
    """Ten nights at 2 rows a second, then none for two months but a probe at 0.6."""
    before = nights(lambda days, hour: 2.0, 10, hours=1.0)
    later = NIGHT + timedelta(days=60)
    fresh, stale = usual(before), usual(before, later)
    assert (fresh.rate, stale.rate) == (pytest.approx(2.0, rel=0.05), pytest.approx(2.0, rel=0.05))
    assert stale.spread > 1.2 * fresh.spread
    at = later - timedelta(days=1)
    probe = [Stint(at + timedelta(minutes=step), at + timedelta(minutes=step + 1), 36.0) for step in range(4)]
    probed = usual([*before, *probe], later)
    assert probed.rate < 1.2
    used = nights(lambda days, hour: 0.6 if days == 1 else 2.0, 10, hours=1.0)
    assert usual(used).rate > 1.4, "one night among many is not believed as it is"


def used_on(days: list[int], rate: Callable[[int], float]) -> Pace:
    """The forecast of an engine that worked for an hour so many days ago, each time."""
    rates = [(ago, rate(ago)) for ago in sorted(days, reverse=True)]
    return usual([one for ago, each in rates for one in night(lambda _, each=each: each, ago, hours=1.0)])  # type: ignore[misc]


def test_an_engine_that_nobody_used_for_a_fortnight_may_have_become_a_third_as_fast() -> None:
    """Its low rate is the one that a sole rescue is planned with: 99.7 % of nights reach it."""
    low = NormalDist().inv_cdf(0.01 / 3)
    fresh, stale = (used_on([since, since + 3, since + 9], lambda _: 2.0) for since in (1, 17))
    assert fresh.rate * math.exp(low * fresh.spread) > 0.9
    assert stale.rate * math.exp(low * stale.spread) < 2.0 / 3


def test_how_far_an_engine_changes_while_nobody_uses_it_is_learned() -> None:
    weekly = [8, 15, 22, 29, 36, 43]
    steady = used_on(weekly, lambda _: 2.0)
    unknown = used_on(weekly[:2], lambda _: 2.0)
    changes = used_on(weekly, lambda ago: 0.7 if ago // 7 % 2 else 2.0)
    assert steady.spread < 0.85 * unknown.spread
    assert changes.spread > 1.1 * steady.spread


@pytest.mark.parametrize("many", [1, 2, 10])
@pytest.mark.parametrize(
    "assumed", [Assumed(0.6, 1.0), Assumed(6.0, 0.35, "stated"), Assumed(2.5, 0.12, "from a bench")]
)
def test_what_idle_time_makes_unsure_is_as_sure_as_what_is_assumed_at_least(many: int, assumed: Assumed) -> None:
    """From night to night of idle time the forecast comes nearer to the assumed one, and never passes it."""
    before = nights(lambda days, hour: 2.0, many, hours=1.0)
    fresh = pace(learn(before, NIGHT), assumed, now=NIGHT)
    low, high = sorted((assumed.rate, fresh.rate))
    narrow, wide = sorted((assumed.spread, fresh.spread))
    apart = math.inf
    for idle in (1, 7, 14, 30, 60, 90, 150, 180, 365, 3650, 36_500):
        now = NIGHT + timedelta(days=idle)
        told = pace(learn(before, now), assumed, now=now)
        assert low * 0.999 <= told.rate <= high * 1.001
        assert narrow * 0.999 <= told.spread <= wide * 1.001
        now_apart = abs(math.log(told.rate / assumed.rate)) + abs(told.spread - assumed.spread)
        assert now_apart <= apart + 0.001
        apart = now_apart
    assert (told.rate, told.spread) == (pytest.approx(assumed.rate), pytest.approx(assumed.spread))


def test_nights_that_differ_widely_are_not_made_alike_by_what_is_assumed() -> None:
    """Fresh nights that say that a rate is wild are believed, whatever is stated."""
    chance = random.Random(3)
    drawn = [chance.lognormvariate(math.log(2.0), 0.8) for _ in range(31)]
    told = pace(learn(nights(lambda days, hour: drawn[days], 30), NIGHT), Assumed(2.0, 0.2, "stated"), now=NIGHT)
    assert told.spread > 0.5


# --- standstills


def test_a_night_that_stood_still_tells_no_speed_but_an_outage() -> None:
    """A few rows between two refusals are no rate: the piece that has them was mostly a standstill."""
    stated = Assumed(4.0, 0.35, "stated")
    refused = night(lambda hour: 0.12 if 1.0 <= hour < 1.08 else 0.0, 1, hours=2.0)
    told = pace(learn(refused, NIGHT), stated, now=NIGHT)
    assert told.rate == pytest.approx(4.0)
    assert told.hazard > 10 * pace(learn([], NIGHT), stated, now=NIGHT).hazard
    assert told.outage > 0.5 * HOUR


def test_what_borders_on_a_standstill_does_not_make_an_engine_slow() -> None:
    """Refusals begin and end in the middle of what was watched."""

    def rate(days: int, hour: float) -> float:
        step = round(hour * 12) % 6
        return {0: 0.0, 1: 3.0, 5: 3.2}.get(step, 5.0)

    assert usual(nights(rate, 12)).rate == pytest.approx(5.0, rel=0.05)


# --- what is told comes true


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize("many", [4, 12, 30])
@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_by_its_p95_it_is_done_on_nineteen_nights_of_twenty(many: int, spread: float) -> None:
    """Over a thousand nights of engines that differ from night to night and move within each."""
    chance = random.Random(f"{many} {spread}")
    by_p50 = by_p95 = 0
    homes = 200
    for _ in range(homes):
        mean = chance.lognormvariate(0.0, 1.0)
        levels = [mean * chance.lognormvariate(0.0, spread) for _ in range(many + 1)]
        told = usual(nights(lambda days, hour, levels=levels: levels[days], many, hours=2.0))  # type: ignore[misc]
        took = 5_000 * mean / levels[0]
        by_p50 += took <= told.seconds_for(5_000 * mean)
        by_p95 += took <= told.seconds_for(5_000 * mean, 0.95)
    assert 0.4 * homes <= by_p50 <= 0.6 * homes
    assert by_p95 >= 0.9 * homes


def test_an_engine_with_hours_does_nothing_outside_them() -> None:
    closed = Pace(1.0, 0.1, "measured", start=60.0).within(((HOUR, 1.0), (3 * HOUR, 0.0), (9 * HOUR, 1.0)))
    assert rows_within(closed, HOUR) == 0
    assert closed.seconds_for(600) == pytest.approx(HOUR + 60 + 600)
    # Two hours are not enough for it: the rest runs the next time.
    assert closed.seconds_for(2 * HOUR) == pytest.approx(9 * HOUR + 60)
    is_open = Pace(1.0, 0.1, "measured").within(((HOUR, 0.0), (5 * HOUR, 1.0)))
    assert is_open.seconds_for(1800) == pytest.approx(1800)
    assert is_open.seconds_for(2 * HOUR) == pytest.approx(6 * HOUR)
    assert rows_within(is_open, 4 * HOUR) == pytest.approx(HOUR)


@given(st.floats(0.1, 100.0), st.floats(1.0, 100_000.0), st.floats(0.0, 12.0))
def test_hours_never_make_it_faster(rate: float, rows: float, hours: float) -> None:
    steps = ((HOUR, 0.5), (2 * HOUR, 1.5))
    pace = Pace(rate, 0.1, "measured", steps=steps)
    within = pace.within(tuple((turn * 12 * HOUR + hours * HOUR + 1.0, float(turn % 2)) for turn in range(8)))
    assert within.seconds_for(rows) >= pace.seconds_for(rows) - 1e-6
    for limit in (HOUR, 10 * HOUR, 40 * HOUR):
        assert rows_within(within, limit) <= rows_within(pace, limit) + 1e-6


@given(st.floats(1e-4, 1e4), st.floats(0.05, 1.0), st.integers(1, 12))
def test_a_rate_measured_last_night_does_not_depend_on_a_guess(rate: float, spread: float, many: int) -> None:
    told = learn(nights(lambda days, hour: 2.0, many, hours=1.0), NIGHT)
    assert pace(told, Assumed(rate, spread), now=NIGHT).rate == pytest.approx(2.0)


# --- what somebody stated


def test_a_stated_rate_outlasts_a_night_and_a_guess_does_not() -> None:
    """Its first night was misread as a tenth of what it is, and is not believed as it stands."""
    first = learn(nights(lambda days, hour: 0.6, 1, hours=1.0), NIGHT)
    guessed = pace(first, Assumed(6.0, 1.0), now=NIGHT)
    stated = pace(first, Assumed(6.0, 0.35, STATED), now=NIGHT)
    benched = pace(first, Assumed(6.0, 0.15, BENCH), now=NIGHT)
    assert guessed.rate == pytest.approx(0.6)
    assert 0.6 < stated.rate < benched.rate < 6.0
    assert stated.spread > guessed.spread, "they contradict each other"
    same = pace(learn(nights(lambda days, hour: 6.0, 1, hours=1.0), NIGHT), Assumed(6.0, 0.35, STATED), now=NIGHT)
    assert same.spread < guessed.spread, "and here they confirm each other"


@given(st.floats(1e-3, 1e3), st.sampled_from([STATED, BENCH]))
def test_many_nights_outweigh_what_was_stated(rate: float, source: str) -> None:
    many = learn(nights(lambda days, hour: 2.0, 20, hours=1.0), NIGHT)
    assert pace(many, Assumed(rate, 0.2, source), now=NIGHT).rate == pytest.approx(2.0, rel=0.05)


# --- warm-ups


def warms(days: int, hour: float) -> float:
    """A quarter of the speed for half an hour."""
    return 1.0 if hour < 0.5 else 4.0


@pytest.mark.parametrize("count", [1, 3, 12])
def test_an_engine_that_warms_up_is_not_taken_as_slow_in_its_first_minutes(count: int) -> None:
    learned = learn(nights(warms, count), NIGHT)
    before = pace(learned, UNKNOWN, now=NIGHT, start=60.0)
    assert before.rate == pytest.approx(4.0, rel=0.1)
    full = 4.0 * (3 * HOUR - 60.0) - 3.0 * HOUR / 2
    assert rows_within(before, 3 * HOUR) == pytest.approx(full, rel=0.1)
    begun = night(lambda hour: warms(0, hour), 0, 0.25)
    now = begun[-1].end
    tonight = pace(learned, UNKNOWN, today=begun, now=now)
    assert tonight.rate > 2.0
    assert tonight.start == pytest.approx(0.75 * 15 * MINUTE, rel=0.4), "the rest of the warm-up is still to come"
    warm = night(lambda hour: warms(0, hour), 0, 2.0)
    assert pace(learned, UNKNOWN, today=warm, now=warm[-1].end).start == 0.0


def test_one_that_is_slow_all_night_is_slow_and_does_not_warm_up() -> None:
    learned = learn(nights(warms, 8), NIGHT)
    slow = night(lambda _: 1.0, 0, 1.5)
    tonight = pace(learned, UNKNOWN, today=slow, now=slow[-1].end)
    assert (tonight.rate, tonight.start) == (pytest.approx(1.0, rel=0.1), 0.0)


@pytest.mark.parametrize(
    "rate",
    [
        lambda days, _: 4.0,
        lambda days, hour: 4.0 if days % 3 else warms(days, hour),
        lambda days, hour: 4.0 if hour < 4 else 1.0,
        lambda days, hour: 0.0 if hour < 0.5 else 4.0,
    ],
    ids=["even", "slow at first on one night of three", "slow at last", "it stands still at first"],
)
def test_an_engine_is_not_said_to_warm_up_for_nothing(rate: Rate) -> None:
    assert usual(nights(rate, 12)).start == 0.0


def test_nights_that_end_in_the_warm_up_do_not_unlearn_it() -> None:
    stints = [
        one for days in range(12, 0, -1) for one in night(lambda hour: warms(0, hour), days, 6 if days > 9 else 0.2)
    ]
    assert usual(stints).start > 10 * MINUTE


def test_a_warm_up_that_lasts_longer_than_on_most_nights_is_none_the_less_one() -> None:
    """Half of the nights it takes 20 minutes, the others 40."""

    def of(days: int, hour: float) -> float:
        return 1.0 if hour < (40 if days % 2 else 20) / 60 else 4.0

    learned = learn(nights(of, 12), NIGHT)
    begun = night(lambda _: 1.0, 0, 38 / 60)
    assert pace(learned, UNKNOWN, today=begun, now=begun[-1].end).rate == pytest.approx(4.0, rel=0.15)
    slow = night(lambda _: 1.0, 0, 1.2)
    assert pace(learned, UNKNOWN, today=slow, now=slow[-1].end).rate == pytest.approx(1.0, rel=0.15)
    quick = night(lambda _: 4.0, 0, 0.3)
    assert pace(learned, UNKNOWN, today=quick, now=quick[-1].end).rate == pytest.approx(4.0, rel=0.15)


def test_an_engine_warms_up_again_after_a_pause() -> None:
    learned = learn(nights(warms, 12), NIGHT)
    first, again = night(lambda hour: warms(0, hour), 0, 1.0), night(lambda hour: warms(0, hour - 3), 0, 3.25)
    today = [*first, *(one for one in again if one.begin >= NIGHT + timedelta(hours=3))]
    tonight = pace(learned, UNKNOWN, today=today, now=today[-1].end)
    assert tonight.rate == pytest.approx(4.0, rel=0.15)
    assert tonight.start == pytest.approx(0.75 * 15 * MINUTE, rel=0.4)
