"""Cost of rows in Decimal dollars, with the source of each figure. Pure, except that it reads the price table.

An unknown price is an error or marked `estimated`. It is never zero, and never silently replaced by another tier's
price. Hosted prices come from genai-prices, unless orch.toml has prices for the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.errors import InputError
from orchestrator.core.model import PICO, Outcome, Price, RequestState, Usage
from orchestrator.core.money import amount
from orchestrator.core.near_names import near_words
from orchestrator.policy.token_rates import TierPrice, TokenRates

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice, PriceCalculation

_HOUR = Decimal(3600)
_QUARTER = 900
"""Seconds in a quarter of an hour. Listed prices begin only at quarters, so rows answered in one quarter share a
look-up.
"""
_OLDEST = 30 * 86_400
"""Maximum plausible age of an answer, in seconds. Some servers state a small constant instead of a time."""
_KEYS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "reasoning": "output_reasoning_mtok",
    "input_audio": "input_audio_mtok",
    "output_audio": "output_audio_mtok",
    "input_image": "input_image_mtok",
    "output_image": "output_image_mtok",
    "request": "requests_kcount",
    "search": "web_searches_kcount",
}
"""Names in genai-prices for our rates."""
_BY_THOUSAND = frozenset({"request", "search"})


class Tier(StrEnum):
    """Ways to serve a row, each with its own token prices."""

    BATCH = "batch"  # by a Batch API
    FLEX = "flex"  # by a synchronous API, when it has room
    STANDARD = "standard"  # by a synchronous API, at once
    PRIORITY = "priority"  # by a synchronous API, before others


TIERS: Mapping[str, Tier] = {
    "batch": Tier.BATCH,
    "flex": Tier.FLEX,
    "auto": Tier.STANDARD,
    "default": Tier.STANDARD,
    "standard": Tier.STANDARD,
    "on_demand": Tier.STANDARD,
    "scale": Tier.STANDARD,
    "priority": Tier.PRIORITY,
    "fast": Tier.PRIORITY,
}
"""Tiers by their names in requests and answers (`service_tier`)."""

_CONTEXTS = {
    Tier.BATCH: {"processing": "batch"},
    Tier.FLEX: {"service_tier": "flex"},
    Tier.PRIORITY: {"service_tier": "priority"},
}


def local_price(upstream_seconds: float, cost_per_hour: Decimal | None, *, idle: bool) -> Price:
    """Return the price of a local row: its upstream seconds at the hourly cost of one upstream. `idle` time costs 0.

    Raises InputError if the backend has no price.
    """
    if idle:
        return Price(Decimal(0), "local: free, as the machine is idle")
    if cost_per_hour is None:
        raise InputError("the backend has no price", hint="set cost_per_hour or idle = true in orch.toml")
    cost = Decimal(repr(upstream_seconds)) * cost_per_hour / _HOUR
    return Price(cost.quantize(PICO, ROUND_HALF_EVEN), f"local: {amount(cost_per_hour)}/h of upstream time")


class PriceOverride(Struct, frozen=True):
    """A model's prices in orch.toml, by tier. `source` says where the prices come from."""

    standard: TokenRates
    batch: TokenRates | None = None
    flex: TokenRates | None = None
    priority: TokenRates | None = None
    source: str | None = None


Overrides = Mapping[str, PriceOverride]
NO_OVERRIDES: Overrides = MappingProxyType({})
NO_USAGE = Usage()


