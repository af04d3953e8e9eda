"""Whether forecasts can be trusted: shares, and what is said of them."""

from __future__ import annotations

from datetime import UTC, datetime
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.model import Forecast, JobId
from orchestrator.policy.forecast_trust import Calibration, at_most, calibrate

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def made(*actuals: float | None, **facts: Any) -> list[Forecast]:
    """Forecasts of 100 at the p50 and 200 at the p95, and what came."""
    given = {"kind": "turnaround", "backend": "openai", "model": "m", "made_at": NOW, "p50": 100, "p95": 200}
    return [
        Forecast(JobId(f"j{number}"), source="prior", actual=actual, **{**given, **facts})
        for number, actual in enumerate(actuals)
    ]


def only(*actuals: float | None, **facts: Any) -> Calibration:
    [line] = calibrate(made(*actuals, **facts))
    return line


def test_shares_and_the_median_are_those_of_what_came() -> None:
    line = only(50, 150, 150, 300, None, None)
    assert (line.known, line.open) == (4, 2)
    assert (line.below_p50, line.below_p95, line.ratio) == (0.25, 0.75, 1.5)
    assert (line.trusted, line.verdict) == (None, "too few to judge: 4 of the 10 needed")


def test_what_nobody_knows_yet_has_no_shares() -> None:
    line = only(None)
    assert (line.known, line.open, line.below_p50, line.below_p95, line.ratio, line.trusted) == (
        0, 1, None, None, None, None,
    )  # fmt: skip


def test_kinds_backends_models_and_tasks_are_held_apart() -> None:
    several = [
        *made(1, backend="b"), *made(1, 2), *made(1, model="n"), *made(1, kind="output", task="u"),
        *made(1, None, kind="output", task="t"), *made(None, kind="cost", backend="", model=""),
    ]  # fmt: skip
    assert [(each.kind, each.backend, each.model, each.task, each.known) for each in calibrate(several)] == [
        ("cost", "", "", "", 0),
        ("output", "openai", "m", "t", 1),
        ("output", "openai", "m", "u", 1),
        ("turnaround", "b", "m", "", 1),
        ("turnaround", "openai", "m", "", 2),
        ("turnaround", "openai", "n", "", 1),
    ]
    assert calibrate([]) == []


VERDICTS: dict[str, tuple[list[float], bool | None, str]] = {
    "nine": ([50.0] * 9, None, "too few to judge: 9 of the 10 needed"),
    "half and half": ([50.0, 150.0] * 10, True, "well calibrated"),
    "one of twenty above": ([50.0, 150.0] * 9 + [50.0, 500.0], True, "well calibrated"),
    "four of twenty above": (
        [50.0, 150.0] * 8 + [500.0] * 4,
        False,
        "too optimistic: 16 of 20 within the p95; expected 19",
    ),
    "all above the middle": (
        [150.0] * 10,
        False,
        "too low in the middle: it usually comes to 1.50 × the p50, though the p95 holds",
    ),
    "all below the middle": ([25.0] * 10, True, "on the safe side: it usually comes to 0.25 × the p50"),
    "hit exactly": ([100.0] * 10, True, "well calibrated"),
}


@pytest.mark.parametrize(("actuals", "trusted", "verdict"), VERDICTS.values(), ids=VERDICTS.keys())
def test_what_is_said_of_them(actuals: list[float], trusted: bool | None, verdict: str) -> None:
    line = only(*actuals)
    assert (line.trusted, line.verdict) == (trusted, verdict)


def test_what_was_hit_exactly_counts_half_at_the_p50_and_whole_at_the_p95() -> None:
    free = only(*[0.0] * 10, p50=0.0, p95=0.0)
    assert (free.below_p50, free.below_p95, free.ratio, free.trusted) == (0.5, 1.0, None, True)
    above = only(*[1.0] * 10, p50=0.0, p95=5.0)
    assert above.verdict == "too low in the middle, though the p95 holds"


def test_json_names_every_figure() -> None:
    assert only(50, 150, 150).to_json() == {
        "kind": "turnaround", "backend": "openai", "model": "m", "task": "", "known": 3, "open": 0,
        "below_p50": 0.3333, "below_p95": 1.0, "ratio": 1.5, "trusted": None,
        "first_at": NOW.isoformat(), "last_at": NOW.isoformat(),
        "verdict": "too few to judge: 3 of the 10 needed",
    }  # fmt: skip
    assert only(None).to_json()["below_p50"] is None


@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([0.5, 0.95]))
def test_the_binomial_distribution(tries: int, hits: int, share: float) -> None:
    hits = min(hits, tries)
    exact = sum(comb(tries, each) * share**each * (1 - share) ** (tries - each) for each in range(hits + 1))
    assert at_most(hits, tries, share) == pytest.approx(exact, abs=1e-9)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60))
def test_what_is_said_of_the_p95_is_in_step_with_what_came(actuals: list[float]) -> None:
    line, worse = only(*actuals), only(*[actual + 500 for actual in actuals])
    assert 0 <= (line.below_p95 or 0) <= 1
    assert worse.below_p95 == 0
    assert worse.trusted is (None if len(actuals) < 10 else False)


# --- what was cut short, and chances


def test_what_was_cut_short_counts_where_it_is_known_to_be_above() -> None:
    line = calibrate([*made(*[90.0] * 10), *made(*[250.0] * 10, censored=True)])[0]
    assert (line.known, line.below_p50, line.below_p95) == (20, 0.5, 0.5)
    assert line.trusted is False
    assert line.verdict.startswith("too optimistic: 10 of 20")


def test_what_was_cut_short_before_the_mark_says_nothing_of_it() -> None:
    line = calibrate([*made(*[90.0] * 10), *made(*[150.0] * 10, censored=True), *made(20.0, censored=True)])[0]
    assert (line.known, line.below_p50, line.below_p95, line.open) == (20, 0.5, 1.0, 0)


def test_chances_are_held_against_how_often_jobs_were_in_time() -> None:
    chances = {"kind": "in_time", "p50": 0.999, "p95": 0.999}
    good = only(*[1.0] * 50, **chances)
    assert (good.trusted, good.below_p50, good.below_p95) == (True, None, None)
    assert good.verdict == "50 of 50 in time; the mean forecast was 99.9%"
    bad = only(*[1.0] * 40, *[0.0] * 10, **chances)
    assert bad.trusted is False
    assert bad.verdict == "too optimistic: 40 of 50 in time; the mean forecast was 99.9%"
    assert only(1.0, **chances).trusted is None
    assert only(*[0.0] * 20, **{**chances, "p50": 1.0, "p95": 1.0}).trusted is False
