"""The canary's decisions: which rows go first, how long they may take, and what follows from how they came back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.policy.canary import CanaryFigures, CanaryLimits, judge, places, until

LIMITS = CanaryLimits(max_failed=0.25, max_cost=2.0)
NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rows", "wanted", "expected"),
    [(10, 1, [6]), (10, 2, [3, 8]), (100, 4, [13, 38, 63, 88]), (5, 4, [1, 2, 4, 5]), (2, 1, [2])],
)
def test_places_are_spread_evenly(rows: int, wanted: int, expected: list[int]) -> None:
    assert places(rows, wanted) == expected


@given(rows=st.integers(1, 10**7), share=st.floats(0, 1))
def test_places_differ_are_within_and_leave_no_part_out(rows: int, share: float) -> None:
    wanted = max(1, min(1000, int(rows * share)))
    found = places(rows, wanted)
    assert len(set(found)) == wanted
    assert found == sorted(found)
    assert 1 <= found[0] <= found[-1] <= rows
    gaps = [after - before for before, after in pairwise(found)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_it_may_take_a_quarter_of_the_time() -> None:
    assert until(NOW, NOW + timedelta(hours=8)) == NOW + timedelta(hours=2)
    assert until(NOW, None) is None


def seen(failed: dict[str, int], cost: str = "0.10", foreseen: str | None = "0.10") -> CanaryFigures:
    return CanaryFigures(20, failed, Decimal(cost), None if foreseen is None else Decimal(foreseen))


@pytest.mark.parametrize(
    ("found", "passed", "reason"),
    [
        (seen({}), True, "0 of 20 rows that went first failed; they cost $0.1000, 1.00 times the forecast"),
        (seen({"truncated": 5}, foreseen=None), True, "5 of 20 rows that went first failed (5 truncated)"),
        (seen({}, foreseen="0"), True, "0 of 20 rows that went first failed"),
        (seen({}, "0.2"), True, "0 of 20 rows that went first failed; they cost $0.2000, 2.00 times the forecast"),
        (
            seen({"refusal": 1, "schema_mismatch": 4, "truncated": 1, "empty_answer": 1}),
            False,
            "canary: 7 of 20 rows that went first failed (4 schema_mismatch, 1 empty_answer, 1 refusal), "
            "more than 25%",
        ),
        (
            seen({"refusal": 1}, cost="0.21"),
            False,
            "canary: 1 of 20 rows that went first failed (1 refusal); "
            "they cost $0.2100, 2.10 times the forecast, more than 2 times",
        ),
    ],
)  # fmt: skip
def test_what_comes_back_decides_whether_the_others_follow(found: CanaryFigures, passed: bool, reason: str) -> None:
    verdict = judge(found, LIMITS)
    assert (verdict.passed, verdict.reason) == (passed, reason)


@given(
    failed=st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 5), max_size=4),
    cost=st.decimals(0, 10, places=6),
)
def test_with_looser_limits_nothing_is_stopped_that_passed(failed: dict[str, int], cost: Decimal) -> None:
    found = CanaryFigures(20, failed, cost, Decimal(1))
    assert judge(found, LIMITS).passed <= judge(found, CanaryLimits(0.5, 3.0)).passed
