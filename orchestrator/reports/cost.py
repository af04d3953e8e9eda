"""Cost reports: amounts paid, forecasts, and the cost of the same tokens at list prices. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from operator import itemgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace

from orchestrator.core.errors import InputError
from orchestrator.core.model import PICO, BookedUsage, Forecast, Price, Usage
from orchestrator.core.sanitize import BOM, no_formula
from orchestrator.policy.pricing import Tier, rates
from orchestrator.policy.token_rates import TierPrice

USUAL_DISCOUNT = Decimal("0.5")
"""Typical discount of batch APIs, used if the compared model has no listed batch price."""


BOOKED = "the list price when the row was answered"
"""Names the source of a list price that was booked with its row."""
Listed = Callable[[str, str, datetime], TierPrice]
"""Returns a model's non-batch list price at a backend and a time. Raises InputError if no list has it."""


class Estimate(Struct, frozen=True):
    """Forecast cost of jobs in dollars. `over_p50` and `over_paid` are the forecast and actual cost of finished jobs
    only.
    """

    p50: Decimal
    over_p50: Decimal
    over_paid: Decimal

    @property
    def off(self) -> float | None:
        """Relative error of the forecast, or None if nothing was forecast. 0.1 means that the cost was 10% higher."""
        return float(self.over_paid / self.over_p50) - 1 if self.over_p50 else None


class CostLine(Struct, frozen=True):
    """One line of a cost report, in dollars. `wasted` is included in `cost`, and `uncertain` in `wasted`.

    `listed` is the non-batch list price of the same tokens for the model that answered. If that model has no list
    price, `listed` is estimated from the compared model's price. `realtime` and `batch` are prices of the compared
    model. `estimate` is None if the group has no forecast. `unpriced` counts rows whose usage is only partly priced.
    """

    group: str
    rows: int
    usage: Usage
    cost: Decimal
    uncertain: Decimal
    wasted: Decimal
    estimated: bool
    unpriced: int
    listed: Price
    realtime: Price
    batch: Price
    documents: int
    estimate: Estimate | None

    @property
    def saved(self) -> Decimal:
        """Non-batch list price minus the amount paid; negative if more was paid."""
        return self.listed.cost - self.cost

    @property
    def per_document(self) -> Decimal | None:
        return (self.cost / self.documents).quantize(PICO) if self.documents else None

    @property
    def per_1000_tokens(self) -> Decimal | None:
        """Dollars per 1000 tokens, input and output together."""
        number = self.usage.input_tokens + self.usage.output_tokens
        return (self.cost * 1000 / number).quantize(PICO) if number else None


class CostReport(Struct, frozen=True):
    """Costs by group, and their sum. `compare` is the hosted model whose list prices are shown beside the costs.

    `days` are the first and last day (UTC) with a ledger line, or None without ledger lines. `running` is the cost of
    running batches so far. It is not booked yet, so no line includes it. `relisted` is true if some ledger lines were
    booked without a list price. These lines use the price in today's orch.toml.
    """

    by: str
    compare: str
    lines: Sequence[CostLine]
    total: CostLine
    days: tuple[date, date] | None = None
    running: Decimal = Decimal(0)
    relisted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return {
            "by": self.by,
            "compare": self.compare,
            "first_day": self.days and self.days[0].isoformat(),
            "last_day": self.days and self.days[1].isoformat(),
            "lines": [_json(line) for line in self.lines],
            "total": _json(self.total),
            "running_usd": f"{self.running:f}",
        }

    def to_csv(self, *, excel: bool = False) -> str:
        """Return the lines as CSV with a header. Group names that look like formulas are quoted.

        With `excel`, the text begins with a BOM, so that spreadsheets read it as UTF-8.
        """
        out = io.StringIO(BOM if excel else "")
        out.seek(0, io.SEEK_END)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([self.by, *_COLUMNS])
        for line in self.lines:
            usage, estimate = line.usage, line.estimate
            writer.writerow(
                [no_formula(line.group), line.rows, usage.input_tokens, usage.cached_tokens, usage.output_tokens,
                 f"{line.cost:f}", line.estimated, f"{line.realtime.cost:f}", f"{line.batch.cost:f}",
                 line.batch.estimated, usage.cache_write_tokens, usage.reasoning_tokens, f"{line.uncertain:f}",
                 line.documents, _text(estimate.p50 if estimate else None), f"{line.listed.cost:f}",
                 line.listed.estimated, f"{line.saved:f}", f"{line.wasted:f}", _text(line.per_document),
                 _text(line.per_1000_tokens), line.unpriced]
            )  # fmt: skip
        return out.getvalue()


