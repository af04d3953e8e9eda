"""Prices of rows at a backend of orch.toml: by upstream time, or by the token at the tier that served the row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.backends.open import profile_for
from orchestrator.backends.openai.profiles import profile_of
from orchestrator.core.errors import InputError, UsageError
from orchestrator.core.model import Outcome, Price, Usage
from orchestrator.core.money import per_hour
from orchestrator.pipeline.backend_handles import Prices
from orchestrator.policy import pricing
from orchestrator.policy.dialect import priced_as
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.planner import Cost
from orchestrator.policy.pricing import PriceOverride, Tier
from orchestrator.policy.token_rates import TierPrice, TokenRates
from orchestrator.settings import config
from orchestrator.settings.backends import (
    Backend,
    EnginesBackend,
    HostedBackend,
    LocalBackend,
    RayBackend,
    SyncBackend,
)
from orchestrator.settings.config import Config
from orchestrator.settings.model_lists import rung_of

_NOTHING = Price(Decimal(0), "paid by the token")


class ByTime(Struct, frozen=True):
    """Prices of upstreams paid by the hour.

    If all GPUs cost `cost_per_hour`, `sizes` has the number of GPUs of each model's engine. If engines cost different
    amounts, `prices` has the hourly cost by model, and `cost_per_hour` is the highest.
    """

    cost_per_hour: Decimal | None
    idle: bool
    sizes: Mapping[str, int] | None = None
    prices: Mapping[str, Decimal] | None = None

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        if self.prices is not None and model in self.prices:
            return pricing.local_price(outcome.upstream_seconds, self.prices[model], idle=self.idle)
        return self.of_time(outcome.upstream_seconds * (self.sizes or {}).get(model, 1))

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> None:
        """Return None: the hourly price already covers failed attempts."""

    def of_time(self, seconds: float) -> Price:
        return pricing.local_price(seconds, self.cost_per_hour, idle=self.idle)

    def known(self, model: str, endpoint: str) -> str:
        """Describe the cost of an hour. Raises UsageError if the backend has no such model."""
        names = self.prices or self.sizes
        if names is not None and model not in (*names, "default"):
            raise UsageError(f"it has no model {model}; it has {', '.join(names)}")
        return per_hour((self.prices or {}).get(model, self.cost_per_hour))

    def at_most(self, model: str, usage: Usage) -> Price | None:
        """Return None. The time that these tokens take is not known in advance."""
        return None

    def synchronous(self) -> ByTime:
        """Return these prices: an hour costs the same for any row."""
        return self

    def at(self, moment: datetime) -> ByTime:
        """Return these prices: they never change."""
        return self


class ByToken(Struct, frozen=True):
    """Prices of a provider's rows, by the tier that a synchronous answer names, else by `tier`."""

    provider: str | None
    tier: Tier
    discount: Decimal | None
    overrides: Mapping[str, PriceOverride]
    now: Callable[[], datetime]
    stacks: bool = True

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        """Price a row's tokens at the tier that served the row."""
        with _TOLD:
            return pricing.row_price(
                self.provider, model, outcome, asked=self.tier, expected=expected, **self._terms()
            )

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price:
        """Price attempts of unknown outcome as if the provider bills them all."""
        with _TOLD:
            one = self._rates(model).price(usage)
        return Price(one.cost * sends, f"uncertain: {sends} x {one.source}", estimated=True)

    def of_time(self, seconds: float) -> Price:
        """Return a price of zero: rows are paid by the token."""
        return _NOTHING

    def known(self, model: str, endpoint: str) -> str:
        """Describe the cost of a million tokens. Raises UsageError if the price is unknown."""
        with _TOLD:
            found = self._rates(model)
            found.check(endpoint)
        return str(found)

    def at_most(self, model: str, usage: Usage) -> Price:
        """Price these tokens without cache discounts."""
        with _TOLD:
            return self._rates(model).price(usage)

    def synchronous(self) -> ByToken:
        return replace(self, tier=Tier.STANDARD)

    def at(self, moment: datetime) -> ByToken:
        """Return the prices that apply at a moment."""
        return replace(self, now=lambda: moment)

    def changes(self, model: str, until: datetime) -> list[datetime]:
        """Return the times before `until` at which a model's price changes."""
        return pricing.price_changes(self.provider, model, self.now(), until, self.overrides)

    def _rates(self, model: str) -> TierPrice:
        return pricing.rates(self.provider, model, tier=self.tier, **self._terms())

    def _terms(self) -> dict[str, Any]:
        terms = {"discount": self.discount, "stacks": self.stacks, "overrides": self.overrides}
        return {"at": self.now(), **terms}


