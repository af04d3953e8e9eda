"""What rows cost: exact, with a source, and never a price that is not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import genai_prices
import msgspec
import pytest
from genai_prices.data import providers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.core.batch_api import ResultLine
from orchestrator.core.errors import InputError, UsageError
from orchestrator.core.model import PICO, Outcome, Price, RequestState, Span, Usage
from orchestrator.pipeline.plan.prices import ByToken
from orchestrator.policy.pricing import (
    TIERS,
    PriceOverride,
    Tier,
    local_price,
    price_changes,
    rates,
    row_price,
)
from orchestrator.policy.results import FoundLine, outcome
from orchestrator.policy.token_rates import TierPrice, TokenRates
from tests.support.examples import ample

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MILLION = Usage(1_000_000, 0, 1_000_000)
HALF = Decimal("0.5")
BATCH, FLEX, STANDARD, PRIORITY = Tier.BATCH, Tier.FLEX, Tier.STANDARD, Tier.PRIORITY


def token_price(provider: str | None, model: str, usage: Usage, **terms: Any) -> Price:
    return rates(provider, model, **terms).price(usage)


@pytest.mark.parametrize(
    ("seconds", "per_hour", "cost"),
    [
        (3600.0, "2.50", "2.500000000000"),
        (1.0, "3.60", "0.001000000000"),
        (0.1, "2.50", "0.000069444444"),
        (0.0, "2.50", "0.000000000000"),
        (1e-9, "0.01", "0.000000000000"),
        (1 / 3, "1.00", "0.000092592593"),
    ],
)
def test_a_local_row_costs_its_share_of_the_hour(seconds: float, per_hour: str, cost: str) -> None:
    price = local_price(seconds, Decimal(per_hour), idle=False)
    assert f"{price.cost:f}" == cost
    assert price.source == f"local: ${per_hour}/h of upstream time"
    assert not price.estimated


def test_an_idle_upstream_is_free_and_says_why() -> None:
    assert local_price(99.0, None, idle=True) == Price(Decimal(0), "local: free, as the machine is idle")


def test_a_backend_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(InputError, match="the backend has no price"):
        local_price(1.0, None, idle=False)


@settings(max_examples=ample(50))
@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=50), st.decimals("0.01", "100", places=2))
def test_the_shares_of_rows_sum_to_the_whole(seconds: list[float], per_hour: Decimal) -> None:
    shares = sum((local_price(each, per_hour, idle=False).cost for each in seconds), Decimal(0))
    whole = sum((Decimal(repr(each)) for each in seconds), Decimal(0)) * per_hour / 3600
    assert abs(shares - whole) <= len(seconds) * Decimal("0.5e-12") + whole * Decimal("1e-20")


# Priced by hand from the vendors' lists. Usage: input (of it cached), output (of it reasoning), cache written.
BY_HAND = {
    "openai, standard": ("openai", "gpt-5.4-mini", STANDARD, Usage(1000, 200, 300, 100), "0.001965"),
    "openai, batch, cached": ("openai", "gpt-5.4-mini", BATCH, Usage(1000, 200, 300, 100), "0.0009825"),
    "openai, flex": ("openai", "gpt-5.4-mini", FLEX, Usage(1000, 200, 300, 100), "0.0009825"),
    "openai, priority": ("openai", "gpt-5.4-mini", PRIORITY, Usage(1000, 200, 300, 100), "0.00393"),
    "a dated name": ("openai", "gpt-5.4-mini-2026-03-17", BATCH, Usage(1000, 200, 300), "0.0009825"),
    "batch that keeps the cached price": ("openai", "gpt-4.1-mini", BATCH, Usage(1000, 400, 100), "0.00024"),
    "cache write, batch": ("anthropic", "claude-opus-5-5", BATCH, Usage(10_000, 4000, 500, 0, 1000), "0.0179"),
    "cache write": ("anthropic", "claude-opus-5-5", STANDARD, Usage(10_000, 4000, 500, 0, 1000), "0.0358"),
    "anthropic, up to the mark": ("anthropic", "claude-haiku-5-5", BATCH, Usage(100_000), "0.005"),
    "anthropic, above the mark": ("anthropic", "claude-haiku-5-5", BATCH, Usage(100_001), "0.02500025"),
    "groq, batch, cached for no less": ("groq", "openai/gpt-oss-120b", BATCH, Usage(1000, 400, 100), "0.000105"),
    "x-ai, a fifth off": ("x-ai", "grok-4.3", BATCH, Usage(199_999), "0.199999"),
    "x-ai, above the mark": ("x-ai", "grok-4.3", BATCH, Usage(200_000), "0.4"),
    "openrouter, a batch under its own name": (
        "openrouter", "anthropic/claude-sonnet-5.5", BATCH, Usage(1000, 0, 100), "0.0015"
    ),
    "long context, up to the mark": ("openai", "gpt-6.1-sol", BATCH, Usage(272_000, 0, 1000), "0.277"),
    "long context, above the mark": ("openai", "gpt-6.1-sol", BATCH, Usage(272_001, 0, 1000), "0.551502"),
    "long context, cached": ("openai", "gpt-6.1-sol", BATCH, Usage(300_000, 100_000, 0, 0, 50_000), "0.435"),
    "an embedding": ("openai", "text-embedding-3-small", STANDARD, Usage(1_000_000), "0.02"),
    "reasoning apart": ("perplexity", "sonar-deep-research", STANDARD, Usage(1000, 0, 500, 200), "0.005"),
    "a fee per request": ("perplexity", "sonar", STANDARD, Usage(1000, 0, 500), "0.0135"),
    "no tokens": ("openai", "gpt-5.4-mini", BATCH, Usage(), "0"),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "model", "tier", "usage", "cost"), BY_HAND.values(), ids=BY_HAND.keys())
def test_list_prices(provider: str, model: str, tier: Tier, usage: Usage, cost: str) -> None:
    price = token_price(provider, model, usage, tier=tier, at=NOW)
    assert (price.cost, price.estimated) == (Decimal(cost), False)
    suffix = "" if tier is STANDARD else f" {tier}"
    assert price.source == f"genai-prices: {provider}:{model.removesuffix('-2026-03-17')}{suffix}"


# Trap: asked for a batch price that it does not have, the table gives the full price without a word.
GUESSED = {
    "an embedding": ("openai", "text-embedding-3-small", BATCH, Usage(1_000_000), "0.5", "0.01"),
    "openrouter, a model without batches": ("openrouter", "ai21/jamba-large-1.7", BATCH, MILLION, "0.5", None),
    "a model without batches": ("x-ai", "grok-4.7", BATCH, Usage(1_000_000), "0.2", None),
    "another provider's model": ("azure", "gpt-5.4-mini", BATCH, MILLION, "0.5", "2.625"),
    "a share of a long prompt": ("azure", "gpt-6.1-sol", BATCH, Usage(272_001), "0.5", "0.544002"),
    "cached tokens": ("azure", "gpt-5.4-mini", BATCH, Usage(1_000_000, 1_000_000), "0.5", "0.0375"),
    "a list by tier": ("doubleword", "Qwen/Qwen3-14B-FP8", BATCH, MILLION, "0.4", "0.39"),
    "no discount at all": ("azure", "gpt-5.4-mini", BATCH, MILLION, "0", "5.25"),
    "flex of another provider": ("azure", "gpt-5.4-mini", FLEX, MILLION, "0.5", "2.625"),
}


@pytest.mark.parametrize(
    ("provider", "model", "tier", "usage", "discount", "cost"), GUESSED.values(), ids=GUESSED.keys()
)
def test_a_price_that_is_not_listed_is_the_standard_one_with_its_discount_as_an_estimate(
    provider: str, model: str, tier: Tier, usage: Usage, discount: str, cost: str | None
) -> None:
    price = token_price(provider, model, usage, tier=tier, at=NOW, discount=Decimal(discount))
    full = token_price(provider, model, usage, tier=STANDARD, at=NOW).cost
    factor = 1 - Decimal(discount)
    assert price == Price(full * factor, f"genai-prices: {provider}:{model} x {factor}", estimated=True)
    assert price.cost == (price.cost if cost is None else Decimal(cost))


UNLISTED = {
    "batch": (
        BATCH, None, 'give the `discount` of the backend, or its price, in orch.toml: [prices."gpt-5.4-mini".batch]'
    ),
    "flex": (FLEX, None, 'give its price, in orch.toml: [prices."gpt-5.4-mini".flex]'),
    "priority costs more, so no discount says it": (
        PRIORITY, "0.5", 'give its price, in orch.toml: [prices."gpt-5.4-mini".priority]'
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tier", "discount", "hint"), UNLISTED.values(), ids=UNLISTED.keys())
def test_the_full_price_is_never_taken_for_that_of_another_tier(tier: Tier, discount: str | None, hint: str) -> None:
    off = None if discount is None else Decimal(discount)
    with pytest.raises(InputError) as raised:
        token_price("azure", "gpt-5.4-mini", MILLION, tier=tier, at=NOW, discount=off)
    assert raised.value.message == f"no {tier} price is known for azure:gpt-5.4-mini"
    assert raised.value.hint == hint


# Trap: the table's batch prices begin on 2026-10-14 (UTC); before, it gives the full price without a word.
DAYS = {
    "the day before": (datetime(2026, 10, 13, 23, 59, tzinfo=UTC), True),
    "the day": (datetime(2026, 10, 14, tzinfo=UTC), False),
    "the day elsewhere, not yet in UTC": (datetime(2026, 10, 14, 1, tzinfo=timezone(timedelta(hours=2))), True),
    "the day in UTC, not yet elsewhere": (datetime(2026, 10, 13, 23, tzinfo=timezone(timedelta(hours=-5))), False),
}


@pytest.mark.parametrize(("at", "estimated"), DAYS.values(), ids=DAYS.keys())
def test_before_a_batch_price_begins_half_the_price_is_an_estimate(at: datetime, estimated: bool) -> None:
    price = token_price("openai", "gpt-5-nano", MILLION, tier=BATCH, at=at, discount=HALF)
    assert (price.cost, price.estimated) == (Decimal("0.225"), estimated)


CHANGES = {
    "the last second": (datetime(2026, 10, 17, 23, 59, 59, tzinfo=UTC), "0.6"),
    "midnight UTC": (datetime(2026, 10, 18, tzinfo=UTC), "0.21"),
    "midnight elsewhere": (datetime(2026, 10, 18, tzinfo=timezone(timedelta(hours=2))), "0.6"),
}


@pytest.mark.parametrize(("at", "cost"), CHANGES.values(), ids=CHANGES.keys())
def test_a_price_that_changes_does_so_at_midnight_utc(at: datetime, cost: str) -> None:
    model = "Qwen/Qwen3-VL-235B-A22B-Instruct-FP8"
    assert token_price("doubleword", model, Usage(1_000_000), tier=STANDARD, at=at).cost == Decimal(cost)


@pytest.mark.parametrize(
    ("hour", "cost"), [(0, "0.15"), (1, "0.3"), (3, "0.3"), (4, "0.15"), (9, "0.3"), (10, "0.15")]
)
def test_a_price_may_depend_on_the_hour(hour: int, cost: str) -> None:
    at = NOW.replace(hour=hour)
    price = token_price("deepseek", "deepseek-flash", Usage(1_000_000), tier=STANDARD, at=at)
    assert price.cost == Decimal(cost)


def test_the_hours_at_which_a_listed_price_changes_are_known_beforehand() -> None:
    at = NOW.replace(hour=3, minute=30)
    found = price_changes("deepseek", "deepseek-flash", at, at + timedelta(hours=23))
    assert [one.hour for one in found] == [4, 6, 10, 1]
    assert [one.date() == at.date() for one in found] == [True, True, True, False]
    assert price_changes("openai", "gpt-4o-mini", at, at + timedelta(days=7)) == []
    for provider, model in ((None, "m"), ("deepseek", "no-such-model"), ("nobody", "m")):
        assert price_changes(provider, model, at, at + timedelta(days=1)) == []
    own = {"deepseek-flash": PriceOverride(TokenRates(Decimal(1), Decimal(2)))}
    assert price_changes("deepseek", "deepseek-flash", at, at + timedelta(days=1), own) == []


def test_rows_of_the_same_minute_share_the_look_into_the_table() -> None:
    def found(at: datetime) -> object:
        return rates("openai", "gpt-5.4-mini", tier=BATCH, at=at)

    assert found(NOW) is found(NOW + timedelta(seconds=59, microseconds=999_999))
    assert found(NOW) is not found(NOW + timedelta(seconds=60))


UNKNOWN = {
    "a model": ("openai", "no-such-model", "openai:no-such-model: genai-prices has no such model"),
    "a slip": (
        "openai",
        "gpt-4o-mni",
        "openai:gpt-4o-mni: genai-prices has no such model; near to it: gpt-4o-mini",
    ),
    "a provider": (
        "no-such-provider",
        "gpt-5-nano",
        "no-such-provider:gpt-5-nano: genai-prices has no such",
    ),
    "nothing": ("", "", ":: genai-prices has no such provider"),
    "no provider": (None, "gpt-5-nano", "gpt-5-nano: its backend names no provider of the price table"),
    "no figures": ("github-copilot", "gpt-4.1", "github-copilot:gpt-4.1: the table has none for its input tokens"),
}


@pytest.mark.parametrize(("provider", "model", "message"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_model_that_nobody_knows_is_an_error_and_says_how_to_give_a_price(
    provider: str | None, model: str, message: str
) -> None:
    with pytest.raises(InputError) as raised:
        token_price(provider, model, MILLION, tier=BATCH, at=NOW, discount=HALF)
    assert raised.value.message.startswith(f"no price is known for {message}")
    cure = 'name it (provider = "openai")' if provider is None else "use a model of the genai-prices table"
    assert raised.value.hint == f'{cure}, or set its price in orch.toml: [prices."{model}".batch]'


def test_output_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(InputError) as raised:
        token_price("openai", "text-embedding-3-small", MILLION, tier=STANDARD, at=NOW)
    assert raised.value.message == (
        "no price is known for output tokens (genai-prices: openai:text-embedding-3-small has none)"
    )


@settings(max_examples=ample(40))
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([STANDARD, BATCH]))
def test_prices_are_exact_to_the_picodollar(fed: int, given_: int, tier: Tier) -> None:
    # 0.05 and 0.40 dollars per million: whole picodollars per token.
    price = token_price("openai", "gpt-5-nano", Usage(fed, 0, given_), tier=tier, at=NOW)
    assert price.cost == (fed * Decimal("0.05e-6") + given_ * Decimal("0.4e-6")) / (2 if tier is BATCH else 1)


USAGES = st.integers(0, 2_000_000).flatmap(
    lambda fed: st.builds(
        lambda cached, given_, thought, written: Usage(
            fed, cached, given_, min(thought, given_), min(written, fed - cached)
        ),
        st.integers(0, fed),
        st.integers(0, 200_000),
        st.integers(0, 200_000),
        st.integers(0, fed),
    )
)


MODELS = [(provider, model) for provider in providers for model in provider.models]


def named(models: list[tuple[Any, Any]]) -> st.SearchStrategy[tuple[str, str]]:
    """Those that go by their own id, which some do not, with their providers."""
    found = st.sampled_from(models).filter(lambda entry: entry[0].find_model(entry[1].id) is not None)
    return found.map(lambda entry: (entry[0].id, entry[1].id))


ENTRIES = named(MODELS)
SOLD_BY_TIER = named([entry for entry in MODELS if entry[1].price_variants])
CONTEXTS = {
    BATCH: {"processing": "batch"},
    FLEX: {"service_tier": "flex"},
    STANDARD: None,
    PRIORITY: {"service_tier": "priority"},
}


@pytest.mark.long
@settings(max_examples=ample(300), deadline=None)
@given(ENTRIES | SOLD_BY_TIER, USAGES, st.sampled_from(list(Tier)))
def test_what_is_listed_is_priced_as_the_table_does(entry: tuple[str, str], usage: Usage, tier: Tier) -> None:
    provider, model = entry
    try:
        price = token_price(provider, model, usage, tier=tier, at=NOW)
    except InputError:
        return  # told of elsewhere
    assert not price.estimated
    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        output_reasoning_tokens=usage.reasoning_tokens,
    )
    theirs = genai_prices.calc_price(
        counted, model, provider_id=provider, genai_request_timestamp=NOW, price_context=CONTEXTS[tier]
    )
    assert price.cost == theirs.total_price.quantize(PICO)


@settings(max_examples=ample(100), deadline=None)
@given(ENTRIES, st.sampled_from([BATCH, FLEX, PRIORITY]))
def test_no_tier_is_priced_without_a_listing_of_its_own(entry: tuple[str, str], tier: Tier) -> None:
    provider, model = entry
    found = genai_prices.calc_price(genai_prices.Usage(), model, provider_id=provider, genai_request_timestamp=NOW)
    is_own = any(found.model is listed for listed in found.provider.models)
    listed = is_own and any(variant.when == CONTEXTS[tier] for variant in found.model.price_variants or ())
    try:
        rates(provider, model, tier=tier, at=NOW)
    except InputError as error:
        why = error.message
    else:
        why = None
    # A model that reads pages is paid by the page.
    assert (why is None) == listed or "none for its input tokens" in str(why)


def test_rows_of_one_size_are_priced_by_their_own_length_and_not_by_their_sum() -> None:
    found = rates("openai", "gpt-6.1-sol", tier=STANDARD, at=NOW)
    assert found.price(Usage(2_720_000, 0, 10_000), rows=10).cost == Decimal("5.54")
    assert found.price(Usage(2_720_010, 0, 10_000), rows=10).cost == Decimal("11.03004")
    fee = rates("perplexity", "sonar", tier=STANDARD, at=NOW)
    assert fee.price(Usage(0), rows=10).cost == Decimal("0.12")


CONTRACT = PriceOverride(
    standard=TokenRates(Decimal("1"), Decimal("4"), cached=Decimal("0.1")),
    flex=TokenRates(Decimal("0.6"), Decimal("2"), cache_write=Decimal("0.7")),
    source="quote",
)
BARE = PriceOverride(
    TokenRates(Decimal("0.3")), batch=TokenRates(Decimal("0.2")), priority=TokenRates(Decimal("0.9"))
)
OVERRIDES = {"gpt-5.4-mini": CONTRACT, "in-house": CONTRACT, "bare": BARE}
HOUSE = "in-house (quote)"
OVERRIDDEN = {
    "before the table": ("openai", "gpt-5.4-mini", STANDARD, MILLION, "5", "gpt-5.4-mini (quote)", False),
    "where there is no table": (None, "in-house", STANDARD, MILLION, "5", HOUSE, False),
    "a tier of its own": (None, "in-house", FLEX, MILLION, "2.6", f"{HOUSE} flex", False),
    "by the discount": (None, "in-house", BATCH, MILLION, "2.5", f"{HOUSE} x 0.5", True),
    "cached": (None, "in-house", STANDARD, Usage(1_000_000, 1_000_000), "0.1", HOUSE, False),
    "cached, not told": (None, "in-house", FLEX, Usage(1_000_000, 1_000_000), "0.6", f"{HOUSE} flex", False),
    "cache write": (None, "in-house", FLEX, Usage(1_000_000, 0, 0, 0, 1_000_000), "0.7", f"{HOUSE} flex", False),
    "cache write, not told": (None, "in-house", STANDARD, Usage(100, 0, 0, 0, 100), "0.0001", HOUSE, False),
    "batch": (None, "bare", BATCH, Usage(1_000_000), "0.2", "bare batch", False),
    "priority": (None, "bare", PRIORITY, Usage(1_000_000), "0.9", "bare priority", False),
}  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "model", "tier", "usage", "cost", "source", "estimated"), OVERRIDDEN.values(), ids=OVERRIDDEN.keys()
)
def test_what_orch_toml_says_goes_first(
    provider: str | None, model: str, tier: Tier, usage: Usage, cost: str, source: str, estimated: bool
) -> None:
    price = token_price(provider, model, usage, tier=tier, at=NOW, discount=HALF, overrides=OVERRIDES)
    assert price == Price(Decimal(cost), f"orch.toml: {source}", estimated)


@pytest.mark.parametrize(
    ("model", "overrides", "stacked", "apart"),
    [
        ("gemini-3.8-flash", {}, "0.0375", "0.075"),
        ("gemini-2.5-flash", {}, "0.03", "0.03"),
        ("house", {"house": PriceOverride(TokenRates(Decimal(4), Decimal(8), Decimal(1)))}, "0.5", "1"),
        (
            "house",
            {"house": PriceOverride(TokenRates(Decimal(4)), TokenRates(Decimal(2), cached=Decimal("0.7")))},
            "0.7",
            "0.7",
        ),
    ],
    ids=["listed", "listed without a price of its own", "by the discount", "orch.toml says so"],
)
def test_where_discounts_do_not_stack_a_cached_token_costs_in_a_batch_what_it_costs_at_once(
    model: str, overrides: dict[str, PriceOverride], stacked: str, apart: str
) -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)

    def cost(usage: Usage, stacks: bool) -> Decimal:
        terms: dict[str, Any] = {"discount": HALF, "overrides": overrides, "stacks": stacks}
        return token_price("google", model, usage, tier=BATCH, at=at, **terms).cost

    cached, fresh = Usage(1_000_000, 1_000_000), Usage(1_000_000)
    assert (cost(cached, True), cost(cached, False)) == (Decimal(stacked), Decimal(apart))
    assert cost(fresh, True) == cost(fresh, False)


def test_a_tier_that_orch_toml_does_not_tell_is_not_the_tables_beside_its_standard_price() -> None:
    def price(discount: Decimal | None) -> Price:
        return token_price(
            "openai", "gpt-5.4-mini", MILLION, tier=BATCH, at=NOW, discount=discount, overrides=OVERRIDES
        )

    assert price(HALF) == Price(Decimal("2.5"), "orch.toml: gpt-5.4-mini (quote) x 0.5", estimated=True)
    with pytest.raises(InputError, match=r"no batch price is known for openai:gpt-5\.4-mini"):
        price(None)


KNOWN = {
    "listed": ("openai", "gpt-5.4-mini", BATCH, "$0.375 in, $2.25 out per million tokens", "batch"),
    "guessed": ("azure", "gpt-5.4-mini", BATCH, "≈ $0.375 in, $2.25 out per million tokens", "x 0.5"),
    "an embedding": ("openai", "text-embedding-3-small", BATCH, "≈ $0.01 in per million tokens", "x 0.5"),
    "by length": ("openai", "gpt-6.1-sol", FLEX, "$1 in, $5 out per million tokens, more above 272,000 in", "flex"),
}


@pytest.mark.parametrize(("provider", "model", "tier", "words", "source"), KNOWN.values(), ids=KNOWN.keys())
def test_a_price_that_is_known_is_told_in_words(
    provider: str, model: str, tier: Tier, words: str, source: str
) -> None:
    known = str(rates(provider, model, tier=tier, at=NOW, discount=HALF))
    assert known == f"{words} (genai-prices: {provider}:{model} {source})"


def test_a_price_of_orch_toml_is_told_in_words() -> None:
    dear = {"dear": PriceOverride(TokenRates(Decimal(10), Decimal(100)))}
    known = str(rates(None, "dear", tier=STANDARD, at=NOW, overrides=dear))
    assert known == "$10 in, $100 out per million tokens (orch.toml: dear)"


def test_before_anything_is_sent_a_model_must_have_a_price_for_what_it_will_answer() -> None:
    prices = ByToken("openai", STANDARD, None, {}, lambda: NOW)
    found = rates("openai", "text-embedding-3-small", tier=STANDARD, at=NOW)
    assert prices.known("text-embedding-3-small", "/v1/embeddings") == str(found)
    with pytest.raises(UsageError, match="no price is known for output tokens"):
        prices.known("text-embedding-3-small", "/v1/chat/completions")
    with pytest.raises(UsageError, match="no price is known for openai:gpt-none"):
        prices.known("gpt-none", "/v1/embeddings")


def answered(**facts: Any) -> Outcome:
    return Outcome(7, RequestState.SUCCEEDED, **{"usage": MILLION, "model": "gpt-5.4-mini", **facts})


# gpt-5.4-mini, a million tokens in and out: 5.25 dollars; half of it as a batch or flex, twice as priority.
SERVED = {
    # Trap: results of batches say `service_tier: "default"`, never "batch".
    "a batch that says default": (BATCH, "default", "2.625", "batch", False),
    "a batch that says priority": (BATCH, "priority", "2.625", "batch", False),
    "a batch that says batch": (BATCH, "batch", "2.625", "batch", False),
    "a batch that says nothing": (BATCH, None, "2.625", "batch", False),
    "flex": (FLEX, "flex", "2.625", "flex", False),
    "flex that was not to be had": (FLEX, "default", "5.25", "", False),
    "flex by what was asked": (FLEX, None, "2.625", "flex", False),
    "standard": (STANDARD, "default", "5.25", "", False),
    "standard by what was asked": (STANDARD, None, "5.25", "", False),
    "priority unasked": (STANDARD, "priority", "10.5", "priority", False),
    "priority by its new name": (PRIORITY, "fast", "10.5", "priority", False),
    "priority that fell back": (PRIORITY, "default", "5.25", "", False),
    "a word that nobody knows": (STANDARD, "warp", "5.25", ", served as warp", True),
    "a word that nobody knows for flex": (FLEX, "warp", "5.25", ", served as warp", True),
}


@pytest.mark.parametrize(("asked", "said", "cost", "source", "estimated"), SERVED.values(), ids=SERVED.keys())
def test_a_row_costs_what_the_tier_does_that_served_it(
    asked: Tier, said: str | None, cost: str, source: str, estimated: bool
) -> None:
    price = row_price("openai", "gpt-5.4-mini", answered(tier=said), asked=asked, at=NOW)
    source = source if source.startswith(",") or not source else f" {source}"
    assert price == Price(
        Decimal(cost), f"genai-prices: openai:gpt-5.4-mini{source}", estimated, listed=Decimal("5.25")
    )


def test_a_tier_unasked_for_that_has_no_price_is_booked_as_an_estimate() -> None:
    # It is paid already; a price that is missing must not keep the row from being collected.
    outcome = answered(model="gpt-4.1-mini", tier="flex")
    price = row_price("openai", "gpt-4.1-mini", outcome, asked=STANDARD, at=NOW)
    source = "genai-prices: openai:gpt-4.1-mini, served as flex"
    assert price == Price(Decimal(2), source, estimated=True, listed=Decimal(2))


@pytest.mark.parametrize("said", ["flex", None])
def test_the_tier_that_was_asked_for_must_have_a_price(said: str | None) -> None:
    outcome = answered(model="gpt-4.1-mini", tier=said)
    with pytest.raises(InputError, match=r"no flex price is known for openai:gpt-4\.1-mini"):
        row_price("openai", "gpt-4.1-mini", outcome, asked=FLEX, at=NOW)


NAMES = {
    "a deployment": ("azure", "my-deployment", "gpt-5.4-mini-2026-03-17", "5.25", "genai-prices: azure:gpt-5.4-mini"),
    "an alias": ("openai", "gpt-5-nano", "gpt-5.4-mini", "5.25", "genai-prices: openai:gpt-5.4-mini"),
    "an answer by a name unknown": ("openai", "gpt-5.4-mini", "secret", "5.25", "genai-prices: openai:gpt-5.4-mini"),
    "an answer without a name": ("openai", "gpt-5.4-mini", None, "5.25", "genai-prices: openai:gpt-5.4-mini"),
    "said of what was asked": ("openai", "mine", "gpt-5.4-mini", "3", "orch.toml: mine"),
    "said of what answered": ("openai", "gpt-5.4-mini", "theirs", "7", "orch.toml: theirs"),
}


@pytest.mark.parametrize(("provider", "asked", "said", "cost", "source"), NAMES.values(), ids=NAMES.keys())
def test_the_model_that_answered_is_the_one_that_is_billed(
    provider: str, asked: str, said: str | None, cost: str, source: str
) -> None:
    said_of = {
        "mine": PriceOverride(TokenRates(Decimal(1), Decimal(2))),
        "theirs": PriceOverride(TokenRates(Decimal(3), Decimal(4))),
    }
    price = row_price(provider, asked, answered(model=said), asked=STANDARD, at=NOW, overrides=said_of)
    assert price == Price(Decimal(cost), source, listed=Decimal(cost))


def test_a_model_by_two_names_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(InputError, match=r"no price is known for openai:gpt-a: genai-prices has no such model"):
        row_price("openai", "gpt-a", answered(model="gpt-b"), asked=STANDARD, at=NOW)


def test_a_row_that_was_refused_costs_nothing_and_says_so() -> None:
    refused = Outcome(7, RequestState.FAILED, status=400, error_code="invalid_image")
    price = row_price("openai", "gpt-5.4-mini", refused, asked=BATCH, at=NOW)
    assert price == Price(Decimal(0), "no answer, not billed")


def test_an_answer_that_failed_its_check_is_billed() -> None:
    failed = Outcome(7, RequestState.FAILED, usage=MILLION, model="gpt-5.4-mini", error_code="schema_mismatch")
    assert row_price("openai", "gpt-5.4-mini", failed, asked=BATCH, at=NOW).cost == Decimal("2.625")


SILENT = {
    "an answer": Outcome(7, RequestState.SUCCEEDED),
    "an answer that failed its check": Outcome(
        7, RequestState.FAILED, model="gpt-5.4-mini", error_code="invalid_json"
    ),
}


@pytest.mark.parametrize("outcome", SILENT.values(), ids=SILENT.keys())
def test_an_answer_that_tells_no_tokens_is_booked_as_expected_and_as_an_estimate(outcome: Outcome) -> None:
    price = row_price("openai", "gpt-5.4-mini", outcome, asked=BATCH, at=NOW, expected=Usage(1000, 0, 100))
    source = "genai-prices: openai:gpt-5.4-mini batch, the answer has no token counts"
    assert price == Price(Decimal("0.0006"), source, estimated=True, listed=Decimal("0.0012"))


def test_sends_without_an_answer_are_booked_as_if_each_was_billed() -> None:
    prices = ByToken("openai", FLEX, None, {}, lambda: NOW)
    price = prices.of_uncertain("gpt-5.4-mini", 3, Usage(1000, 0, 100))
    assert price == Price(Decimal("0.0018"), "uncertain: 3 x genai-prices: openai:gpt-5.4-mini flex", estimated=True)


def test_what_is_asked_for_as_a_tier_has_a_name_in_the_table_of_tiers() -> None:
    asked = {word: TIERS[word] for word in ("auto", "default", "flex", "priority")}
    assert asked == {"auto": STANDARD, "default": STANDARD, "flex": FLEX, "priority": PRIORITY}


def test_an_hour_in_the_cache_costs_its_own_price() -> None:
    usage = Usage(input_tokens=1000, cache_write_tokens=600, cache_write_1h_tokens=500)
    price = token_price("anthropic", "claude-sonnet-4-0", usage, tier=Tier.STANDARD, at=NOW)
    assert price.cost == (400 * Decimal("3") + 100 * Decimal("3.75") + 500 * Decimal("6")) / 1_000_000
    assert not price.estimated


def test_a_web_search_costs_its_own_price_and_a_batch_does_not_halve_it() -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    usage = Usage(input_tokens=1000, web_searches=2)
    listed = token_price("anthropic", "claude-sonnet-4-5", usage, tier=Tier.STANDARD, at=at)
    batch = token_price("anthropic", "claude-sonnet-4-5", usage, tier=Tier.BATCH, at=at)
    assert listed.cost == Decimal("0.003") + Decimal("0.02")
    assert batch.cost == Decimal("0.0015") + Decimal("0.02")


def test_a_number_that_no_price_covers_is_said() -> None:
    usage = Usage(input_tokens=1000, web_searches=2, input_audio_tokens=5)
    price = token_price("mistral", "mistral-large-latest", usage, tier=Tier.STANDARD, at=NOW)
    assert price.estimated
    assert price.source.endswith("2 web searches without a price, audio input has no price of its own")


def test_sound_and_pictures_cost_their_own_price() -> None:
    rates = TokenRates(
        Decimal(1),
        Decimal(2),
        input_audio=Decimal(10),
        output_audio=Decimal(20),
        input_image=Decimal(3),
        output_image=Decimal(30),
    )
    price = TierPrice(((-1, rates),), "a list")
    usage = Usage(
        input_tokens=100, output_tokens=100, input_audio_tokens=10, output_audio_tokens=20,
        input_image_tokens=30, output_image_tokens=40,
    )  # fmt: skip
    millionths = 10 * 10 + 30 * 3 + 60 * 1 + 20 * 20 + 40 * 30 + 40 * 2
    assert price.price(usage) == Price(Decimal(millionths) / 1_000_000, "a list")


RATES = st.decimals(min_value=0, max_value=200, places=9)


@given(RATES, RATES, RATES, st.decimals("0.001", 2, places=4), st.integers(0, 10**7), st.integers(0, 10**7))
@example(Decimal("0.15"), Decimal("0.6"), Decimal(0), Decimal("0.5"), 60, 32)
@example(Decimal("0.0000001"), Decimal("0.6"), Decimal(0), Decimal("0.333"), 1, 1)
def test_tokens_cost_their_rates_to_the_last_digit(
    fed: Decimal, told: Decimal, request: Decimal, factor: Decimal, asked: int, answered: int
) -> None:
    price = TierPrice(((-1, TokenRates(fed, told, request=request)),), "a list", factor)
    whole = ((asked * fed + answered * told) / 1_000_000 + request) * factor
    cost = price.price(Usage(input_tokens=asked, output_tokens=answered)).cost
    assert cost.as_tuple() == whole.quantize(PICO, ROUND_HALF_EVEN).as_tuple()


@pytest.mark.parametrize(("hour", "dollars"), [(2, "0.0003"), (5, "0.00015"), (9, "0.0003"), (20, "0.00015")])
def test_a_price_by_the_hour_of_the_day_is_that_of_the_hour(hour: int, dollars: str) -> None:
    at = datetime(2026, 11, 25, hour, 30, tzinfo=UTC)
    price = token_price("deepseek", "deepseek-v4-flash", Usage(input_tokens=1000), tier=Tier.STANDARD, at=at)
    assert price.cost == Decimal(dollars)


NIGHT = datetime(2026, 11, 25, 20, tzinfo=UTC)
AT_TWO = datetime(2026, 11, 25, 2, 59, tzinfo=UTC).timestamp()
TIMES: dict[str, tuple[dict[str, Any], str]] = {
    "at a dear hour": ({"created": int(AT_TWO)}, "0.0003"),
    "begun before, ended at a dear hour": ({"created_at": AT_TWO - 7200, "completed_at": AT_TWO}, "0.0003"),
    "no time": ({}, "0.00015"),
    "zero": ({"created": 0}, "0.00015"),
    "a constant of long ago": ({"created": 1_677_616_200}, "0.00015"),
    "in the future": ({"created": int(AT_TWO) + 10 * 86_400}, "0.00015"),
    "no number": ({"created": "2026-11-25T02:30:00Z"}, "0.00015"),
    "no time at all": ({"created": 1e300, "created_at": True}, "0.00015"),
}


@pytest.mark.parametrize(("told", "dollars"), TIMES.values(), ids=TIMES)
def test_a_row_costs_the_price_of_the_time_at_which_it_was_answered(told: dict[str, Any], dollars: str) -> None:
    said = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1000}}
    line = {"custom_id": "a", "response": {"status_code": 200, "body": {**said, **told}}}
    found = FoundLine(Span(0, 9), msgspec.json.decode(msgspec.json.encode(line), type=ResultLine))
    ended = outcome(0, "output", found, None)
    assert isinstance(ended, Outcome)
    assert row_price("deepseek", "deepseek-v4-flash", ended, asked=STANDARD, at=NIGHT).cost == Decimal(dollars)
