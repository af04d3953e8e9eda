"""Prices of a bench's rows elsewhere: at a backend of orch.toml, or at any provider of the price table."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from orchestrator.core.errors import UsageError
from orchestrator.core.model import Price, Usage
from orchestrator.pipeline.plan.prices import listed_prices, prices_of
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.pricing import Tier
from orchestrator.settings.config import Config

Hosted = tuple[str, Decimal, bool]
"""A name, the price of a row there in dollars, and whether it is an estimate."""


def hosted_row(
    config: Config, versus: str, input_tokens: float, output_tokens: float, now: Callable[[], datetime]
) -> Hosted:
    """Return the price of a row of these sizes at `BACKEND:MODEL` or `PROVIDER:MODEL`. Raises UsageError."""
    place, _, model = versus.partition(":")
    if not place or not model:
        raise UsageError(f"--vs {versus}: write BACKEND:MODEL or PROVIDER:MODEL, such as openai:gpt-5-nano")
    # A thousand rows, because prices are for whole tokens.
    usage = Usage(input_tokens=math.ceil(1000 * input_tokens), output_tokens=math.ceil(1000 * output_tokens))
    found = _price(config, place, model, usage, now)
    return versus, found.cost / 1000, found.estimated


def _price(config: Config, place: str, model: str, usage: Usage, now: Callable[[], datetime]) -> Price:
    if (backend := config.backends.get(place)) is not None:
        names = {alias: name for alias, name in config.models.items() if isinstance(name, str | dict)}
        found = prices_of(backend, config, now).at_most(resolve_model(model, place, names) or model, usage)
        if found is None:
            raise UsageError(
                f"--vs {place}: is priced by the hour, and its throughput is not known here",
                hint=f"measure it too: orch bench JOB.yaml --backend {place}",
            )
        return found
    try:
        return listed_prices(place, Tier.BATCH, config, now).at_most(model, usage)
    except UsageError:
        return listed_prices(place, Tier.STANDARD, config, now).at_most(model, usage)
