"""The search for the best concurrency, on engines that are functions: it ends, and what it finds is the knee."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.bench.sweep import KNEE, MOST_ERRORS, WIDTH, Knee, Measure, NoKnee, SweepPoint, next_step

MOST = 4096
Engine = Callable[[int], SweepPoint]


def slots(many: int, seconds: float = 0.5, *, falls_above: int | None = None, errors: float = 0.5) -> Engine:
    """So many places for rows that take so long; above some concurrency it fails, by errors or (0) by its rate."""

    def measured(concurrency: int) -> SweepPoint:
        rate = min(concurrency, many) / seconds
        if falls_above is not None and concurrency > falls_above:
            return SweepPoint(concurrency, rate * 0.3, errors)
        return SweepPoint(concurrency, rate)

    return measured


def searched(engine: Engine, most: int = MOST) -> tuple[Knee | NoKnee, list[SweepPoint]]:
    points: list[SweepPoint] = []
    while True:
        step = next_step(points, most)
        if not isinstance(step, Measure):
            return step, points
        assert 1 <= step.concurrency <= most
        known = [point for point in points if point.concurrency == step.concurrency]
        assert not known or [point.error_share for point in known] == [0.0], "only what ends the growth"
        points.append(engine(step.concurrency))
        assert len(points) < 60


def knee_of(engine: Engine, most: int = MOST) -> Knee:
    found, _ = searched(engine, most)
    assert isinstance(found, Knee)
    return found


def test_256_slots_are_found_within_a_tenth() -> None:
    found, points = searched(slots(256))
    assert isinstance(found, Knee)
    assert found.concurrency == pytest.approx(256, rel=0.1)
    assert 0 < found.within <= WIDTH
    assert found.rows_per_second >= KNEE * 512
    assert len(points) <= 14


@given(st.integers(1, 3000))
def test_any_number_of_slots_is_found(many: int) -> None:
    found = knee_of(slots(many))
    assert KNEE * many <= found.concurrency <= 1.11 * many + 1
    assert found.falls_over_at is None


@given(st.integers(2, 2000), st.integers(1, 2500), st.sampled_from([0.0, 0.03, 1.0]))
def test_the_knee_is_below_where_the_engine_falls_over(many: int, falls_above: int, errors: float) -> None:
    """By errors or by collapse alone: nothing above the first failure is asked again, and the knee gives the most."""
    engine = slots(many, falls_above=falls_above, errors=errors)
    found, points = searched(engine)
    assert isinstance(found, Knee)
    assert found.concurrency <= falls_above
    reachable = min(many, falls_above)
    # Where the engine fails before it is full, the last step below the failure may be a tenth away from it.
    assert found.concurrency >= (KNEE - WIDTH - 0.05) * reachable - 1
    failed = [point.concurrency for point in points if point.concurrency > falls_above]
    assert failed == sorted(failed, reverse=True), "the search goes down from a failure, never beyond it"


@given(st.integers(8, 1000), st.integers(0, 2**32 - 1))
def test_noise_of_two_percent_leaves_nearly_all_of_the_throughput(many: int, seed: int) -> None:
    noise = Random(seed)

    def noisy(concurrency: int) -> SweepPoint:
        return SweepPoint(concurrency, 2.0 * min(concurrency, many) * noise.uniform(0.98, 1.02))

    assert min(knee_of(noisy).concurrency, many) >= 0.92 * many


def test_the_highest_concurrency_allowed_is_the_last_asked() -> None:
    found, points = searched(slots(5000), most=300)
    assert isinstance(found, Knee)
    assert max(point.concurrency for point in points) == 300 == found.concurrency


def test_an_engine_that_takes_one_row_at_a_time() -> None:
    assert knee_of(slots(1)).concurrency == 1
    assert knee_of(slots(8, falls_above=1)).concurrency == 1


def test_an_engine_that_fails_at_everything_has_no_knee() -> None:
    found, points = searched(slots(8, falls_above=0))
    assert isinstance(found, NoKnee)
    assert [point.concurrency for point in points] == [1]


@given(st.integers(4, 2000), st.integers(2, 9), st.sampled_from([0.2, 0.5]))
def test_a_doubling_that_something_else_disturbed_costs_nothing(many: int, disturbed: int, share: float) -> None:
    """Throughput that stops growing once, and not when it is measured again, is not the engine's."""
    assume(2 ** (disturbed - 1) <= many)  # while it doubles
    asked: list[int] = []

    def engine(concurrency: int) -> SweepPoint:
        asked.append(concurrency)
        found = slots(many)(concurrency)
        return SweepPoint(concurrency, found.rows_per_second * (share if len(asked) == disturbed else 1.0))

    found = knee_of(engine)
    assert found.falls_over_at is None
    assert found.concurrency >= KNEE * many / 1.11


def test_a_fall_by_errors_is_believed_at_once() -> None:
    _, points = searched(slots(1000, falls_above=64))
    assert [point.concurrency for point in points].count(128) == 1
    _, points = searched(slots(1000, falls_above=64, errors=0.0))
    assert [point.concurrency for point in points].count(128) == 2


def test_a_few_errors_are_no_fall() -> None:
    points = [SweepPoint(1, 2.0, MOST_ERRORS), SweepPoint(2, 4.0, MOST_ERRORS)]
    assert isinstance(next_step(points, MOST), Measure)
    fallen = next_step([points[0], SweepPoint(2, 4.0, MOST_ERRORS + 0.001)], MOST)
    assert isinstance(fallen, Knee)
    assert fallen.falls_over_at == 2


def test_when_time_is_over_the_best_so_far_is_told() -> None:
    points = [SweepPoint(concurrency, 2.0 * concurrency) for concurrency in (1, 2, 4)]
    found = next_step(points, MOST, settle=True)
    assert isinstance(found, Knee)
    assert (found.concurrency, found.above) == (4, 2)


def test_a_fall_that_there_was_no_time_to_see_again_is_not_told() -> None:
    points = [SweepPoint(16, 5.4), SweepPoint(32, 6.1), SweepPoint(64, 3.0)]
    once = next_step(points, 512, settle=True)
    assert isinstance(once, Knee)
    assert (once.concurrency, once.falls_over_at) == (32, None)
    twice = next_step([*points, SweepPoint(64, 3.0)], 512, settle=True)
    assert isinstance(twice, Knee)
    assert (twice.concurrency, twice.falls_over_at) == (32, 64)
    failed = next_step([*points[:2], SweepPoint(64, 3.0, 0.5)], 512, settle=True)
    assert isinstance(failed, Knee)
    assert failed.falls_over_at == 64, "errors are seen at once"
