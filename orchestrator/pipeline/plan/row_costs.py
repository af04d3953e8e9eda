"""Costs of rows that are alike, and the shares of rows that escalate to a stronger model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.core.model import Usage
from orchestrator.pipeline.backend_handles import Prices
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.planner import Cost
from orchestrator.settings.model_lists import rung_of

INPUT_MARGIN, KNOWN_INPUT_MARGIN = 1.15, 1.05
"""Factors that bound a job's prompts above their estimate (95 %), without and with earlier runs."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows that are alike: the mean estimated prompt tokens, and the expected length of answers."""

    rows: int
    model: str
    input_tokens: float
    output: Lengths

    def cost(self, prices: Prices, model: str) -> Cost:
        """Return the cost of one row, for a model by its name there. Raises UsageError if the price is unknown."""
        usual = Usage(input_tokens=round(self.input_tokens), output_tokens=round(self.output.mean))
        margin = KNOWN_INPUT_MARGIN if self.output.seen else INPUT_MARGIN
        high = Usage(
            input_tokens=math.ceil(self.input_tokens * margin),
            output_tokens=math.ceil(self.output.mean_p95(self.rows)),
        )
        return Cost(_price(prices, model, usual), _price(prices, model, high))


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
