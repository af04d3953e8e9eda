"""A budget: what is spent and what is in flight never come to more."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.errors import RefusedError
from orchestrator.core.model import Outcome, Price, Usage
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline import budget
from orchestrator.pipeline.backend_handles import BackendHandle
from tests.support.handles import handle
from tests.support.stored import job, shard

PENDING, SUBMITTED, ENDED, COLLECTED = (
    ShardState.PENDING, ShardState.SUBMITTED, ShardState.ENDED, ShardState.COLLECTED,
)  # fmt: skip


def sums(booked: object) -> Callable[[], Decimal]:
    return lambda: Decimal(str(booked))


class ByTokens:
    """A dollar for a thousand tokens of either kind."""

    def at_most(self, model: str, usage: Usage) -> Price:
        return Price(Decimal(usage.input_tokens + usage.output_tokens) / 1000, "tokens")

    def of_time(self, seconds: float) -> Price:
        return Price(Decimal(0), "by the token")

    def of_row(self, model: str, outcome: Outcome, expected: Usage) -> Price:
        raise NotImplementedError

    def of_uncertain(self, model: str, sends: int, usage: Usage) -> Price:
        raise NotImplementedError

    def known(self, model: str, endpoint: str) -> str:
        raise NotImplementedError


class Cached(ByTokens):
    """A prompt's token costs this many times as much if it is written to the provider's cache."""

    def __init__(self, times: str) -> None:
        self._times = Decimal(times)

    def at_most(self, model: str, usage: Usage) -> Price:
        written = usage.cache_write_tokens
        fed = usage.input_tokens - written + written * self._times
        return Price((fed + usage.output_tokens) / 1000, "tokens")


class BySeconds(ByTokens):
    """A dollar a second."""

    def at_most(self, model: str, usage: Usage) -> Any:
        return None

    def of_time(self, seconds: float) -> Price:
        return Price(Decimal(str(seconds)), "time")


TOKENS: BackendHandle = replace(handle(is_own=False), price=ByTokens())
SECONDS: BackendHandle = replace(handle(upstreams=1), price=BySeconds())


def of(number: int, state: ShardState, tokens: int = 1000, output: int | None = 500, seconds: float = 0.0) -> Shard:
    """A shard that may cost 1.5 x tokens + output, in thousandths of a dollar."""
    return shard(job(), number, state=state, tokens=tokens, max_output=output, provider_seconds=seconds)


@pytest.mark.parametrize(
    ("limit", "others", "booked", "told"),
    [
        (None, [], "0", None),
        ("2", [], "0", None),
        ("4", [of(2, SUBMITTED)], "0", None),
        ("4", [of(2, COLLECTED)], "2", None),
        ("3.9", [of(2, SUBMITTED)], "0", "up to $2.00 more in flight"),
        (
            "4",
            [of(2, ENDED), of(3, PENDING)],
            "0.5",
            "$0.5000 of the budget of $4.00 is spent, up to $2.00 more in flight",
        ),
    ],
    ids=["no budget", "all of it", "beside another", "the other is booked", "not beside another", "spent as well"],
)
def test_a_batch_goes_when_the_most_that_it_may_cost_fits(
    limit: str | None, others: list[Shard], booked: str, told: str | None
) -> None:
    held = budget.no_room(
        job(budget=None if limit is None else Decimal(limit)),
        of(1, PENDING), others, sums(booked), lambda _: TOKENS, lambda *_: "m",
    )  # fmt: skip
    assert held is told if told is None else told in str(held)


def test_a_batch_that_never_fits_is_refused_with_the_figures() -> None:
    with pytest.raises(RefusedError, match=r"cost up to \$2\.00, and \$0\.5000 of the budget of \$1\.90 is spent"):
        budget.no_room(job(budget=Decimal("1.9")), of(1, PENDING), [], sums("0.5"), lambda _: TOKENS, lambda *_: "m")


def test_answers_without_a_bound_and_a_budget_do_not_go_together() -> None:
    with pytest.raises(RefusedError, match="rows with unlimited answers"):
        budget.no_room(
            job(budget=Decimal(9)), of(1, PENDING, output=None), [], sums(0), lambda _: TOKENS, lambda *_: "m"
        )


@pytest.mark.parametrize(("times", "most"), [("1.25", "2.375"), ("1", "2"), ("0.5", "2")])
def test_prompts_may_be_written_to_a_cache_that_nobody_asked_for(times: str, most: str) -> None:
    assert budget.bound(Cached(times), "m", 1000, 500) == Decimal(most)


def test_what_is_paid_by_the_hour_is_not_bounded_before_it_runs() -> None:
    found = budget.no_room(
        job(budget=Decimal(1)), of(1, PENDING, output=None), [], sums(0), lambda _: SECONDS, lambda *_: "m"
    )
    assert found is None


@pytest.mark.parametrize(
    ("spent", "seconds", "told"),
    [
        ("0", 7.9, None),
        ("0", 8.0, "$8.00 spent, and until the engine has stopped, up to $2.00 more"),
        ("5", 3.0, "$8.00 spent"),
    ],
    ids=["room for the last two seconds", "no more", "booked and running"],
)
def test_upstreams_by_the_hour_are_stopped_while_stopping_still_fits(
    spent: str, seconds: float, told: str | None
) -> None:
    running = of(1, SUBMITTED, seconds=seconds)
    found = budget.used_up(job(budget=Decimal(10)), [running], sums(spent), lambda _: SECONDS, lambda *_: "m")
    assert found is told if told is None else told in str(found)


def test_nothing_that_runs_needs_no_stop() -> None:
    done = of(1, COLLECTED, seconds=99)
    assert budget.used_up(job(budget=Decimal(1)), [done], sums(5), lambda _: SECONDS, lambda *_: "m") is None


def test_what_a_hosted_batch_may_still_cost_is_not_there_for_the_hours() -> None:
    shards = [of(1, SUBMITTED, seconds=5.0), replace(of(2, SUBMITTED), backend="openai")]
    handles = {1: SECONDS, 2: TOKENS}
    found = budget.used_up(
        job(budget=Decimal(10)), shards, sums(0), lambda shard: handles[shard.number], lambda *_: "m"
    )
    assert found is None
    shards[0] = of(1, SUBMITTED, seconds=7.0)
    found = budget.used_up(
        job(budget=Decimal(10)), shards, sums(0), lambda shard: handles[shard.number], lambda *_: "m"
    )
    assert "covers no further row" in str(found)


def test_the_ledger_is_not_added_up_where_the_sum_does_not_matter() -> None:
    def unasked() -> Decimal:
        raise AssertionError("the ledger was added up")

    without, limited = job(budget=None), job(budget=Decimal(9))
    running = [of(1, SUBMITTED)]
    assert budget.no_room(without, of(2, PENDING), running, unasked, lambda _: TOKENS, lambda *_: "m") is None
    assert budget.no_room(limited, of(2, PENDING), running, unasked, lambda _: SECONDS, lambda *_: "m") is None
    assert budget.used_up(without, running, unasked, lambda _: SECONDS, lambda *_: "m") is None
    assert budget.used_up(limited, running, unasked, lambda _: TOKENS, lambda *_: "m") is None
