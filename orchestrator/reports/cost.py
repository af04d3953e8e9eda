"""Cost reports: what was paid, what was forecast, and what the same tokens cost at list prices. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Protocol

from orchestrator.core.errors import InputError
from orchestrator.core.model import PICO, Forecast, Price, Usage
from orchestrator.policy.pricing import Tier, rates
from orchestrator.policy.token_rates import TierPrice

USUAL_DISCOUNT = Decimal("0.5")
"""What most batch APIs take off, for a comparison with a model whose batch price is not listed."""


class BookedUsage(Protocol):
    """A part of a group: its ledger lines of one backend, model and day."""

    @property
    def group(self) -> str:
        """What the report groups by."""

    @property
    def backend(self) -> str:
        """Where it ran."""

    @property
    def model(self) -> str:
        """Who answered."""

    @property
    def day(self) -> date:
        """When, in UTC."""

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
    def wasted(self) -> Decimal:
        """How much of the cost brought no answer that is used, the uncertain part among it, in dollars."""

    @property
    def estimated(self) -> bool:
        """Whether some of the cost is an estimate."""

    @property
    def unpriced(self) -> int:
        """Rows whose cost does not cover all that their answer used."""


Listed = Callable[[str, str, datetime], TierPrice]
"""What a model at a backend costs at once, in no batch, at a time. Raises InputError where no list has it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What jobs were foreseen to cost, and of those that are over: what they were to cost, and did; dollars."""

    p50: Decimal
    over_p50: Decimal
    over_paid: Decimal

    @property
    def off(self) -> float | None:
        """How far what was paid is above what was forecast (0.1: a tenth); None where it cannot be said."""
        return float(self.over_paid / self.over_p50) - 1 if self.over_p50 else None


@dataclass(frozen=True, slots=True)
class CostLine:
    """One line of a cost report; dollars. `wasted` is a part of `cost`, `uncertain` a part of `wasted`.

    `listed` is what the same tokens cost at once at the list price of the model that answered: an estimate where
    the compared model stood in for one without a list price. `realtime` and `batch` are those of the compared model.
    `estimate` is None where no forecast belongs to the group. `unpriced` counts rows whose cost does not cover all
    that their answer used.
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
        """How much less was paid than the list price at once; below zero where it was more."""
        return self.listed.cost - self.cost

    @property
    def per_document(self) -> Decimal | None:
        """Dollars a document."""
        return (self.cost / self.documents).quantize(PICO) if self.documents else None

    @property
    def per_1000_tokens(self) -> Decimal | None:
        """Dollars for a thousand tokens, in and out."""
        number = self.usage.input_tokens + self.usage.output_tokens
        return (self.cost * 1000 / number).quantize(PICO) if number else None


@dataclass(frozen=True, slots=True)
class CostReport:
    """Costs by group, and their sum. `compare` is the hosted model whose list prices stand beside them.

    `days` are the first and the last on which something was booked (UTC), None where nothing was.
    """

    by: str
    compare: str
    lines: Sequence[CostLine]
    total: CostLine
    days: tuple[date, date] | None = None

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/reference/json.md."""
        return {
            "by": self.by,
            "compare": self.compare,
            "first_day": self.days and self.days[0].isoformat(),
            "last_day": self.days and self.days[1].isoformat(),
            "lines": [_json(line) for line in self.lines],
            "total": _json(self.total),
        }

    def to_csv(self) -> str:
        """The lines as CSV with a header, for spreadsheets: a group that one would take for a formula is quoted."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([self.by, *_COLUMNS])
        for line in self.lines:
            usage, estimate = line.usage, line.estimate
            writer.writerow(
                [_no_formula(line.group), line.rows, usage.input_tokens, usage.cached_tokens, usage.output_tokens,
                 f"{line.cost:f}", line.estimated, f"{line.realtime.cost:f}", f"{line.batch.cost:f}",
                 line.batch.estimated, usage.cache_write_tokens, usage.reasoning_tokens, f"{line.uncertain:f}",
                 line.documents, _text(estimate.p50 if estimate else None), f"{line.listed.cost:f}",
                 line.listed.estimated, f"{line.saved:f}", f"{line.wasted:f}", _text(line.per_document),
                 _text(line.per_1000_tokens), line.unpriced]
            )  # fmt: skip
        return out.getvalue()


def _no_formula(text: str) -> str:
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


# New ones go behind: scripts read them by place, too.
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
    """Dollars that were divided, to a picodollar."""
    return None if dollars is None else f"{dollars.quantize(PICO):f}"


@dataclass(frozen=True, slots=True)
class CostFacts:
    """What a cost report is made of.

    `lines` are the parts of the groups, `whole` those of the total: the same lines, but where a line is in several
    groups. `documents` counts them by group, under None in all; `estimates` are by group, too.
    """

    lines: Sequence[BookedUsage]
    whole: Sequence[BookedUsage]
    documents: Mapping[str | None, int]
    estimates: Mapping[str | None, Estimate]


def cost_report(by: str, facts: CostFacts, compare: str, listed: Listed, at: datetime) -> CostReport:
    """Put list prices beside what was paid. Raises InputError where the compared model has no known price."""
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
    return CostReport(by, compare, lines, line("total", None, facts.whole), (min(days), max(days)) if days else None)


_NOTHING = Estimate(Decimal(0), Decimal(0), Decimal(0))


def estimates(by: str, forecasts: Iterable[Forecast], jobs: Iterable[BookedUsage]) -> dict[str | None, Estimate]:
    """What jobs were foreseen to cost, by `job` or `day`, and under None in all; `jobs` are lines by job.

    A job that runs over midnight has its forecast on each day in the share of what was paid on that day. A job
    without a forecast, or of which nothing was booked, is left out.
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


def _grouped(lines: Iterable[BookedUsage]) -> dict[str, list[BookedUsage]]:
    groups: dict[str, list[BookedUsage]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    return groups


def _at_once(part: BookedUsage, listed: Listed, compared: TierPrice) -> Price:
    try:
        found = listed(part.backend, part.model, datetime.combine(part.day, time(12), UTC))
        return found.price(part.usage, max(part.rows, 1))
    except InputError:
        found = replace(compared, estimated=True)
        return found.price(_elsewhere(part.usage), max(part.rows, 1))


def _elsewhere(usage: Usage) -> Usage:
    """Tokens at another provider: what our own cache spared is not what a provider's would have spared."""
    return Usage(usage.input_tokens, 0, usage.output_tokens)


def _summed(prices: Sequence[Price]) -> Price:
    return Price(
        sum((price.cost for price in prices), Decimal(0)),
        "; ".join(dict.fromkeys(price.source for price in prices)),
        any(price.estimated for price in prices),
    )


def _total(usages: Iterable[Usage]) -> Usage:
    return Usage(*(sum(column) for column in zip(*(astuple(usage) for usage in usages), strict=True)))