def row_price(
    provider: str | None,
    model: str,
    outcome: Outcome,
    *,
    asked: Tier,
    at: datetime,
    discount: Decimal | None = None,
    stacks: bool = True,
    overrides: Overrides = NO_OVERRIDES,
    expected: Usage = NO_USAGE,
) -> Price:
    """Return the cost of a hosted row at the tier that served it. `model` and `asked` are the requested model and
    tier.

    The price is the price at the time that the answer states, otherwise at `at` (now). A row of a batch has the tier
    BATCH, whatever its answer says. A synchronous row has its answer's tier, otherwise the requested tier. A row
    without an answer was not billed; a success is an answer, whatever its content. If an answer states no tokens,
    `expected` is booked as an estimate. If the tier that served the row has no price, the standard price applies. The
    result's `listed` is the price of the same tokens at the standard tier. Raises the errors of `rates`.
    """
    at = _answered_at(outcome, at)
    used = outcome.billed or outcome.usage
    is_told = bool(used.input_tokens or used.output_tokens)
    if (
        not is_told
        and outcome.model is None
        and outcome.state is not RequestState.SUCCEEDED
        and not outcome.is_answer
    ):
        return Price(Decimal(0), "no answer, not billed")
    served = asked if outcome.tier is None or asked is Tier.BATCH else TIERS.get(outcome.tier)
    found = None
    if served is not None:
        found = _find(provider, model, outcome.model, served, at, discount, stacks, overrides)
    if found is None and served is asked:
        raise _no_tier(provider, model, asked)
    if found is None:
        found = rates(provider, model, tier=Tier.STANDARD, at=at, overrides=overrides, answered=outcome.model)
        found = replace(found, source=f"{found.source}, served as {outcome.tier}", estimated=True)
    if not is_told:
        used = expected
        found = replace(found, source=f"{found.source}, the answer has no token counts", estimated=True)
    price = _without_unpriced(found.price(used), outcome.unpriced)
    if used == NO_USAGE:
        return price
    try:  # `suppress` would cost more time per row than the search
        at_once = _find(provider, model, outcome.model, Tier.STANDARD, at, None, True, overrides)
        return price if at_once is None else replace(price, listed=at_once.price(used).cost)
    except InputError:
        return price


