"""Defects: tried again ever more rarely, by the clock that is set."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.core.model import JobFault
from orchestrator.policy.internal_errors import LONGEST_PAUSE, Faults
from tests.support.stored import NOW


def test_what_fails_is_tried_ever_more_rarely() -> None:
    faults, at, pauses = Faults(), NOW, []
    assert faults.is_due("job", at)
    for times in range(1, 9):
        fault = faults.caught("job", ValueError("strange\nin detail"), at)
        assert (fault.times, fault.told) == (times, "internal_error: ValueError: strange")
        assert not faults.is_due("job", at)
        assert not faults.is_due("job", fault.next_at - timedelta(seconds=1))
        assert faults.is_due("job", fault.next_at)
        pauses.append((fault.next_at - at).total_seconds())
        at = fault.next_at
    assert pauses == [15, 60, 240, 960, 3600, 3600, 3600, 3600]
    assert faults.is_due("another", at)
    faults.cleared("job")
    assert faults.is_due("job", at)
    assert faults.caught("job", OSError(), at, JobFault.FILES).times == 1


def test_one_that_somebody_waits_for_is_tried_soon() -> None:
    faults = Faults()
    for _ in range(6):
        fault = faults.caught("job", ValueError(), NOW)
    assert fault.next_at == NOW + LONGEST_PAUSE
    assert not faults.is_due("job", NOW + timedelta(seconds=14), hurry=True)
    assert faults.is_due("job", NOW + timedelta(seconds=15), hurry=True)


def test_a_clock_that_is_set_back_keeps_nothing_waiting() -> None:
    faults = Faults()
    faults.caught("job", ValueError(), NOW)
    assert faults.is_due("job", NOW - timedelta(hours=1))
