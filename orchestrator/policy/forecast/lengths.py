"""How long answers are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

from orchestrator.policy.forecast.words import source


class Lengths(Struct, frozen=True):
    """Output tokens of one row: the mean, two quantiles, and where they come from.

    `mean_p95` is what the mean over `rows` such rows does not exceed (95 %).
    """

    mean: float
    p50: int
    p95: int
    source: str
    variance: float = 0.0
    seen: int = 0

    def mean_p95(self, rows: int) -> float:
        """What the mean of so many rows does not exceed (95 %).

        Chance evens out over the rows; what is not known of the mean does not, nor what differs from night to night.
        """
        if self.mean <= 0:
            return 0.0
        known = _PRIOR_ROWS + self.seen
        own = self.variance / max(1, rows)
        mean = self.variance * _PRIOR_ROWS / known + self.variance / known
        drift = (_DRIFT * self.mean) ** 2
        return min(self.mean + _P95 * math.sqrt(own + mean + drift), max(self.mean, float(self.p95)))


_PRIOR_ROWS = 10
_P95 = 1.645
_DRIFT = 0.05
"""By how much the mean differs from one night to the next."""


def output_lengths(seen: Mapping[int, int], max_tokens: int) -> Lengths:
    """Output tokens of rows of one task and prompt version that may have up to `max_tokens`.

    `seen` counts rows by their output tokens. The prior is ten rows, evenly up to `max_tokens`.
    """
    count = sum(seen.values())
    rows: dict[int, int] = defaultdict(int)
    for tokens, many in seen.items():
        rows[min(tokens, max_tokens)] += many
    for part in range(1, _PRIOR_ROWS + 1):
        rows[math.ceil(max_tokens * part / _PRIOR_ROWS)] += 1
    whole = count + _PRIOR_ROWS
    mean = sum(tokens * many for tokens, many in rows.items()) / whole
    variance = sum((tokens - mean) ** 2 * many for tokens, many in rows.items()) / whole
    p50, p95 = _part(rows, whole * 0.5), _part(rows, whole * 0.95)
    return Lengths(mean, p50, p95, source(count, "rows", 100), variance, count)


def _part(rows: Mapping[int, int], rank: float) -> int:
    so_far = 0
    for tokens in sorted(rows):
        so_far += rows[tokens]
        if so_far >= rank:
            break
    return tokens
