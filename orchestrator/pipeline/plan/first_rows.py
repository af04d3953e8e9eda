"""Rows that a plan asks first, at the synchronous endpoints of providers that get batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from orchestrator.backends.open import profile_for
from orchestrator.core.model import Job, Usage
from orchestrator.core.tokens import estimate
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.pipeline.plan.unproven import is_priced, is_wanted, unproven
from orchestrator.policy.planner import FirstRow, Plan, Route
from orchestrator.policy.preflight import FEW_ROWS
from orchestrator.settings.backends import AnthropicBackend, HostedBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store


def first_rows(store: Store, config: Config, job: Job, routes: Sequence[Route], now: datetime) -> Iterator[FirstRow]:
    """Yield the rows asked first if a plan takes these routes, with the most that each costs."""
    for route in routes if is_wanted(job) else ():
        backend = config.backends[route.backend]
        if route.rows <= FEW_ROWS or not isinstance(backend, HostedBackend | AnthropicBackend):
            continue
        if not (backend.preflight and profile_for(backend).asks_directly):
            continue
        prices = prices_of(backend, config, lambda: now)
        home, models = Home(config.home), models_of(config, job)
        for one in unproven(store, home, job, route.backend, recipient_of(backend), models, now):
            if not is_priced(prices, one):
                continue
            row = one.row
            usage = Usage(input_tokens=estimate(row.span.length), output_tokens=row.max_output or 0)
            most = None if row.max_output is None else prices.synchronous().at_most(one.model, usage)
            yield FirstRow(route.backend, one.model, None if most is None else most.cost)


def with_first_rows(plan: Plan, rows: tuple[FirstRow, ...]) -> Plan:
    """Add the rows asked first to a plan, which has counted them at a batch's half price."""
    more = sum((one.at_most for one in rows if one.at_most is not None), Decimal(0))
    return replace(plan, first_rows=rows, expected=plan.expected + more / 2, at_most=plan.at_most + more)
