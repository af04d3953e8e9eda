"""What rows cost, in Decimal dollars, each figure with its source. Pure, but for the price table that it reads.

A price that is not known is an error or marked `estimated`; it is never zero (P7).
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal

from orchestrator.errors import InputError
from orchestrator.model import PICO, Price, Usage

BATCH_DISCOUNT = Decimal("0.5")
_HOUR = Decimal(3600)


def local_price(upstream_seconds: float, cost_per_hour: Decimal | None, *, idle: bool) -> Price:
    """A local row's share of the upstream's time at what an hour of one upstream costs; nothing where it is idle."""
    if idle:
        return Price(Decimal(0), "local: idle anyway")
    if cost_per_hour is None:
        raise InputError("the backend has no price", hint="set cost_per_hour, or idle = true, in orch.toml")
    cost = Decimal(repr(upstream_seconds)) * cost_per_hour / _HOUR
    return Price(cost.quantize(PICO, ROUND_HALF_EVEN), f"local: ${cost_per_hour}/h of upstream time")


def hosted_price(provider: str, model: str, usage: Usage, *, batch: bool, at: datetime) -> Price:
    """What these tokens cost at a provider's realtime or batch list price (genai-prices).

    Where the table has no batch price for the model, the realtime price with the usual half off is given, marked
    estimated. Raises InputError for a model that the table does not have.
    """
    import genai_prices

    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        plain = genai_prices.calc_price(counted, model, provider_id=provider, genai_request_timestamp=at)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"no price is known for {provider}:{model}: {error}", hint="name a model of the genai-prices table"
        ) from None
    for name, tokens, price in (
        ("input", usage.input_tokens, plain.input_price),
        ("output", usage.output_tokens, plain.output_price),
    ):
        if tokens and not price:
            raise InputError(
                f"no price is known for {provider}:{model}: the table has none for its {name} tokens",
                hint="name a model that is sold by the token",
            )
    source = f"genai-prices: {provider}:{plain.model.id}"
    if not batch:
        return Price(plain.total_price.quantize(PICO), source)
    # Asked for a batch price that it does not have, the table gives the realtime price without a word.
    variants = plain.model.price_variants or ()
    if any(variant.when.get("processing") == "batch" and _holds(variant.constraint, at) for variant in variants):
        half = genai_prices.calc_price(
            counted,
            model,
            provider_id=provider,
            genai_request_timestamp=at,
            price_context={"processing": "batch"},
        )
        return Price(half.total_price.quantize(PICO), f"{source} batch")
    return Price((plain.total_price * BATCH_DISCOUNT).quantize(PICO), f"{source} x {BATCH_DISCOUNT}", estimated=True)


def _holds(constraint: object, at: datetime) -> bool:
    start = getattr(constraint, "start_date", None)
    return start is None or at.astimezone(UTC).date() >= start
