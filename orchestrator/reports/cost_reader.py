"""Cost reports, built from the store and the prices of orch.toml."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.core.clock import now
from orchestrator.core.errors import InputError
from orchestrator.core.model import JobId
from orchestrator.pipeline.plan.prices import ByToken, prices_of
from orchestrator.policy.pricing import Tier, rates
from orchestrator.policy.token_rates import TierPrice
from orchestrator.reports.cost import CostFacts, CostReport, Listed, by_day, cost_report, estimates
from orchestrator.reports.status import RunningCost, running_sum
from orchestrator.settings.config import Config

if TYPE_CHECKING:
    from orchestrator.store import Store

GROUPS = ("job", "day", "task", "model", "backend", "tag")
"""Groupings of a cost report, in addition to `tag:KEY`."""


def cost_of(
    store: Store,
    settings: Config,
    by: str,
    since: datetime | None,
    job: JobId | None,
    running_cost: RunningCost,
    compare: str | None = None,
) -> CostReport:
    """Report the amounts paid since a time or for one job, beside list prices of the hosted model `compare`.

    `running_cost` returns the cost of a running batch so far. Raises InputError if the compared model has no known
    price.
    """
    ledger, zone = store.ledger, settings.reports.zone
    # A line with several tags is in several groups, but once in the total.
    whole = ledger.totals("job" if by in ("tag", "day") else by, since, job, zone)
    lines = ledger.totals(by, since, job, zone) if by == "tag" else by_day(whole) if by == "day" else whole
    found = estimates(by, store.forecasts.since(since), whole) if by in ("job", "day") else {}
    facts = CostFacts(lines, whole, ledger.documents(by, since, job, zone), found)
    report = cost_report(by, facts, compare or settings.report.compare, _list_prices(settings), now())
    flying = [shard for shard in ledger.unpaid(None) if job in (None, shard.job_id)]
    return replace(report, running=running_sum(flying, running_cost))


def _list_prices(settings: Config) -> Listed:
    known = {name: prices_of(backend, settings, now) for name, backend in settings.backends.items()}

    def listed(backend: str, model: str, at: datetime) -> TierPrice:
        prices = known.get(backend)
        if not isinstance(prices, ByToken):
            raise InputError(f"{backend} has no price per token")
        return rates(prices.provider, model, tier=Tier.STANDARD, at=at, overrides=prices.overrides)

    return listed
