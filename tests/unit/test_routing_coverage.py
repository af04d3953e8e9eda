"""What the simulation counts of p50 and p95: slow batches are not left out for being cancelled."""

from __future__ import annotations

import pytest

from benchmarks.routing.coverage import Coverage, Foreseen, coverage
from benchmarks.routing.night import BatchNight, Job, Night, SynchronousNight
from benchmarks.routing.world import Sent

HOUR = 3600.0
POLL = 90.0


def night(seconds: float) -> Night:
    batch = BatchNight("batch", 0.0005, seconds, (1.0,), poll=POLL)
    return Night(0, (Job("job", 100, 8 * HOUR),), (batch,), (SynchronousNight("local", 0.001, 1.0, 1.0),))


def of(route: str, backend: str, seconds: float, **facts: object) -> Coverage:
    """Told to be done in one hour, at most two."""
    told = Foreseen("job", backend, backend == "local", 0.0, HOUR, 2 * HOUR)
    sent = Sent(0, "job", backend, 100, 0.0, sent=10.0, **facts)  # type: ignore[arg-type]
    return next(one for one in coverage([told], [sent], night(seconds)) if one.route == route)


@pytest.mark.parametrize(("seconds", "by_p50", "by_p95"), [(0.5 * HOUR, 1, 1), (1.5 * HOUR, 0, 1), (5 * HOUR, 0, 0)])
def test_a_batch_counts_as_it_would_have_ended_had_it_not_been_cancelled(
    seconds: float, by_p50: int, by_p95: int
) -> None:
    cut = of("batch", "batch", seconds, rerouted=0.3 * HOUR, ended=0.4 * HOUR)
    assert (cut.known50, cut.by_p50, cut.known95, cut.by_p95) == (1, by_p50, 1, by_p95)


def test_waiting_for_room_is_not_part_of_how_long_a_batch_takes() -> None:
    told = Foreseen("job", "batch", False, 0.0, HOUR, 2 * HOUR)
    late = Sent(0, "job", "batch", 100, 0.0, sent=3 * HOUR, ended=3.5 * HOUR)
    assert coverage([told], [late], night(0.5 * HOUR))[1].by_p50 == 1


def test_a_synchronous_option_that_was_cut_short_tells_only_of_marks_that_had_passed() -> None:
    cut = of("synchronous option", "local", 1.0, rerouted=1.5 * HOUR, ended=1.5 * HOUR)
    assert (cut.known50, cut.by_p50, cut.known95) == (1, 0, 0)