# New columns go to the end: scripts also read columns by position.
_COLUMNS = (
    "rows", "input_tokens", "cached_tokens", "output_tokens", "cost_usd", "cost_estimated", "realtime_usd",
    "batch_usd", "batch_estimated", "cache_write_tokens", "reasoning_tokens", "uncertain_usd", "documents",
    "foreseen_usd", "list_usd", "list_estimated", "saved_usd", "wasted_usd", "per_document_usd",
    "per_1000_tokens_usd", "unpriced_rows",
)  # fmt: skip


def _json(line: CostLine) -> dict[str, Any]:
    estimate = line.estimate
    return {
        "group": line.group,
        "rows": line.rows,
        "documents": line.documents,
        "tokens": {
            "input": line.usage.input_tokens,
            "cached": line.usage.cached_tokens,
            "cache_write": line.usage.cache_write_tokens,
            "output": line.usage.output_tokens,
            "reasoning": line.usage.reasoning_tokens,
        },
        "cost_usd": f"{line.cost:f}",
        "uncertain_usd": f"{line.uncertain:f}",
        "wasted_usd": f"{line.wasted:f}",
        "cost_estimated": line.estimated,
        "unpriced_rows": line.unpriced,
        "foreseen": estimate and {
            "cost_usd": _text(estimate.p50),
            "finished_cost_usd": _text(estimate.over_p50),
            "finished_paid_usd": _text(estimate.over_paid),
            "off": None if estimate.off is None else round(estimate.off, 4),
        },
        "list_usd": f"{line.listed.cost:f}",
        "list_estimated": line.listed.estimated,
        "list_source": line.listed.source,
        "saved_usd": f"{line.saved:f}",
        "per_document_usd": _text(line.per_document),
        "per_1000_tokens_usd": _text(line.per_1000_tokens),
        "hosted": {
            "realtime_usd": f"{line.realtime.cost:f}",
            "batch_usd": f"{line.batch.cost:f}",
            "batch_estimated": line.batch.estimated,
            "source": line.realtime.source,
        },
    }  # fmt: skip


def _text(dollars: Decimal | None) -> str | None:
    """Return dollars as text, rounded to a picodollar, because divided values have more digits."""
    return None if dollars is None else f"{dollars.quantize(PICO):f}"


class CostFacts(Struct, frozen=True):
    """Input of a cost report.

    `lines` are the ledger sums by group, `whole` those of the total. The two differ if a ledger line is in several
    groups. `documents` and `estimates` are by group; the key None has the total.
    """

    lines: Sequence[BookedUsage]
    whole: Sequence[BookedUsage]
    documents: Mapping[str | None, int]
    estimates: Mapping[str | None, Estimate]


def cost_report(by: str, facts: CostFacts, compare: str, listed: Listed, at: datetime) -> CostReport:
    """Compare the amounts paid with list prices. Raises InputError if the compared model has no known price."""
    provider, _, model = compare.partition(":")
    realtime = rates(provider, model, tier=Tier.STANDARD, at=at)
    batch = rates(provider, model, tier=Tier.BATCH, at=at, discount=USUAL_DISCOUNT)

    def line(group: str, key: str | None, parts: Sequence[BookedUsage]) -> CostLine:
        usage = _total(part.usage for part in parts)
        rows = sum(part.rows for part in parts)
        return CostLine(
            group=group,
            rows=rows,
            usage=usage,
            cost=sum((part.cost for part in parts), Decimal(0)),
            uncertain=sum((part.uncertain for part in parts), Decimal(0)),
            wasted=sum((part.wasted for part in parts), Decimal(0)),
            estimated=any(part.estimated for part in parts),
            unpriced=sum(part.unpriced for part in parts),
            listed=_summed([_at_once(part, listed, realtime) for part in parts if part.usage != Usage()]),
            realtime=realtime.price(_elsewhere(usage), max(rows, 1)),
            batch=batch.price(_elsewhere(usage), max(rows, 1)),
            documents=facts.documents.get(key, 0),
            estimate=facts.estimates.get(key),
        )

    lines = [line(group, group, parts) for group, parts in _grouped(facts.lines).items()]
    days = [part.day for part in facts.whole]
    total = line("total", None, facts.whole)
    relisted = any(_is_relisted(part, listed) for part in facts.whole)
    return CostReport(by, compare, lines, total, (min(days), max(days)) if days else None, relisted=relisted)


