"""Distribution of answer lengths."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

from orchestrator.policy.forecast.words import source


class Lengths(Struct, frozen=True):
    """Output tokens of one row: mean, median, 95 % quantile and variance, from `seen` observed rows."""

    mean: float
    p50: int
    p95: int
    source: str
    variance: float = 0.0
    seen: int = 0

    def mean_p95(self, rows: int) -> float:
        """Return the 95 % quantile of the mean over `rows` rows.

        The sampling variance falls as 1 / rows. The uncertainty of the mean and its drift from night to night do not
        fall.
        """
        if self.mean <= 0:
            return 0.0
        weight = _PRIOR_ROWS + self.seen
        sampling = self.variance / max(1, rows)
        mean = self.variance * _PRIOR_ROWS / weight + self.variance / weight
        drift = (_DRIFT * self.mean) ** 2
        return min(self.mean + _P95 * math.sqrt(sampling + mean + drift), max(self.mean, float(self.p95)))


_PRIOR_ROWS = 10
_P95 = 1.645
_DRIFT = 0.05
"""Standard deviation of the mean from night to night, as a share of the mean."""


def output_lengths(seen: Mapping[int, int], max_tokens: int) -> Lengths:
    """Return the length distribution of one task and prompt version, with answers of at most `max_tokens`.

    `seen` maps a number of output tokens to the number of rows with that length. The prior is ten rows, uniform up to
    `max_tokens`.
    """
    count = sum(seen.values())
    rows: dict[int, int] = defaultdict(int)
    for tokens, number in seen.items():
        rows[min(tokens, max_tokens)] += number
    for part in range(1, _PRIOR_ROWS + 1):
        rows[math.ceil(max_tokens * part / _PRIOR_ROWS)] += 1
    total = count + _PRIOR_ROWS
    mean = sum(tokens * number for tokens, number in rows.items()) / total
    variance = sum((tokens - mean) ** 2 * number for tokens, number in rows.items()) / total
    p50, p95 = _quantile(rows, total * 0.5), _quantile(rows, total * 0.95)
    return Lengths(mean, p50, p95, source(count, "rows", 100), variance, count)


def _quantile(rows: Mapping[int, int], rank: float) -> int:
    cumulative = 0
    for tokens in sorted(rows):
        cumulative += rows[tokens]
        if cumulative >= rank:
            break
    return tokens
