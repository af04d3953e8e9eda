"""What is short takes as long as it took of late: robustly, and not for good."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.policy.forecast import Wait, exceedance, wait_quantile

AT = datetime(2026, 11, 21, 20, tzinfo=UTC)


def waits(*seconds: float, every: float = 1.0) -> list[Wait]:
    """One a day, the latest of them yesterday."""
    return [Wait(AT - timedelta(days=every * days), each) for days, each in enumerate(reversed(seconds), 1)]


def test_what_nobody_has_seen_takes_as_long_as_assumed() -> None:
    assert wait_quantile([], assumed=600.0, at=AT) == pytest.approx(600.0)
    assert wait_quantile([], assumed=600.0, at=AT, chance=0.5) < 300.0


def test_it_is_learned_down_and_up() -> None:
    quick = wait_quantile(waits(*[150.0] * 30), assumed=600.0, at=AT)
    assert 150.0 <= quick < 350.0
    slow = wait_quantile(waits(*[3000.0] * 6), assumed=600.0, at=AT)
    assert slow == pytest.approx(3000.0)


def test_one_that_stands_out_is_believed_only_once_it_happens_again() -> None:
    usual = [150.0] * 12
    once = wait_quantile(waits(*usual, 7200.0, 150.0), assumed=600.0, at=AT)
    twice = wait_quantile(waits(*usual, 7200.0, 150.0, 7200.0), assumed=600.0, at=AT)
    assert once <= 600.0
    assert twice == pytest.approx(7200.0)


def test_nothing_is_learned_for_good() -> None:
    """Neither by those that came since, nor by time alone."""
    bad = [7200.0, 7200.0]
    assert wait_quantile(waits(*bad, *[150.0] * 5), assumed=600.0, at=AT) == pytest.approx(7200.0)
    assert wait_quantile(waits(*bad, *[150.0] * 60), assumed=600.0, at=AT) < 600.0
    assert wait_quantile(waits(*bad), assumed=600.0, at=AT + timedelta(days=400)) <= 600.0


def test_a_share_of_slow_ones_is_kept_in_mind() -> None:
    chance = random.Random(1)
    mixed = [6000.0 if chance.random() < 0.15 else 120.0 for _ in range(60)]
    assert wait_quantile(waits(*mixed), assumed=600.0, at=AT) == pytest.approx(6000.0)
    assert wait_quantile(waits(*mixed), assumed=600.0, at=AT, chance=0.5) < 300.0


def test_figures_that_are_none_are_left_out() -> None:
    odd = [*waits(150.0, 150.0), Wait(AT, math.nan), Wait(AT, math.inf)]
    assert wait_quantile(odd, assumed=600.0, at=AT) == pytest.approx(
        wait_quantile(waits(150.0, 150.0), assumed=600.0, at=AT)
    )


def test_the_longest_of_a_few_is_not_the_longest_there_is() -> None:
    """How many of those to come are longer than what was told: about one in twenty."""
    chance = random.Random(2)
    longer = {True: 0, False: 0}
    nights = 1_000
    for _ in range(nights):
        seen = waits(*(chance.lognormvariate(math.log(1_800.0), 0.5) for _ in range(8)))
        comes = chance.lognormvariate(math.log(1_800.0), 0.5)
        for smoothed in longer:
            longer[smoothed] += comes > wait_quantile(seen, assumed=600.0, at=AT, chance=0.95, smoothed=smoothed)
    assert longer[True] <= 0.08 * nights < 0.1 * nights < longer[False]


def test_what_was_never_seen_may_come() -> None:
    few = waits(1_500.0, 1_700.0, 2_800.0)
    assert exceedance(1.5 * 2_800.0, few, assumed=600.0, at=AT) > 0.0
    assert exceedance(1.5 * 2_800.0, waits(*[1_800.0] * 30), assumed=600.0, at=AT) == 0.0
