"""What follows from measurements: the contest of settings, the verdict, rates of tokens, the sample."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.bench.halving import REPEATS, Contest, TuneRun, Winner, contest_of, tunings
from orchestrator.bench.sample import BLOCK, stratified
from orchestrator.bench.verdict import Verdict, token_rates, verdict
from orchestrator.core.model import Span
from tests.support.examples import ample

NOW = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)
Options = tuple[str, ...]


# --- settings


def contested(rates: dict[Options, float | None]) -> tuple[Winner, list[TuneRun]]:
    runs: list[TuneRun] = []
    while True:
        step = contest_of(list(rates), runs)
        if isinstance(step, Winner):
            return step, runs
        assert isinstance(step, Contest)
        assert step.left > 0
        runs.append(TuneRun(step.options, step.round, rates.get(step.options, 10.0)))
        assert len(runs) < 200


@pytest.mark.slow
@settings(max_examples=ample(40))
@given(st.lists(st.one_of(st.none(), st.floats(1.0, 100.0)), min_size=1, max_size=25))
@example([1.0, 1.0, 6.0, 6.0, 6.0, 6.0])  # the defaults, which are in every round, are not the best of the last
def test_the_best_settings_win_and_the_defaults_are_tried_in_every_round(found: list[float | None]) -> None:
    rates: dict[Options, float | None] = {("--x", str(place)): rate for place, rate in enumerate(found)}
    rates[()] = 5.0
    winner, runs = contested(rates)
    best = max(rate for rate in rates.values() if rate is not None)
    assert winner.options is not None
    assert winner.rows_per_second == rates[winner.options] == best
    last = max(run.round for run in runs if run.options != winner.options or not winner.options)
    assert {run.round for run in runs if not run.options} >= set(range(last - (0 if winner.options else REPEATS - 1)))
    assert sum(run.options == winner.options and run.rows_per_second is not None for run in runs) >= REPEATS
    failing = {options for options, rate in rates.items() if rate is None}
    assert all(sum(run.options == options for run in runs) == 1 for options in failing), "a failure is not repeated"


def test_where_the_defaults_fail_others_may_win_and_where_all_fail_nobody_does() -> None:
    winner, _ = contested({(): None, ("--x", "1"): 3.0, ("--x", "2"): 2.0})
    assert winner == Winner(("--x", "1"), 3.0, None)
    assert contested({(): None, ("--x", "1"): None})[0] == Winner(None, None, None)


def test_the_order_of_earlier_runs_does_not_matter() -> None:
    rates: dict[Options, float | None] = {(): 5.0, ("--x", "1"): 6.0, ("--x", "2"): 7.0, ("--x", "3"): None}
    _, runs = contested(rates)
    for cut in range(len(runs)):
        assert contest_of(list(rates), runs[:cut]) == contest_of(list(rates), runs[:cut][::-1])


def test_what_is_tried_has_the_defaults_first_and_nothing_twice() -> None:
    for effort in ("quick", "full"):
        for on_gpu in (True, False):
            found = tunings(effort, on_gpu=on_gpu)
            assert found[0] == ()
            assert len(set(found)) == len(found)
            assert any("--gpu-memory-utilization" in options for options in found) == on_gpu
    assert len(tunings("full", on_gpu=True)) > len(tunings("quick", on_gpu=True))


# --- the verdict


def judged(
    rate: float = 2.0, *, start: float = 120.0, idle: float = 600.0, hosted: tuple[str, Decimal, bool] | None = None
) -> Verdict:
    return verdict(
        rows_per_second=rate, rows=20_000, documents=10_000, cost_per_hour=Decimal("1.5"), start_seconds=start,
        idle_seconds=idle, hosted=hosted, now=NOW,
    )  # fmt: skip


def test_money_and_time_of_a_night() -> None:
    found = judged(hosted=("openai:gpt-5-nano", Decimal("0.00034"), False))
    assert found.rows_per_hour == 7200
    assert found.done_at == NOW + timedelta(seconds=120 + 10_000)
    assert found.per_1000_usd == Decimal("0.208333")
    assert found.hosted_per_1000_usd == Decimal("0.34")
    # 7,200 rows an hour are worth $2.448 there and cost $1.50 here; 12 minutes a night are paid for nothing.
    assert found.cheaper_from_hours == pytest.approx(1.5 * 0.2 / (2.448 - 1.5))
    assert found.sentence.startswith("7,200 rows an hour; 10,000 documents done by ")
    assert "$0.2083 per 1,000 rows against $0.3400 at openai:gpt-5-nano" in found.sentence
    assert found.sentence.endswith("this engine is cheaper from 0.3 h a night.")


@given(st.floats(0.01, 1000), st.floats(0, 3600), st.decimals("0.00001", "0.1", places=5))
def test_at_the_hours_told_both_cost_the_same(rate: float, start: float, each: Decimal) -> None:
    found = judged(rate, start=start, idle=0.0, hosted=("a:b", each, True))
    if found.cheaper_from_hours is None:
        assert float(each) * rate * 3600 <= 1.5 * (1 + 1e-9)
        assert "hosted is cheaper" in found.sentence
    else:
        hours = found.cheaper_from_hours
        assert 1.5 * (hours + start / 3600) == pytest.approx(hours * rate * 3600 * float(each), rel=1e-6, abs=1e-9)


def test_without_anything_to_compare_with_only_its_own_cost_is_told() -> None:
    found = judged()
    assert found.cheaper_from_hours is None
    assert found.sentence.endswith("; $0.2083 per 1,000 rows.")


# --- rates of tokens

MANY = st.one_of(st.just(0.0), st.floats(1.0, 8000))


@given(st.floats(100, 1e6), st.floats(10, 1e5), st.floats(10, 8000), st.floats(2, 2000))
def test_prompts_and_answers_are_told_apart(prefill: float, decode: float, fed: float, told: float) -> None:
    """An engine whose rows take their tokens' time: what it does of rows of any other length is known."""

    def seconds(out: float) -> float:
        return fed / prefill + out / decode

    share = (told / decode) / seconds(told)
    if not 0.05 < share < 0.95:
        return  # one of the two hardly shows
    found = token_rates(1 / seconds(told), fed, told, 1 / seconds(1.0))
    assert found.prefill == pytest.approx(prefill, rel=1e-6)
    assert found.decode == pytest.approx(decode, rel=1e-6)


