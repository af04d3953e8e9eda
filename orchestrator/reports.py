"""Cost reports: what was paid, and what the same tokens cost at a hosted provider's list prices. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from orchestrator.model import Price, Usage
from orchestrator.pricing import Tier, rates

USUAL_DISCOUNT = Decimal("0.5")
"""What most batch APIs take off, for a comparison with a model whose batch price is not listed."""


class Line(Protocol):
    """A group of ledger lines: one group and model."""

    @property
    def group(self) -> str:
        """What the report groups by."""

    @property
    def model(self) -> str:
        """Who answered."""

    @property
    def rows(self) -> int:
        """Rows that reached a backend."""

    @property
    def usage(self) -> Usage:
        """Their tokens."""

    @property
    def cost(self) -> Decimal:
        """What they cost, in dollars."""

    @property
    def uncertain(self) -> Decimal:
        """How much of the cost is for sends that brought no answer and may not be billed, in dollars."""

    @property
    def estimated(self) -> bool:
        """Whether some of the cost is an estimate."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of a cost report; dollars. `uncertain` is a part of `cost`."""

    group: str
    rows: int
    usage: Usage
    cost: Decimal
    uncertain: Decimal
    estimated: bool
    realtime: Price
    batch: Price


@dataclass(frozen=True, slots=True)
class CostReport:
    """Costs by group, and their sum. `compare` is the hosted model whose list prices stand beside them."""

    by: str
    compare: str
    lines: Sequence[CostLine]
    total: CostLine

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/json.md."""
        return {
            "by": self.by,
            "compare": self.compare,
            "lines": [_json(line) for line in self.lines],
            "total": _json(self.total),
        }

    def to_csv(self) -> str:
        """The lines as CSV with a header."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([self.by, *_COLUMNS])
        for line in self.lines:
            usage = line.usage
            writer.writerow(
                [line.group, line.rows, usage.input_tokens, usage.cached_tokens, usage.output_tokens,
                 f"{line.cost:f}", line.estimated, f"{line.realtime.cost:f}", f"{line.batch.cost:f}",
                 line.batch.estimated, usage.cache_write_tokens, usage.reasoning_tokens, f"{line.uncertain:f}"]
            )  # fmt: skip
        return out.getvalue()


# New ones go behind: scripts read them by place, too.
_COLUMNS = (
    "rows", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "cost_estimated", "realtime_usd",
    "batch_usd", "batch_estimated", "cache_write_tokens", "reasoning_tokens", "uncertain_usd",
)  # fmt: skip


def _json(line: CostLine) -> dict[str, Any]:
    return {
        "group": line.group,
        "rows": line.rows,
        "tokens": {
            "input": line.usage.input_tokens,
            "cached": line.usage.cached_tokens,
            "cache_write": line.usage.cache_write_tokens,
            "output": line.usage.output_tokens,
            "reasoning": line.usage.reasoning_tokens,
        },
        "cost_usd": f"{line.cost:f}",
        "uncertain_usd": f"{line.uncertain:f}",
        "cost_estimated": line.estimated,
        "hosted": {
            "realtime_usd": f"{line.realtime.cost:f}",
            "batch_usd": f"{line.batch.cost:f}",
            "batch_estimated": line.batch.estimated,
            "source": line.realtime.source,
        },
    }


def cost_report(by: str, totals: Sequence[Line], compare: str, at: datetime) -> CostReport:
    """Put hosted list prices beside what was paid. Raises InputError for a model without a known price."""
    provider, _, model = compare.partition(":")
    realtime = rates(provider, model, tier=Tier.STANDARD, at=at)
    batch = rates(provider, model, tier=Tier.BATCH, at=at, discount=USUAL_DISCOUNT)

    def line(group: str, parts: Sequence[Line]) -> CostLine:
        usage = _total(part.usage for part in parts)
        rows = sum(part.rows for part in parts)
        # Tokens that our own cache spared are not tokens that a provider's cache would have spared.
        elsewhere = Usage(usage.input_tokens, 0, usage.output_tokens)
        return CostLine(
            group,
            rows,
            usage,
            sum((part.cost for part in parts), Decimal(0)),
            sum((part.uncertain for part in parts), Decimal(0)),
            any(part.estimated for part in parts),
            realtime.price(elsewhere, max(rows, 1)),
            batch.price(elsewhere, max(rows, 1)),
        )

    groups: dict[str, list[Line]] = {}
    for total in totals:
        groups.setdefault(total.group, []).append(total)
    return CostReport(
        by, compare, [line(group, parts) for group, parts in groups.items()], line("total", list(totals))
    )


def _total(usages: Iterable[Usage]) -> Usage:
    return Usage(*(sum(column) for column in zip(*(astuple(usage) for usage in usages), strict=True)))