_NOTHING = Estimate(Decimal(0), Decimal(0), Decimal(0))


def estimates(by: str, forecasts: Iterable[Forecast], jobs: Iterable[BookedUsage]) -> dict[str | None, Estimate]:
    """Sum the forecast cost of jobs by `job` or `day`, with the total under None. `jobs` are ledger lines by job.

    The forecast of a job that ran on several days is split in proportion to the amounts paid on each day. A job
    without a forecast or without ledger lines is left out.
    """
    foreseen: dict[str, list[Forecast]] = {}
    for one in forecasts:
        if one.kind == "cost":
            foreseen.setdefault(one.job_id, []).append(one)
    found: dict[str | None, Estimate] = {}
    for job, parts in _grouped(jobs).items():
        if job not in foreseen:
            continue
        p50 = sum((Decimal(repr(one.p50)) for one in foreseen[job]), Decimal(0))
        is_open = any(one.actual is None for one in foreseen[job])
        whole = sum((part.cost for part in parts), Decimal(0))
        for part in parts:
            share = part.cost / whole if whole else Decimal(1) / len(parts)
            for key in (job if by == "job" else part.day.isoformat(), None):
                old = found.get(key, _NOTHING)
                over = (Decimal(0), Decimal(0)) if is_open else (p50 * share, part.cost)
                found[key] = Estimate(old.p50 + p50 * share, old.over_p50 + over[0], old.over_paid + over[1])
    return found


def by_day(jobs: Iterable[BookedUsage]) -> list[BookedUsage]:
    """Combine ledger lines by job into ledger lines by day."""
    found: dict[tuple[Any, ...], list[BookedUsage]] = {}
    for one in jobs:
        found.setdefault((one.day, one.backend, one.model, one.listed is None), []).append(one)
    return [
        replace(
            parts[0],
            group=day.isoformat(),
            rows=sum(part.rows for part in parts),
            usage=_total(part.usage for part in parts),
            cost=sum((part.cost for part in parts), Decimal(0)),
            uncertain=sum((part.uncertain for part in parts), Decimal(0)),
            wasted=sum((part.wasted for part in parts), Decimal(0)),
            estimated=any(part.estimated for part in parts),
            unpriced=sum(part.unpriced for part in parts),
            listed=None if has_none else sum((part.listed or Decimal(0) for part in parts), Decimal(0)),
        )
        for (day, *_, has_none), parts in sorted(found.items(), key=itemgetter(0))
    ]


def _grouped(lines: Iterable[BookedUsage]) -> dict[str, list[BookedUsage]]:
    groups: dict[str, list[BookedUsage]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    return groups


def _is_relisted(part: BookedUsage, listed: Listed) -> bool:
    if part.listed is not None or part.usage == Usage():
        return False
    try:
        listed(part.backend, part.model, datetime.combine(part.day, time(12), UTC))
    except InputError:
        return False
    return True


def _at_once(part: BookedUsage, listed: Listed, compared: TierPrice) -> Price:
    if part.listed is not None:
        return Price(part.listed, BOOKED)
    try:
        found = listed(part.backend, part.model, datetime.combine(part.day, time(12), UTC))
        return found.price(part.usage, max(part.rows, 1))
    except InputError:
        found = replace(compared, estimated=True)
        return found.price(_elsewhere(part.usage), max(part.rows, 1))


def _elsewhere(usage: Usage) -> Usage:
    """Return the tokens as another provider would bill them: all uncached, because its cache may lack them."""
    return Usage(usage.input_tokens, 0, usage.output_tokens)


def _summed(prices: Sequence[Price]) -> Price:
    return Price(
        sum((price.cost for price in prices), Decimal(0)),
        "; ".join(dict.fromkeys(price.source for price in prices)),
        any(price.estimated for price in prices),
    )


def _total(usages: Iterable[Usage]) -> Usage:
    return Usage(*(sum(column) for column in zip(*(astuple(usage) for usage in usages), strict=True)))
