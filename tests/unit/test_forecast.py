"""Forecasts: careful before anything is known, one's own history afterwards, and what still runs counts rightly."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.policy.forecast import SeenBatch, output_lengths, turnaround
from tests.support.examples import ample

AT = datetime(2026, 11, 21, 20, tzinfo=UTC)
MINUTE, HOUR = 60.0, 3600.0


def nights(*seconds: float, ended: bool = True, rows: int = 1000) -> list[SeenBatch]:
    return [SeenBatch(AT - timedelta(days=day), each, ended, rows) for day, each in enumerate(seconds, 1)]


# --- how long answers are


LENGTHS = {
    "nothing seen": ({}, 500, (275.0, 250, 500), "assumed"),
    "one row": ({100: 1}, 500, (2850 / 11, 250, 500), "from 1 row, else assumed"),
    "some": ({100: 50}, 500, (7750 / 60, 100, 350), "from 50 rows, else assumed"),
    "many": ({100: 300, 200: 12}, 500, (35150 / 322, 100, 200), "from 312 rows"),
    "longer than asked for now": ({900: 1000}, 500, (502750 / 1010, 500, 500), "from 1,000 rows"),
}


@pytest.mark.parametrize(("seen", "most", "figures", "source"), LENGTHS.values(), ids=LENGTHS.keys())
def test_output_lengths(seen: dict[int, int], most: int, figures: tuple[float, int, int], source: str) -> None:
    told = output_lengths(seen, most)
    assert (told.mean, told.p50, told.p95) == pytest.approx(figures)
    assert told.source == source


@given(st.dictionaries(st.integers(0, 5000), st.integers(1, 1000), max_size=8), st.integers(1, 4096))
def test_no_answer_is_expected_to_be_longer_than_allowed(seen: dict[int, int], most: int) -> None:
    told = output_lengths(seen, most)
    assert 0 <= told.p50 <= told.p95 <= most
    assert 0 <= told.mean <= most


def test_the_mean_of_many_rows_is_surer_than_one_row() -> None:
    """Answers of 20 to 60 tokens: a thousand of them have 40 on the mean, not what one may have at most."""
    told = output_lengths({20: 500, 40: 1000, 60: 500}, 500)
    assert told.p95 == 60
    assert told.mean <= told.mean_p95(1000) < 48
    assert told.mean_p95(1) > told.mean_p95(1000)
    unknown = output_lengths({}, 500)
    assert unknown.mean_p95(1000) == 500, "of what nobody has seen, the mean may be anything"


@given(
    st.dictionaries(st.integers(0, 5000), st.integers(1, 1000), max_size=8),
    st.integers(1, 4096),
    st.integers(1, 9**6),
)
def test_the_mean_of_rows_is_between_what_is_usual_and_what_is_allowed(
    seen: dict[int, int], most: int, rows: int
) -> None:
    told = output_lengths(seen, most)
    assert told.mean - 1e-9 <= told.mean_p95(rows) <= max(most, told.mean) + 1e-9


# --- how long batches take


def test_before_anything_is_known_most_are_done_in_an_hour_and_some_never() -> None:
    assumed = turnaround([], rows=1000, at=AT)
    assert assumed.source == "assumed"
    assert assumed.by(HOUR) == pytest.approx(0.65, abs=0.01)
    assert 4 * HOUR < assumed.within(0.9) < 8 * HOUR
    assert assumed.by(24 * HOUR) == pytest.approx(0.98, abs=0.002)
    assert assumed.by(0.0) == 0.0
    assert assumed.by(400 * HOUR) == 1.0


def test_own_nights_take_over() -> None:
    fast = turnaround(nights(*[10 * MINUTE] * 60), rows=1000, at=AT)
    assert fast.source == "from 60 nights"
    assert fast.by(12 * MINUTE) > 0.75 > 0.25 > turnaround([], rows=1000, at=AT).by(12 * MINUTE)
    assert fast.within(0.5) < 12 * MINUTE
    assert turnaround(nights(*[10 * MINUTE] * 5), rows=1000, at=AT).source == "from 5 nights, else assumed"


def test_a_batch_that_still_runs_says_that_they_take_longer() -> None:
    every = nights(*[10 * MINUTE] * 30)
    done = [one for day, one in enumerate(every) if day % 3]
    known = turnaround(done, rows=1000, at=AT)
    running = [SeenBatch(one.at, 5 * HOUR, False, 1000) for one in every[::3]]
    assert turnaround([*done, *running], rows=1000, at=AT).by(HOUR) < known.by(HOUR) - 0.1
    # Told for as long as it ran and no longer: for what lasts five hours already, nothing is changed.
    late = turnaround([*done, *running], rows=1000, at=AT)
    assert late.by(8 * HOUR, after=6 * HOUR) == pytest.approx(known.by(8 * HOUR, after=6 * HOUR), abs=0.02)


def test_a_batch_that_runs_since_a_moment_says_nothing() -> None:
    done = nights(*[10 * MINUTE] * 20)
    just = [SeenBatch(AT - timedelta(days=30), 30.0, False, 1000)]
    assert turnaround([*done, *just], rows=1000, at=AT).survival == pytest.approx(
        turnaround(done, rows=1000, at=AT).survival
    )


def test_censored_batches_are_no_short_ones() -> None:
    """Each is seen for two hours at most: what ended by then is not a picture of them all."""
    chance = random.Random(4)
    seen = []
    for day in range(1, 600):
        takes = chance.lognormvariate(math.log(HOUR), 0.8)
        seen.append(SeenBatch(AT - timedelta(days=day), min(takes, 2 * HOUR), takes <= 2 * HOUR, 1000))
    known = turnaround(seen, rows=1000, at=AT)
    assert known.by(HOUR) == pytest.approx(0.5, abs=0.08)
    assert known.by(2 * HOUR) == pytest.approx(0.8, abs=0.08)
    assert known.by(24 * HOUR) < 1.0


def test_shards_of_one_night_are_one_night() -> None:
    one = [SeenBatch(AT - timedelta(days=1), 10 * HOUR, True, 1000)]
    shards = one * 40
    assert turnaround(shards, rows=1000, at=AT).survival == pytest.approx(turnaround(one, rows=1000, at=AT).survival)
    assert turnaround(shards, rows=1000, at=AT).source == "from 1 night, else assumed"


def test_the_hours_of_a_night_weigh_no_more_than_a_night() -> None:
    def slow(*ago: timedelta) -> list[SeenBatch]:
        return [SeenBatch(AT - each, 10 * HOUR, True, 1000) for each in ago]

    fast = nights(*[5 * MINUTE] * 10)[2:]
    hours = slow(*(timedelta(days=1, hours=hour) for hour in range(-3, 4)))
    evenings = slow(timedelta(days=1), timedelta(days=2))
    assert turnaround([*fast, *hours], rows=1000, at=AT).by(HOUR) > turnaround(
        [*fast, *evenings], rows=1000, at=AT
    ).by(HOUR)


def test_the_slowest_shard_of_an_hour_stands_for_it() -> None:
    quick, slow = (
        SeenBatch(AT - timedelta(days=1), 60.0, True, 1000),
        SeenBatch(AT - timedelta(days=1), 9 * HOUR, False, 1000),
    )
    both = turnaround([quick, slow], rows=1000, at=AT)
    assert both.survival == turnaround([slow], rows=1000, at=AT).survival


def test_the_night_itself_tells_most() -> None:
    usual = nights(*[10 * MINUTE] * 60)
    stuck = [SeenBatch(AT - timedelta(hours=3), 3 * HOUR, False, 1000)]
    fast = [SeenBatch(AT - timedelta(hours=1), 4 * MINUTE, True, 1000)]
    assert turnaround([*usual, *stuck], rows=1000, at=AT).by(HOUR) < 0.35
    assert turnaround(usual, rows=1000, at=AT).by(HOUR) > 0.9
    assert turnaround([*usual, *fast], rows=1000, at=AT).by(6 * MINUTE) > 0.6


def with_slow_nights(*ago: int) -> float:
    """P(done in two hours) if batches of these nights took ten hours, and twelve minutes on the others of twenty."""
    took = [10 * HOUR if day in ago else 12 * MINUTE for day in range(1, 21)]
    return turnaround([SeenBatch(AT - timedelta(days=day + 1), each, True, 1000) for day, each in enumerate(took)],
                      rows=1000, at=AT).by(2 * HOUR)  # fmt: skip


def test_slow_nights_that_come_in_rows_are_expected_to_go_on() -> None:
    apart = with_slow_nights(1, 7, 13)
    assert with_slow_nights(1, 2, 3) < apart - 0.2
    assert with_slow_nights(4, 5, 6) > apart, "the last nights were fast"
    assert apart == pytest.approx(with_slow_nights(3, 8, 14), abs=0.05), "one slow night announces no other"


LIKE = {
    "size": [
        SeenBatch(AT - timedelta(days=1), 10 * HOUR, True, 100_000),
        SeenBatch(AT - timedelta(days=2), 300.0, True, 1000),
    ],
    "hour": [
        SeenBatch(AT - timedelta(days=1, hours=9), 10 * HOUR, True, 1000),
        SeenBatch(AT - timedelta(days=2), 300.0, True, 1000),
    ],
    "age": [
        SeenBatch(AT - timedelta(days=90), 10 * HOUR, True, 1000),
        SeenBatch(AT - timedelta(days=1), 300.0, True, 1000),
    ],
}


@pytest.mark.parametrize("seen", LIKE.values(), ids=LIKE.keys())
def test_what_is_alike_weighs_more(seen: list[SeenBatch]) -> None:
    unlike, like = seen
    swapped = [
        SeenBatch(unlike.at, like.seconds, True, unlike.rows),
        SeenBatch(like.at, unlike.seconds, True, like.rows),
    ]
    assert turnaround(seen, rows=1000, at=AT).by(HOUR) > turnaround(swapped, rows=1000, at=AT).by(HOUR)


@pytest.mark.slow
@settings(max_examples=ample(60))
@given(
    st.lists(st.tuples(st.integers(0, 90), st.floats(1, 400_000), st.booleans(), st.integers(1, 10**6)), max_size=12),
    st.floats(0, 200_000),
    st.floats(0, 200_000),
)
def test_a_forecast_is_a_distribution(seen: list[tuple[int, float, bool, int]], first: float, second: float) -> None:
    known = turnaround([SeenBatch(AT - timedelta(days=day), *rest) for day, *rest in seen], rows=1000, at=AT)
    early, late = sorted((first, second))
    assert 0.0 <= known.by(early) <= known.by(late) <= 1.0
    assert list(known.survival) == sorted(known.survival, reverse=True)
    assert known.by(early, after=late) == 0.0
    assert 0.0 <= known.by(late, after=early) <= 1.0
    for chance in (0.1, 0.5, 0.9):
        within = known.within(chance)
        assert within == math.inf or known.by(within) >= chance - 1e-9
        assert known.within(chance, after=early) >= early


def test_how_late_a_batch_is_expected_to_be() -> None:
    known = turnaround(nights(*[10 * MINUTE] * 200), rows=1000, at=AT)
    assert known.late(5 * MINUTE) > known.late(HOUR) > known.late(20 * HOUR) > 0.0
    assert known.late(HOUR, after=5 * HOUR) > 4 * HOUR
    assert known.late(25 * HOUR) == 0.0
    assert known.late(HOUR, after=25 * HOUR) == 24 * HOUR
    assert 5 * MINUTE < known.late(0.0) < 2 * HOUR


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("many", [30, 120])
def test_by_its_p95_a_batch_is_done_on_about_nineteen_nights_of_twenty(many: int) -> None:
    """Over homes of which each has its own usual time, and a few bad nights; no more than a little late."""
    chance = random.Random(f"batches {many}")
    homes, by_p95 = 400, 0

    def drawn(usual: float) -> float:
        bad = chance.random() < 0.06
        return chance.lognormvariate(math.log(5 * HOUR if bad else usual), 0.8)

    for _ in range(homes):
        usual = chance.lognormvariate(math.log(900.0), 0.6)
        seen = [SeenBatch(AT - timedelta(days=day), drawn(usual), True, 1000) for day in range(1, many + 1)]
        by_p95 += drawn(usual) <= turnaround(seen, rows=1000, at=AT).within(0.95)
    assert 0.94 * homes <= by_p95 <= 0.99 * homes
