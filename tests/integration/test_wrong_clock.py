"""This machine's clock is set, or wrong by days, while batches are out: nothing is paid twice or waited for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.model import Job
from tests.emulator.clock import ClockFile
from tests.support.hostedjob import DAY, HOUR, MINUTE, Desk, all_are, cost_of, plain, script

YEARS = 3650 * DAY
STEP = 15 * MINUTE


class Here:
    """This machine's clock: `off` seconds before or behind the provider's, which is right."""

    def __init__(self, desk: Desk, environment: pytest.MonkeyPatch) -> None:
        self._desk = desk
        self._clock = ClockFile(desk.folder / "clock-here.json", desk.provider.clock.now())
        environment.setenv("ORCH_CLOCK", str(self._clock.path))
        self.off = 0.0

    def set(self, off: float) -> None:
        self.off = off
        self._clock.set(self._desk.provider.clock.now() + timedelta(seconds=off))

    def later(self, seconds: float, job: Job, looks: int = 1) -> None:
        """So much time passes, in which `looks` steps are taken."""
        for _ in range(looks):
            self._desk.provider.clock.advance(seconds / looks)
            self.set(self.off)
            self._desk.settle(job)

    def until_over(self, job: Job, seconds: float) -> None:
        """So much time passes at most until the job is over."""
        for _ in range(round(seconds / STEP)):
            if self._desk.is_over(job):
                return
            self.later(STEP, job)
        assert self._desk.is_over(job), (self._desk.states(job), self._desk.held(job))


@pytest.fixture
def here(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(desk, monkeypatch)


def paid_once(desk: Desk, job: Job, rows: int) -> None:
    assert desk.ends(job) == all_are("succeeded", rows)
    assert sorted(desk.billed().values()) == [1] * rows
    assert desk.cost(job) == cost_of(desk.provider.bill())


AHEAD, WAS_BEHIND, WAS_YEARS_BEHIND = (0.0, 3 * DAY), (-3 * DAY, 0.0), (-YEARS, 0.0)
GROWS = {"told": "none", "share": 0.4}


@pytest.mark.parametrize(
    ("fault", "facts", "clock", "is_killed"),
    [
        ("late_output_id", {}, AHEAD, True),
        ("late_output_id", {}, WAS_YEARS_BEHIND, False),
        ("late_content", {}, AHEAD, True),
        ("late_content", {}, WAS_BEHIND, True),
        ("late_content", {}, AHEAD, False),
        ("grows", GROWS, AHEAD, True),
        ("grows", GROWS, WAS_YEARS_BEHIND, False),
    ],
)
def test_trap_g10_late_files_are_waited_for_though_the_clock_was_set_by_days(
    desk: Desk, here: Here, fault: str, facts: dict[str, Any], clock: tuple[float, float], is_killed: bool
) -> None:
    """The clock is wrong as the batch ends, or from then on: either way it says that the wait is long over."""
    before, since = clock
    here.set(before)
    script(desk, fault, seconds=2 * HOUR, **facts)
    job = desk.submit(plain(4))
    here.later(20 * MINUTE, job, looks=4)
    here.set(since)
    if is_killed:
        desk.start_anew()
    here.until_over(job, 3 * HOUR)
    assert len(desk.batches()) == 1
    paid_once(desk, job, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "ahead", "is_killed"),
    [("late_output_id", 3 * DAY, False), ("late_output_id", YEARS, True), ("late_content", YEARS, True)],
)
def test_trap_g10_files_that_never_come_are_waited_for_a_day_though_the_clock_was_ahead(
    desk: Desk, here: Here, fault: str, ahead: float, is_killed: bool
) -> None:
    here.set(ahead)
    script(desk, fault, seconds=3 * YEARS)
    job = desk.submit(plain(4))
    here.later(20 * MINUTE, job, looks=4)
    here.set(0.0)
    if is_killed:
        desk.start_anew()
    for _ in range(30):
        here.later(HOUR, job)
    here.until_over(job, HOUR)
    assert desk.ends(job) == all_are("succeeded", 4)
    assert len(desk.batches()) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [({"do": "unknown_for", "listed": False}, 20 * MINUTE), ({"do": "status", "status": 500}, 40 * MINUTE)],
    ids=["unknown", "failing"],
)
def test_trap_g10_a_batch_counts_as_gone_by_the_time_that_was_watched(
    desk: Desk, here: Here, fault: dict[str, Any], seconds: float
) -> None:
    """Its provider fails or denies it for minutes, and the clock jumps in the middle."""
    desk.backend(poll_seconds=60)
    desk.provider.settings(turnaround_s=[HOUR, HOUR])
    if fault["do"] == "unknown_for":
        script(desk, **fault, seconds=seconds, after=MINUTE)
    job = desk.submit(plain(4))
    here.later(4 * MINUTE, job, looks=4)
    if fault["do"] == "status":
        desk.provider.script({**fault, "match": {}, "times": None, "lasts": seconds})
    here.later(6 * MINUTE, job, looks=4)
    here.set(10 * DAY)
    here.later(40 * MINUTE, job, looks=20)
    here.until_over(job, HOUR)
    assert len(desk.batches()) == 1
    paid_once(desk, job, 4)


@pytest.mark.long
def test_trap_g10_a_batch_is_gone_within_the_hour_though_the_clock_was_set_back(desk: Desk, here: Here) -> None:
    desk.backend(poll_seconds=60)
    script(desk, "unknown_for", seconds=YEARS, after=MINUTE, listed=False)
    here.set(YEARS)
    job = desk.submit(plain(4))
    here.later(6 * MINUTE, job, looks=4)
    here.set(0.0)
    here.later(HOUR, job, looks=30)
    assert len(desk.batches()) == 2


@pytest.mark.parametrize("back", [2 * HOUR, YEARS])
def test_trap_g10_a_batch_is_polled_though_the_clock_was_set_back(desk: Desk, here: Here, back: float) -> None:
    here.set(back)
    job = desk.submit(plain(4))
    here.later(5 * MINUTE, job, looks=2)
    here.set(0.0)
    here.until_over(job, HOUR)
    paid_once(desk, job, 4)
