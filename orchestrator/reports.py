"""Cost reports: what was paid, and what the same tokens cost at a hosted provider's list prices. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from orchestrator.model import Price, Usage
from orchestrator.pricing import hosted_price


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
    def estimated(self) -> bool:
        """Whether some of the cost is an estimate."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of a cost report; dollars."""

    group: str
    rows: int
    usage: Usage
    cost: Decimal
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
        writer.writerow(
            [self.by, "rows", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "cost_estimated",
             "realtime_usd", "batch_usd", "batch_estimated"]
        )  # fmt: skip
        for line in self.lines:
            usage = line.usage
            writer.writerow(
                [line.group, line.rows, usage.input_tokens, usage.cached_tokens, usage.output_tokens,
                 f"{line.cost:f}", line.estimated, f"{line.realtime.cost:f}", f"{line.batch.cost:f}",
                 line.batch.estimated]
            )  # fmt: skip
        return out.getvalue()


def _json(line: CostLine) -> dict[str, Any]:
    return {
        "group": line.group,
        "rows": line.rows,
        "tokens": {
            "input": line.usage.input_tokens,
            "cached": line.usage.cached_tokens,
            "output": line.usage.output_tokens,
        },
        "cost_usd": f"{line.cost:f}",
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

    def line(group: str, parts: Sequence[Line]) -> CostLine:
        usage = Usage(
            sum(part.usage.input_tokens for part in parts),
            sum(part.usage.cached_tokens for part in parts),
            sum(part.usage.output_tokens for part in parts),
        )
        return CostLine(
            group,
            sum(part.rows for part in parts),
            usage,
            sum((part.cost for part in parts), Decimal(0)),
            any(part.estimated for part in parts),
            # Tokens that our own cache spared are not tokens that a provider's cache would have spared.
            hosted_price(provider, model, Usage(usage.input_tokens, 0, usage.output_tokens), batch=False, at=at),
            hosted_price(provider, model, Usage(usage.input_tokens, 0, usage.output_tokens), batch=True, at=at),
        )

    groups: dict[str, list[Line]] = {}
    for total in totals:
        groups.setdefault(total.group, []).append(total)
    return CostReport(
        by, compare, [line(group, parts) for group, parts in groups.items()], line("total", list(totals))
    )
