"""When an engine has become slower than it was."""

from __future__ import annotations

import pytest

from orchestrator.policy.degradation import SpeedWatch

HOUR = 3600


def restarts(*stages: tuple[float, float, int]) -> list[float]:
    """When an engine was started anew, that does (seconds, work a second, rows at once) one after the other."""
    watch, found, at, done = SpeedWatch(), [], 0.0, 0.0
    for seconds, rate, rows in stages:
        end = at + seconds
        while at < end:
            at, done = at + 1, done + rate
            if watch.observe(at, done, rows) is not None:
                watch.restarted(at)
                found.append(at)
    return found


@pytest.mark.parametrize("rate", [50.0, 100.0])
def test_one_that_is_steady_is_left_alone_however_slow_it_is(rate: float) -> None:
    assert restarts((8 * HOUR, rate, 16)) == []


def test_one_that_slows_down_to_a_third_starts_anew_after_five_minutes_and_once_an_hour() -> None:
    (first,) = restarts((1200, 90.0, 16), (1000, 30.0, 16))
    assert 1200 + 300 <= first <= 1200 + 420
    # The restart helps, and an hour later it does it again.
    assert len(restarts((1200, 90.0, 16), (420, 30.0, 16), (HOUR, 90.0, 16), (900, 30.0, 16))) == 2
    assert len(restarts((1200, 90.0, 16), (420, 30.0, 16), (600, 90.0, 16), (900, 30.0, 16))) == 1


def test_it_is_compared_with_what_it_did_with_as_many_rows() -> None:
    assert restarts((1200, 90.0, 64), (1200, 20.0, 4), (1200, 90.0, 64)) == []
    assert restarts((1200, 90.0, 64), (240, 30.0, 64), (1200, 90.0, 64)) == []  # a short dip
    assert restarts((1200, 90.0, 64), (1200, 0.0, 0), (1200, 90.0, 64)) == []  # nothing was asked of it