@given(st.floats(0.01, 1000), MANY, MANY, st.one_of(st.none(), st.floats(0.01, 5000)))
def test_the_rates_always_tell_what_was_measured(rate: float, fed: float, told: float, prefill: float | None) -> None:
    """Whatever one-token answers took (nothing, or longer than whole ones): for the rows at hand they hold."""
    found = token_rates(rate, fed, told, prefill)
    assert found.prefill > 0
    if fed + told > 0:
        seconds = fed / found.prefill + (0.0 if found.decode is None else told / found.decode)
        assert seconds == pytest.approx(1 / rate, rel=1e-6)


# --- the sample


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=3000), st.integers(BLOCK, 500))
@settings(max_examples=30)
def test_a_sample_keeps_neighbours_and_order_and_is_no_larger_than_asked(sizes: list[int], most: int) -> None:
    spans = [Span(place, size) for place, size in enumerate(sizes)]
    found = stratified(spans, most, 10**12)
    assert found == sorted(found, key=lambda span: span.offset)
    assert len(found) <= most or len(found) == len(spans)
    if len(found) < len(spans):
        starts = [span.offset for span in found if span.offset % BLOCK == 0]
        assert {span.offset - span.offset % BLOCK for span in found} == set(starts), "whole blocks"


def test_a_sample_has_long_and_short_rows_as_the_job_has_them() -> None:
    sizes = [200] * 8000 + [20_000] * 2000
    found = stratified([Span(place, size) for place, size in enumerate(sizes)], 400, 10**12)
    mean = sum(span.length for span in found) / len(found)
    assert mean == pytest.approx(sum(sizes) / len(sizes), rel=0.05)
    assert math.isclose(sum(span.length == 20_000 for span in found) / len(found), 0.2, abs_tol=0.03)


def test_a_sample_is_not_misled_by_long_rows_that_come_at_regular_places() -> None:
    sizes = [20_000 if place // BLOCK % 25 == 12 else 200 for place in range(10_000)]
    found = stratified([Span(place, size) for place, size in enumerate(sizes)], 400, 10**12)
    assert sum(span.length == 20_000 for span in found) / len(found) == pytest.approx(0.04, abs=0.021)


def test_a_sample_has_a_bound_in_bytes() -> None:
    found = stratified([Span(place, 1_000_000) for place in range(100)], 1000, 16_000_000)
    assert sum(span.length for span in found) <= 16_000_000