def _answered_at(outcome: Outcome, now: datetime) -> datetime:
    told = outcome.answered_at
    if told is None or not 0 <= now.timestamp() - told <= _OLDEST:
        return now
    return _quarter(int(told) // _QUARTER)


@lru_cache(maxsize=1024)
def _quarter(number: int) -> datetime:
    return datetime.fromtimestamp(number * _QUARTER, UTC)


def _without_unpriced(price: Price, unpriced: tuple[str, ...]) -> Price:
    if not unpriced:
        return price
    return Price(price.cost, f"{price.source}, without {', '.join(unpriced)}", estimated=True, unpriced=True)


def rates(
    provider: str | None,
    model: str,
    *,
    tier: Tier,
    at: datetime,
    discount: Decimal | None = None,
    stacks: bool = True,
    overrides: Overrides = NO_OVERRIDES,
    answered: str | None = None,
) -> TierPrice:
    """Return a model's prices at a tier, from orch.toml or else from the provider's list at `at`.

    `provider` is the provider's name in the price table, or None if the table lacks it. `answered` is the name of the
    model that answered. `discount` reduces the standard price (0.5: by half) for batch and flex if they have no price
    of their own. A discounted figure is an estimate. Without `stacks`, cached tokens cost the same at every tier,
    unless orch.toml has another price. Raises InputError if no price is known.
    """
    found = _find(provider, model, answered, tier, at, discount, stacks, overrides)
    if found is None:
        raise _no_tier(provider, model, tier)
    return found


def _find(
    provider: str | None,
    model: str,
    answered: str | None,
    tier: Tier,
    at: datetime,
    discount: Decimal | None,
    stacks: bool,
    overrides: Overrides,
) -> TierPrice | None:
    """Return the rates of a tier, or None if the model has no price for the tier. Raises InputError for an unknown
    model.
    """
    names = (model,) if answered is None or answered == model else (model, answered)
    for name in names if overrides else ():
        if override := overrides.get(name):
            return _overridden(name, override, tier, discount, stacks)
    why, cure = "its backend names no provider of the price table", 'name it (provider = "openai")'
    if provider is not None:
        cure = "use a model of the genai-prices table"
        # No price begins within a minute, and rows priced in the same minute share the look-up.
        minute = at.replace(second=0, microsecond=0) if at.second or at.microsecond else at
        found = _listed_at(provider, names, tier, minute, discount, stacks)
        if not isinstance(found, str):
            return found
        why = found
    raise InputError(
        f"no price is known for {_model_words(provider, model)}: {why}",
        hint=f"{cure}, or set its price in orch.toml: {_table_name(model, tier)}",
    )


@lru_cache(maxsize=1024)
def _listed_at(
    provider: str, names: tuple[str, ...], tier: Tier, at: datetime, discount: Decimal | None, stacks: bool
) -> TierPrice | str | None:
    """Return the price of the last of these models that the table has, or the reason why it has none of them.

    Returns None if that model has no price at this tier. The model that answered is billed. The requested name comes
    first: it may be an alias or a deployment.
    """
    why = ""
    for name in reversed(names):
        listed = _listed(provider, name, at)
        if not isinstance(listed, str):
            standard = listed[Tier.STANDARD]
            found = listed.get(tier) or _discounted(standard, tier, discount)
            return found if stacks or found is None else found.cached_as(standard)
        why = listed
    return why


def _overridden(
    name: str, override: PriceOverride, tier: Tier, discount: Decimal | None, stacks: bool
) -> TierPrice | None:
    source = f"orch.toml: {name}" + (f" ({override.source})" if override.source else "")
    standard = TierPrice(((-1, override.standard),), source)
    if tier is Tier.STANDARD:
        return standard
    own = {Tier.BATCH: override.batch, Tier.FLEX: override.flex, Tier.PRIORITY: override.priority}[tier]
    if own is not None:
        return TierPrice(((-1, own),), f"{source} {tier}")
    found = _discounted(standard, tier, discount)
    return found if stacks or found is None else found.cached_as(standard)


def _discounted(standard: TierPrice, tier: Tier, discount: Decimal | None) -> TierPrice | None:
    if discount is None or tier not in (Tier.BATCH, Tier.FLEX):
        return None
    factor = 1 - discount
    return TierPrice(standard.by_prompt, f"{standard.source} x {factor}", factor, estimated=True)


def _no_tier(provider: str | None, model: str, tier: Tier) -> InputError:
    or_discount = "the `discount` of the backend, or " if tier is Tier.BATCH else ""
    return InputError(
        f"no {tier} price is known for {_model_words(provider, model)}",
        hint=f"give {or_discount}its price, in orch.toml: {_table_name(model, tier)}",
    )


def _model_words(provider: str | None, model: str) -> str:
    return model if provider is None else f"{provider}:{model}"


def _table_name(model: str, tier: Tier) -> str:
    return f'[prices."{model}"]' if tier is Tier.STANDARD else f'[prices."{model}".{tier}]'


def price_changes(
    provider: str | None, model: str, at: datetime, until: datetime, overrides: Overrides = NO_OVERRIDES
) -> list[datetime]:
    """Return the times between `at` and `until` at which a model's listed price changes.

    DeepSeek's prices change with the hour of the day.
    """
    if provider is None or model in overrides:
        return []
    times, dates = _marks(provider, model)
    found, day = {datetime.combine(each, time(), UTC) for each in dates}, at.astimezone(UTC).date()
    while times and day <= until.astimezone(UTC).date():
        found |= {datetime.combine(day, each) for each in times}
        day += timedelta(days=1)
    return sorted(each for each in found if at < each < until)


@lru_cache(maxsize=256)
def _marks(provider: str, model: str) -> tuple[frozenset[time], frozenset[date]]:
    import genai_prices
    from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

    try:
        listed = genai_prices.calc_price(genai_prices.Usage(), model, provider_id=provider).model.prices
    except LookupError:
        return frozenset(), frozenset()
    times, dates = set[time](), set[date]()
    for one in listed if isinstance(listed, list) else ():
        match one.constraint:
            case TimeOfDateConstraint(start_time=start, end_time=end):
                times |= {each if each.tzinfo else each.replace(tzinfo=UTC) for each in (start, end)}
            case StartDateConstraint(start_date=start):
                dates.add(start)
    return frozenset(times), frozenset(dates)


@lru_cache(maxsize=1024)
def _listed(provider: str, model: str, at: datetime) -> Mapping[Tier, TierPrice] | str:
    """Return a model's prices by tier, or the reason why the table lacks them. The prices include the standard
    tier.
    """
    import genai_prices

    try:
        # Without tokens, as only the price entry is needed: the library prices a row in 80 µs, our rates in 5 µs.
        entry = genai_prices.calc_price(genai_prices.Usage(), model, provider_id=provider, genai_request_timestamp=at)
    except LookupError:
        return _absence(provider, model)
    if entry.model_price.input_mtok is None:
        return "the table has none for its input tokens"
    name = f"genai-prices: {provider}:{entry.model.id}"
    standard = _by_prompt(entry.model_price)
    found = {Tier.STANDARD: TierPrice(standard, name)}
    for tier, context in _CONTEXTS.items():
        if _has_own_price(entry, context, at):
            own = _by_prompt(entry.model.get_prices(at, context))
            found[tier] = TierPrice(own, f"{name} {tier}", search=standard[-1][1].search)
    if Tier.BATCH not in found and (variant := _batch_variant(provider, entry.model.id, at)) is not None:
        found[Tier.BATCH] = TierPrice(_by_prompt(variant), f"{name} {Tier.BATCH}", search=standard[-1][1].search)
    return found


def _absence(provider: str, model: str) -> str:
    from genai_prices.data_snapshot import get_snapshot

    known = {one.id: [each.id for each in one.models] for one in get_snapshot().providers}
    if provider not in known:
        return f"genai-prices has no such provider{near_words(provider, known)}"
    return f"genai-prices has no such model{near_words(model, known[provider])}"


def _batch_variant(provider: str, model: str, at: datetime) -> ModelPrice | None:
    """Return the batch price that the table lists under another model name, as for OpenRouter. None if there is
    none.
    """
    import genai_prices

    name = f"{model}:batch"
    try:
        entry = genai_prices.calc_price(genai_prices.Usage(), name, provider_id=provider, genai_request_timestamp=at)
    except LookupError:
        return None
    # The table may find another model by a part of the name.
    return entry.model_price if entry.model.id == name and entry.model_price.input_mtok is not None else None


def _has_own_price(entry: PriceCalculation, context: Mapping[str, str], at: datetime) -> bool:
    """True if the table has a separate price for a tier at `at`.

    For a missing tier, the table silently returns the standard price. It does the same for every tier of a model
    whose prices it takes from another provider (Azure's from OpenAI).
    """
    is_own = any(entry.model is model for model in entry.provider.models)
    return is_own and any(
        variant.when == context and (variant.constraint is None or variant.constraint.active(at))
        for variant in entry.model.price_variants or ()
    )


def _by_prompt(prices: ModelPrice) -> tuple[tuple[int, TokenRates], ...]:
    from genai_prices.types import TieredPrices

    listed = {name: getattr(prices, key, None) for name, key in _KEYS.items()}
    marks = {tier.start for price in listed.values() if isinstance(price, TieredPrices) for tier in price.tiers}

    def above(mark: int, price: Any) -> Any:
        if not isinstance(price, TieredPrices):
            return price
        return next((tier.price for tier in reversed(price.tiers) if mark >= tier.start), price.base)

    found = []
    for mark in sorted({-1, *marks}, reverse=True):
        known = {name: value for name, price in listed.items() if (value := above(mark, price)) is not None}
        each = {name: known[name] / 1000 for name in _BY_THOUSAND & known.keys()}
        found.append((mark, TokenRates(**{**known, **each})))
    return tuple(found)
