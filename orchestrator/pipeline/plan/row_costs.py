"""Costs of rows that are alike, and the shares of rows that escalate to a stronger model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

from msgspec import Struct

from orchestrator.core.model import Usage
from orchestrator.pipeline.backend_handles import Prices
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.planner import Cost
from orchestrator.settings.model_lists import rung_of

INPUT_MARGIN, ASSUMED_OUTPUT_MARGIN = 1.15, 1.08
"""Factors that bound a job's prompts above their estimate (95 %), and its answers if their lengths are assumed."""
ENOUGH_ROWS = 10
"""With so many answers seen, their spread counts half, and what is assumed the other half."""


class Shape(Struct, frozen=True):
    """Rows that are alike: estimated tokens of a prompt and of an answer, on the mean.

    The mean answer does not exceed `most_output` (95 %).
    """

    rows: int
    model: str
    input_tokens: float
    output_tokens: float
    most_output: float

    @classmethod
    def of(cls, model: str, parts: Sequence[tuple[int, float, Lengths]]) -> Shape:
        """Rows of a model, in parts: their number, the mean tokens of a prompt, and the lengths of answers."""
        rows = sum(many for many, _, _ in parts)
        fed = sum(many * tokens for many, tokens, _ in parts) / rows
        mean = sum(many * lengths.mean for many, _, lengths in parts) / rows
        return cls(rows, model, fed, mean, sum(many * _most(lengths, rows) for many, _, lengths in parts) / rows)

    def cost(self, prices: Prices, model: str) -> Cost:
        """Return the cost of one row, for a model by its name there. Raises UsageError if the price is unknown."""
        usual = Usage(input_tokens=round(self.input_tokens), output_tokens=round(self.output_tokens))
        fed, told = math.ceil(self.input_tokens * INPUT_MARGIN), math.ceil(self.most_output)
        most = Usage(input_tokens=fed, output_tokens=told)
        return Cost(_price(prices, model, usual), _price(prices, model, most))


def _most(lengths: Lengths, rows: int) -> float:
    """Return the bound of the mean answer of so many rows (95 %). A guess does not make a job dearer than it says."""
    seen = lengths.seen / (lengths.seen + ENOUGH_ROWS)
    assumed = min(ASSUMED_OUTPUT_MARGIN * lengths.mean, lengths.p95)
    return seen * lengths.mean_p95(rows) + (1.0 - seen) * max(lengths.mean, assumed)


def _price(prices: Prices, model: str, usage: Usage) -> Decimal:
    price = prices.at_most(model, usage)
    assert price is not None, "paid by the token"
    return price.cost


def going_on(runs: Sequence[Mapping[str, int]], rung: str) -> list[tuple[int, int]]:
    """Return, for each run, the rows of an alias, and how many of them reached a rung."""
    alias, number = rung_of(rung)
    found = []
    for reached in runs:
        mine = {rung_of(model)[1]: rows for model, rows in reached.items() if rung_of(model)[0] == alias}
        found.append((sum(mine.values()), sum(rows for at, rows in mine.items() if at >= number)))
    return found