class _Told:
    """Turns an unknown price into a UsageError: the job is not at fault, and waits until orch.toml states a price."""

    def __enter__(self) -> None:
        """Enter the block without doing anything. A generator-based context manager would take ten times as long."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, InputError):
            raise UsageError(error.message, hint=error.hint) from error


_TOLD = _Told()


def prices_of(backend: Backend, settings: Config, now: Callable[[], datetime]) -> Prices:
    overrides = {name: _override(price) for name, price in settings.prices.items()}
    match backend:
        case LocalBackend():
            return ByTime(backend.cost_per_hour, backend.idle)
        case EnginesBackend():
            sizes = {name: model.tensor_parallel for name, model in backend.models.items()}
            return ByTime(backend.cost_per_hour, backend.is_free, sizes)
        case RayBackend():
            prices = {name: model.cost_per_hour for name, model in backend.models.items()}
            return ByTime(max(prices.values()), backend.is_free, prices=prices)
        case SyncBackend():
            profile = profile_of(backend.kind, backend.base_url)
            at_once = Tier.BATCH if profile.at_once_as_batch else pricing.TIERS["default"]
            tier = pricing.TIERS[backend.service_tier] if backend.service_tier else at_once
            provider = backend.provider or provider_at(backend.base_url)
            return ByToken(provider, tier, profile.discount, overrides, now)
        case HostedBackend():
            known = profile_for(backend)
            return ByToken(known.provider, Tier.BATCH, known.discount, overrides, now, known.stacks)
        case _:
            assert_never(backend)


def provider_at(base_url: str) -> str | None:
    """Return the provider whose list prices apply at a synchronous API's address, or None."""
    return profile_of("sync", base_url).provider or priced_as(base_url)


def listed_prices(provider: str, tier: Tier, settings: Config, now: Callable[[], datetime]) -> ByToken:
    """Return the prices of a provider's models at a tier. The provider need not be a backend of orch.toml."""
    overrides = {name: _override(price) for name, price in settings.prices.items()}
    return ByToken(provider, tier, None, overrides, now)


def _override(price: config.ModelPrice) -> PriceOverride:
    tiers = {
        tier: _rates(rates) for tier in (Tier.BATCH, Tier.FLEX, Tier.PRIORITY) if (rates := getattr(price, tier))
    }
    return PriceOverride(standard=_rates(price), source=price.source, **tiers)


def _rates(rates: config.RateSettings) -> TokenRates:
    search = None if rates.web_search is None else rates.web_search / 1000
    return TokenRates(
        rates.input, rates.output, rates.cached, rates.cache_write, cache_write_1h=rates.cache_write_1h, search=search
    )


INPUT_MARGIN, ASSUMED_OUTPUT_MARGIN = 1.15, 1.08
"""Upper bounds (95 %) as multiples of the estimates: for a job's prompts, and for answers of assumed length."""
ENOUGH_ROWS = 10
"""Number of observed answers after which observed and assumed lengths have equal weight."""


class Shape(Struct, frozen=True):
    """A group of similar rows, with the estimated mean tokens of a prompt and of an answer.

    `most_output` is the upper bound (95 %) of the mean answer.
    """

    rows: int
    model: str
    input_tokens: float
    output_tokens: float
    most_output: float

    @classmethod
    def of(cls, model: str, parts: Sequence[tuple[int, float, Lengths]]) -> Shape:
        """Return the shape of a model's rows.

        Each part has a number of rows, their mean prompt tokens, and the lengths of their answers.
        """
        rows = sum(many for many, _, _ in parts)
        fed = sum(many * tokens for many, tokens, _ in parts) / rows
        mean = sum(many * lengths.mean for many, _, lengths in parts) / rows
        return cls(rows, model, fed, mean, sum(many * _most(lengths, rows) for many, _, lengths in parts) / rows)

    def cost(self, prices: Prices, model: str) -> Cost:
        """Return the cost of one row. `model` is the backend's name for the model. Raises UsageError without a
        price.
        """
        usual = Usage(input_tokens=round(self.input_tokens), output_tokens=round(self.output_tokens))
        fed, told = math.ceil(self.input_tokens * INPUT_MARGIN), math.ceil(self.most_output)
        most = Usage(input_tokens=fed, output_tokens=told)
        return Cost(_price(prices, model, usual), _price(prices, model, most))


def _most(lengths: Lengths, rows: int) -> float:
    """Return the upper bound (95 %) of the mean answer of this many rows. A guessed length is returned unchanged."""
    seen = lengths.seen / (lengths.seen + ENOUGH_ROWS)
    assumed = min(ASSUMED_OUTPUT_MARGIN * lengths.mean, lengths.p95)
    return seen * lengths.mean_p95(rows) + (1.0 - seen) * max(lengths.mean, assumed)


def _price(prices: Prices, model: str, usage: Usage) -> Decimal:
    price = prices.at_most(model, usage)
    assert price is not None, "paid by the token"
    return price.cost


def going_on(runs: Sequence[Mapping[str, int]], rung: str) -> list[tuple[int, int]]:
    """Return two counts for each run: rows of the rung's alias, and those of them that reached the rung."""
    alias, number = rung_of(rung)
    found = []
    for reached in runs:
        mine = {rung_of(model)[1]: rows for model, rows in reached.items() if rung_of(model)[0] == alias}
        found.append((sum(mine.values()), sum(rows for at, rows in mine.items() if at >= number)))
    return found
