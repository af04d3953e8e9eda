"""Rows of one length do not teach a wrong speed for rows of another: what a token of an answer weighs is learned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.model import JobId, ProgressSample
from orchestrator.policy.forecast import Assumed
from orchestrator.policy.planner import observations
from orchestrator.policy.planner.stints import OUTPUT_WEIGHT, Sight, work_of
from orchestrator.policy.planner.token_weights import exclusive_work, output_weight

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
CLASSIFY, EXTRACT = (2_000, 5), (2_000, 400)
PREFILL = 20_000.0


def night(
    job: str, begin: datetime, tokens: tuple[int, int], weight: float, minutes: int = 60, speed: float = 1.0
) -> list[ProgressSample]:
    """An engine that reads PREFILL tokens a second, works on a job, and is looked at once a minute."""
    fed, told = tokens
    each = speed * PREFILL / work_of(fed, told, weight)
    found = []
    for minute in range(minutes):
        rows = int(60 * minute * each)
        found.append(
            ProgressSample(
                JobId(job), job, "gpu", begin + timedelta(minutes=minute), rows, 10**6, fed * rows, told * rows
            )
        )
    return found


def seen(*nights: list[ProgressSample]) -> Sight:
    return Sight("gpu", (), sorted((one for samples in nights for one in samples), key=lambda one: one.at))


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


@given(st.floats(1.0, 60.0), st.integers(0, 2**32 - 1))
@example(weight=1.046875, seed=0)
def test_two_jobs_of_unlike_lengths_teach_the_weight(weight: float, seed: int) -> None:
    noise = Random(seed)
    nights = [
        night(f"{tokens}-{day}", ago(day), tokens, weight, speed=noise.uniform(0.97, 1.03))
        for day in (1, 2, 3) for tokens in (CLASSIFY, (300, 300))
    ]  # fmt: skip
    # The nights of one day are an hour apart, so none works beside another.
    nights = [
        [ProgressSample(s.job_id, s.series, s.backend, s.at + timedelta(hours=2 * (place % 2)), s.done, s.left,
                        s.input_tokens, s.output_tokens) for s in samples]
        for place, samples in enumerate(nights)
    ]  # fmt: skip
    # Near 1 the noise of the speeds is as large as what is to be learned.
    assert output_weight(seen(*nights)) == pytest.approx(weight, rel=0.25, abs=0.35)


def test_jobs_that_are_alike_teach_nothing_and_what_was_measured_stays() -> None:
    sight = seen(*(night(f"c{day}", ago(day), CLASSIFY, 30.0, speed=1 + day / 50) for day in (1, 2, 3)))
    assert output_weight(sight) == pytest.approx(OUTPUT_WEIGHT, rel=0.1)
    assert output_weight(sight, 30.0) == pytest.approx(30.0, rel=0.1)
    assert output_weight(seen()) == OUTPUT_WEIGHT


def test_what_two_jobs_did_at_once_is_nobodys_speed() -> None:
    one = night("one", ago(1), CLASSIFY, 30.0)
    other = night("other", ago(1) + timedelta(minutes=30), EXTRACT, 30.0)
    shared = exclusive_work(seen(one, other))
    assert sum(part.seconds for part in shared) == pytest.approx(2 * 29 * 60, abs=180)


@pytest.mark.parametrize("weight", [2.0, 30.0])
def test_classification_does_not_teach_extraction_a_wrong_speed(weight: float) -> None:
    """Nights of classification, and one of summaries: extraction, which nobody has seen, is foreseen right."""
    sight = seen(
        *(night(f"c{day}", ago(day), CLASSIFY, weight) for day in (1, 2, 3, 4)),
        night("s", ago(5), (300, 300), weight),
    )
    learned = output_weight(sight)
    speeds = observations.speeds(sight, "extract", NOW, learned)
    asker = observations.Asker("extract")
    foreseen = observations.pace(
        sight, asker, Assumed(1.0, 1.0), work_of(*EXTRACT, learned), NOW, speeds, weight=learned
    )
    true = PREFILL / work_of(*EXTRACT, weight)
    assert foreseen.rate == pytest.approx(true, rel=0.15)
    naive = observations.pace(sight, asker, Assumed(1.0, 1.0), work_of(*EXTRACT), NOW)
    assert abs(naive.rate / true - 1) > 0.3, "with the assumed weight it is far off: the test tells them apart"
