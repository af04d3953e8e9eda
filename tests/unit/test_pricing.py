"""What rows cost: exact, with a source, and never a price that is not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import InputError
from orchestrator.model import Price, Usage
from orchestrator.pricing import hosted_price, local_price

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MILLION = Usage(1_000_000, 0, 1_000_000)


@pytest.mark.parametrize(
    ("seconds", "per_hour", "cost"),
    [
        (3600.0, "2.50", "2.500000000000"),
        (1.0, "3.60", "0.001000000000"),
        (0.1, "2.50", "0.000069444444"),
        (0.0, "2.50", "0.000000000000"),
        (1e-9, "0.01", "0.000000000000"),
        (1 / 3, "1", "0.000092592593"),
    ],
)
def test_a_local_row_costs_its_share_of_the_hour(seconds: float, per_hour: str, cost: str) -> None:
    price = local_price(seconds, Decimal(per_hour), idle=False)
    assert f"{price.cost:f}" == cost
    assert price.source == f"local: ${per_hour}/h of upstream time"
    assert not price.estimated


def test_an_idle_upstream_is_free_and_says_why() -> None:
    assert local_price(99.0, None, idle=True) == Price(Decimal(0), "local: idle anyway")


def test_a_backend_without_a_price_is_an_error_and_not_free() -> None:
    with pytest.raises(InputError, match="the backend has no price"):
        local_price(1.0, None, idle=False)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 10_000), min_size=1, max_size=50), st.decimals("0.01", "100", places=2))
def test_the_shares_of_rows_sum_to_the_whole(seconds: list[float], per_hour: Decimal) -> None:
    shares = sum((local_price(each, per_hour, idle=False).cost for each in seconds), Decimal(0))
    whole = sum((Decimal(repr(each)) for each in seconds), Decimal(0)) * per_hour / 3600
    assert abs(shares - whole) <= len(seconds) * Decimal("0.5e-12") + whole * Decimal("1e-20")


LISTED = {
    # Dollars for a million tokens in and a million out (an embedding has none).
    "realtime": ("openai", "gpt-5-nano", False, "0.450000000000", "genai-prices: openai:gpt-5-nano", False),
    "batch": ("openai", "gpt-5-nano", True, "0.225000000000", "genai-prices: openai:gpt-5-nano batch", False),
    "batch at a fifth off": ("x-ai", "grok-4.3", True, None, "genai-prices: x-ai:grok-4.3 batch", False),
    "no batch price": (
        "openai",
        "text-embedding-3-small",
        True,
        "0.010000000000",
        "genai-prices: openai:text-embedding-3-small x 0.5",
        True,
    ),
}


@pytest.mark.parametrize(
    ("provider", "model", "batch", "cost", "source", "estimated"), LISTED.values(), ids=LISTED.keys()
)
def test_list_prices(provider: str, model: str, batch: bool, cost: str | None, source: str, estimated: bool) -> None:
    usage = Usage(1_000_000) if "embedding" in model else MILLION
    price = hosted_price(provider, model, usage, batch=batch, at=NOW)
    assert (price.source, price.estimated) == (source, estimated)
    assert cost is None or f"{price.cost:f}" == cost


def test_a_batch_discount_that_is_not_half_is_the_tables_own() -> None:
    plain = hosted_price("x-ai", "grok-4.3", Usage(1000, 0, 0), batch=False, at=NOW).cost
    batch = hosted_price("x-ai", "grok-4.3", Usage(1000, 0, 0), batch=True, at=NOW).cost
    assert batch == plain * Decimal("0.8")


# The table's batch prices begin on 2026-10-14 (UTC); asked for a day before, it gives the full price without a word.
DAYS = {
    "the day before": (datetime(2026, 10, 13, 23, 59, tzinfo=UTC), True),
    "the day": (datetime(2026, 10, 14, tzinfo=UTC), False),
    "the day elsewhere, not yet in UTC": (datetime(2026, 10, 14, 1, tzinfo=timezone(timedelta(hours=2))), True),
    "the day in UTC, not yet elsewhere": (datetime(2026, 10, 13, 23, tzinfo=timezone(timedelta(hours=-5))), False),
}


@pytest.mark.parametrize(("at", "estimated"), DAYS.values(), ids=DAYS.keys())
def test_before_a_batch_price_begins_half_the_price_is_an_estimate(at: datetime, estimated: bool) -> None:
    price = hosted_price("openai", "gpt-5-nano", MILLION, batch=True, at=at)
    assert (price.cost, price.estimated) == (Decimal("0.225"), estimated)


def test_cached_tokens_are_cheaper_and_part_of_the_input() -> None:
    fresh = hosted_price("openai", "gpt-5-nano", Usage(1_000_000, 0, 0), batch=False, at=NOW).cost
    cached = hosted_price("openai", "gpt-5-nano", Usage(1_000_000, 1_000_000, 0), batch=False, at=NOW).cost
    assert (fresh, cached) == (Decimal("0.05"), Decimal("0.005"))


@pytest.mark.parametrize(
    ("provider", "model"), [("openai", "no-such-model"), ("no-such-provider", "gpt-5-nano"), ("", "")]
)
def test_a_model_that_the_table_does_not_have_is_an_error(provider: str, model: str) -> None:
    with pytest.raises(InputError) as raised:
        hosted_price(provider, model, MILLION, batch=True, at=NOW)
    assert raised.value.message.startswith(f"no price is known for {provider}:{model}")
    assert raised.value.hint == "name a model of the genai-prices table"


@pytest.mark.parametrize(
    ("provider", "model", "usage", "tokens"),
    [
        ("github-copilot", "gpt-4.1", Usage(1), "input"),
        ("github-copilot", "gpt-4.1", Usage(0, 0, 1), "output"),
        ("openai", "text-embedding-3-small", MILLION, "output"),
    ],
    ids=["no figures", "no figures, output only", "no figure for output"],
)
def test_a_model_without_a_figure_in_the_table_is_an_error_and_not_free(
    provider: str, model: str, usage: Usage, tokens: str
) -> None:
    with pytest.raises(InputError, match=f"no price is known .* the table has none for its {tokens} tokens"):
        hosted_price(provider, model, usage, batch=False, at=NOW)


def test_no_tokens_cost_nothing() -> None:
    assert hosted_price("openai", "gpt-5-nano", Usage(), batch=True, at=NOW).cost == 0


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_prices_are_exact_to_the_picodollar(fed: int, given_: int, batch: bool) -> None:
    # 0.05 and 0.40 dollars per million: whole picodollars per token.
    price = hosted_price("openai", "gpt-5-nano", Usage(fed, 0, given_), batch=batch, at=NOW)
    assert price.cost == (fed * Decimal("0.05e-6") + given_ * Decimal("0.4e-6")) / (2 if batch else 1)
