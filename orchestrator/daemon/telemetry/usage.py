"""The GenAI conventions' client metrics, as histograms that add up while the daemon runs.

https://github.com/open-telemetry/semantic-conventions-genai (gen-ai-metrics): names, units and bounds.
"""

from __future__ import annotations

from msgspec import Struct

from orchestrator.daemon.telemetry.spans import ServedBy, Value
from orchestrator.store.telemetry import Spread

TOKENS = "gen_ai.client.token.usage"
DURATION = "gen_ai.client.operation.duration"
TOKEN_BOUNDS = tuple(4**power for power in range(14))
"""Upper bounds of token histograms: 1, 4, 16 … 67,108,864 tokens."""
DURATION_BOUNDS_MS = tuple(10 * 2**power for power in range(14))
"""Upper bounds of duration histograms: 10, 20, 40 … 81,920 milliseconds."""


class HistogramPoint(Struct, frozen=True):
    """One series of a histogram, since the process started.

    `bounds`, `total`, `least` and `most` are in the metric's unit.
    """

    metric: str
    attributes: tuple[tuple[str, Value], ...]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    least: float
    most: float

    @property
    def key(self) -> tuple[str, tuple[tuple[str, Value], ...]]:
        return self.metric, self.attributes

    def plus(self, other: HistogramPoint) -> HistogramPoint:
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        least, most = min(self.least, other.least), max(self.most, other.most)
        total = self.total + other.total
        return HistogramPoint(self.metric, self.attributes, self.bounds, counts, total, least, most)


def token_point(spread: Spread, served: ServedBy, operation: str, model: str, kind: str) -> HistogramPoint:
    """Return a histogram point of the tokens of a shard's rows. `kind` is `input` or `output`."""
    attributes = {**_common(served, operation, model), "gen_ai.token.type": kind}
    return HistogramPoint(
        TOKENS, _sorted(attributes), tuple(map(float, TOKEN_BOUNDS)), spread.counts, float(spread.total),
        float(spread.least), float(spread.most),
    )  # fmt: skip


def duration_point(spread: Spread, served: ServedBy, operation: str, model: str, error: str | None) -> HistogramPoint:
    """Return a histogram point of the seconds of rows that ended with the code `error` (None: without an error)."""
    attributes = _common(served, operation, model)
    if error is not None:
        attributes["error.type"] = error
    bounds = tuple(bound / 1000 for bound in DURATION_BOUNDS_MS)
    total, least, most = (value / 1000 for value in (spread.total, spread.least, spread.most))
    return HistogramPoint(DURATION, _sorted(attributes), bounds, spread.counts, total, least, most)


def _common(served: ServedBy, operation: str, model: str) -> dict[str, Value]:
    return {**served.attributes, "gen_ai.operation.name": operation, "gen_ai.request.model": model}


def _sorted(attributes: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(attributes.items()))
