"""Whether jobs cost no more than they are told to, on nights of answers with heavy tails."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from orchestrator.pipeline.plan.prices import Shape
from orchestrator.policy.forecast import output_lengths

ROWS, NIGHTS, EARLIER, MOST = 1_000, 150, 4, 4_096


def answers(chance: Random, sigma: float) -> list[int]:
    """A night's answers: log-normal around a level that differs from night to night."""
    level = 150.0 * math.exp(chance.gauss(0.0, 0.03) - sigma**2 / 2)
    return [min(MOST, 1 + round(level * chance.lognormvariate(0.0, sigma))) for _ in range(ROWS)]


@pytest.mark.long
@pytest.mark.thinned(3)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 1.5])
def test_answers_are_no_longer_than_is_told_on_95_of_100_nights(sigma: float) -> None:
    chance, within, told = Random(5), 0, 0.0
    for _ in range(NIGHTS):
        seen = Counter(length for _ in range(EARLIER) for length in answers(chance, sigma))
        shape = Shape.of("m", [(ROWS, 100.0, output_lengths(seen, MOST))])
        mean = sum(answers(chance, sigma)) / ROWS
        within += mean <= shape.most_output
        told += shape.most_output / mean
    assert within >= 0.95 * NIGHTS
    assert told <= 1.5 * NIGHTS, "and it is not told far too much"


def test_a_job_with_several_kinds_of_answers_is_told_the_sum_of_them() -> None:
    short, long = output_lengths({10: 500}, 20), output_lengths({1_000: 400, 2_000: 100}, 2_000)
    both = Shape.of("m", [(300, 100.0, short), (100, 400.0, long)])
    alone = [Shape.of("m", [(400, 100.0, one)]) for one in (short, long)]
    assert (both.rows, both.input_tokens) == (400, pytest.approx(175.0))
    assert both.output_tokens == pytest.approx(0.75 * short.mean + 0.25 * long.mean)
    assert both.most_output == pytest.approx(0.75 * alone[0].most_output + 0.25 * alone[1].most_output)


def test_before_any_answer_a_job_costs_what_is_assumed_and_little_more() -> None:
    unknown = Shape.of("m", [(400, 100.0, output_lengths({}, 500))])
    assert unknown.output_tokens < unknown.most_output < 1.1 * unknown.output_tokens
    few = Shape.of("m", [(400, 100.0, output_lengths({100: 5}, 500))])
    assert few.most_output < 500
