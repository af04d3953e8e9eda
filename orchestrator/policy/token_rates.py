"""Cost of an answer's tokens at given rates. Each token is counted once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cached_property

from msgspec import Struct
from msgspec.structs import astuple, replace

from orchestrator.core.batch_api import WITHOUT_OUTPUT
from orchestrator.core.counts import number_of
from orchestrator.core.errors import InputError
from orchestrator.core.model import PICO, Price, Usage

_MILLION = Decimal(1_000_000)


class TokenRates(Struct, frozen=True):
    """Dollars per million tokens, `request` dollars for each request, and `search` dollars for each web search.

    A rate that is None has a substitute: `cached` and `cache_write` cost the same as `input`, `reasoning` as
    `output`, and `cache_write_1h` as `cache_write`. Audio and pictures cost the same as other tokens. If `output` or
    `search` is None, there is no price.
    """

    input: Decimal
    output: Decimal | None = None
    cached: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None
    request: Decimal = Decimal(0)
    cache_write_1h: Decimal | None = None
    input_audio: Decimal | None = None
    output_audio: Decimal | None = None
    input_image: Decimal | None = None
    output_image: Decimal | None = None
    search: Decimal | None = None


class TierPrice(Struct, frozen=True, dict=True):
    """A model's token prices at one tier, with their source.

    `by_prompt` has `(mark, rates)`, the highest mark first; the last mark is -1. If a row's prompt has more tokens
    than a mark, all its tokens cost that mark's rates, times `factor`. `search` is the price of a web search at the
    standard tier, for rates that have no price for it.
    """

    by_prompt: tuple[tuple[int, TokenRates], ...]
    source: str
    factor: Decimal = Decimal(1)
    estimated: bool = False
    search: Decimal | None = None

    def cached_as(self, other: TierPrice) -> TierPrice:
        """Return these prices, but with `other`'s prices for cached tokens."""
        theirs = {mark: per.cached for mark, per in other.by_prompt}
        plain = other.by_prompt[-1][1].cached
        by_prompt = tuple(
            (mark, replace(per, cached=None if (price := theirs.get(mark, plain)) is None else price / self.factor))
            for mark, per in self.by_prompt
        )
        return replace(self, by_prompt=by_prompt)

    def price(self, usage: Usage, rows: int = 1) -> Price:
        """Return the price of these tokens in `rows` rows of equal size. Raises InputError if output tokens have no
        price.
        """
        place = 0
        while usage.input_tokens <= self.by_prompt[place][0] * rows:
            place += 1
        whole = self._whole_picos[place]
        fed, cached, output, *others = astuple(usage)
        if whole is not None and not (cached or any(others)):  # as most answers are
            picos = fed * whole[0] + output * whole[1] + rows * whole[2]
            return Price(Decimal(picos).scaleb(-12), self.source, self.estimated)
        per = self.by_prompt[place][1]
        cost = _input_cost(per, usage)
        if usage.output_tokens:
            if per.output is None:
                raise self._no_output()
            cost += _output_cost(per, per.output, usage)
        fees = rows * per.request + usage.web_searches * (per.search or 0)
        cost = (cost / _MILLION + fees) * self.factor
        if self.search is not None and per.search is None:
            cost += usage.web_searches * self.search
        gaps = self._gaps(per, usage)
        source = f"{self.source}, {', '.join(gaps)}" if gaps else self.source
        return Price(cost.quantize(PICO, ROUND_HALF_EVEN), source, self.estimated or bool(gaps), bool(gaps))

    @cached_property
    def _whole_picos(self) -> list[tuple[int, int, int] | None]:
        """Prices of an input token, an output token and a request for each mark, in 1e-12 dollars.

        The entry is None if a price is missing or not a whole number. Products of integers take a third of the time
        of Decimals.
        """
        found: list[tuple[int, int, int] | None] = []
        for _, per in self.by_prompt:
            rates = (per.input, per.output or Decimal("NaN"), per.request * _MILLION)
            picos = [rate * self.factor * _MILLION for rate in rates]
            is_whole = per.output is not None and all(each == each.to_integral_value() for each in picos)
            found.append((int(picos[0]), int(picos[1]), int(picos[2])) if is_whole else None)
        return found

    def _gaps(self, per: TokenRates, usage: Usage) -> list[str]:
        found = []
        if usage.web_searches and per.search is None and self.search is None:
            found.append(f"{number_of(usage.web_searches, 'web search')} without a price")
        if usage.cache_write_1h_tokens and per.cache_write_1h is None:
            found.append("the one-hour cache has no price of its own")
        if usage.input_audio_tokens and per.input_audio is None:
            found.append("audio input has no price of its own")
        if usage.output_audio_tokens and per.output_audio is None:
            found.append("audio output has no price of its own")
        if usage.output_image_tokens and per.output_image is None:
            found.append("image output has no price of its own")
        return found

    def check(self, endpoint: str) -> None:
        """Raise InputError if the endpoint's answers have output tokens and no output price is known."""
        if endpoint not in WITHOUT_OUTPUT and self.by_prompt[-1][1].output is None:
            raise self._no_output()

    def _no_output(self) -> InputError:
        return InputError(
            f"no price is known for output tokens ({self.source} has none)",
            hint="choose a model that outputs tokens, or set its output price in orch.toml under [prices]",
        )

    def __str__(self) -> str:
        per = self.by_prompt[-1][1]
        output = "" if per.output is None else f", ${(per.output * self.factor).normalize():f} out"
        longer = "".join(f", more above {mark:,} in" for mark, _ in self.by_prompt[-2:-1])
        guessed = "≈ " if self.estimated else ""
        fed = f"{(per.input * self.factor).normalize():f}"
        return f"{guessed}${fed} in{output} per million tokens{longer} ({self.source})"


def _input_cost(per: TokenRates, usage: Usage) -> Decimal:
    """Return the cost of input tokens, in millionths of a dollar. Each token counts once, at the price of its
    kind.
    """
    cached, written, lasting = usage.cached_tokens, usage.cache_write_tokens, usage.cache_write_1h_tokens
    left = usage.input_tokens - cached - written
    write = per.input if per.cache_write is None else per.cache_write
    cost = cached * (per.input if per.cached is None else per.cached)
    cost += (written - lasting) * write + lasting * (write if per.cache_write_1h is None else per.cache_write_1h)
    kinds = ((usage.input_audio_tokens, per.input_audio), (usage.input_image_tokens, per.input_image))
    return cost + _cost_by_kind(left, per.input, kinds)


def _output_cost(per: TokenRates, each: Decimal, usage: Usage) -> Decimal:
    """Return the cost of output tokens, in millionths of a dollar."""
    thought = usage.reasoning_tokens
    left = usage.output_tokens - thought
    cost = thought * (each if per.reasoning is None else per.reasoning)
    kinds = ((usage.output_audio_tokens, per.output_audio), (usage.output_image_tokens, per.output_image))
    return cost + _cost_by_kind(left, each, kinds)


def _cost_by_kind(left: int, each: Decimal, kinds: Iterable[tuple[int, Decimal | None]]) -> Decimal:
    """Return the cost of tokens by kind. Kinds without a price cost `each` per token."""
    cost = Decimal(0)
    for count, price in kinds:
        if count and price is not None:
            own = min(count, left)
            cost, left = cost + own * price, left - own
    return cost + left * each
