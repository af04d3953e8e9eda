"""Whether a shard may be sent: never above a limit, never stuck below one, and told so that a person understands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.policy.quota import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    InFlight,
    LearnedLimit,
    Split,
    accepted,
    amount,
    correction,
    current,
    effective,
    hold,
    max_shard_tokens,
    refused,
    wait,
)
from tests.support.examples import ample

NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)
M = 1_000_000


def learned_limit(
    tokens: int | None = None, learned_at: datetime | None = None, hold_until: datetime | None = None,
    strikes: int = 0, reason: str = "",
) -> LearnedLimit:  # fmt: skip
    return LearnedLimit("openai", "gpt-x", tokens, None, learned_at, hold_until, strikes, reason)


EMPTY, NOTHING = InFlight(), learned_limit()


def ask(
    tokens: int, rows: int = 10, *, limit: int | None = 2 * M, hourly: int | None = None,
    there: InFlight = EMPTY, learned: LearnedLimit = NOTHING, now: datetime = NOW,
) -> str | Split | None:  # fmt: skip
    return hold(
        tokens, rows, model="gpt-x", limit=limit, batches_per_hour=hourly, in_flight=there, learned=learned, now=now
    )


def there(tokens: int, batches: int = 1) -> InFlight:
    return InFlight(tokens, 100 if tokens else 0, batches)


FULL = "queued behind quota: 1.9M of 2M tokens of gpt-x are enqueued, 300k more do not fit"
TABLE = {
    "no limit is known": (ask(9 * M, limit=None, there=there(9 * M)), None),
    "room": (ask(M), None),
    "fits exactly": (ask(M, there=there(M)), None),
    "a token too many": (
        ask(M + 1, there=there(M)),
        "queued behind quota: 1M of 2M tokens of gpt-x are enqueued, 1M more do not fit",
    ),
    "full": (ask(300_000, there=there(1_900_000)), FULL),
    "larger than all that may wait": (
        ask(3 * M),
        Split("3M tokens of gpt-x in one batch, but only 2M may be enqueued: it is split"),
    ),
    "that does not wait for others to end": (
        ask(3 * M, there=there(M)),
        Split("3M tokens of gpt-x in one batch, but only 2M may be enqueued: it is split"),
    ),
    "a lone row cannot be cut, and goes": (ask(3 * M, 1), None),
    "once nothing else is there": (
        ask(3 * M, 1, there=there(M)),
        "queued behind quota: 1M of 2M tokens of gpt-x are enqueued, 3M more do not fit",
    ),
    "batches an hour": (
        ask(1, hourly=2000, there=there(5, 2000)),
        "queued behind quota: hourly limit of 2,000 batches reached",
    ),
    "one batch less": (ask(1, hourly=2000, there=there(5, 1999)), None),
    "what was learned is less": (
        ask(M, there=there(M // 2), learned=learned_limit(M, NOW)),
        "queued behind quota: 500k of 1M tokens of gpt-x are enqueued, 1M more do not fit",
    ),
    "what was learned is more": (ask(300_000, there=there(1_900_000), learned=learned_limit(5 * M, NOW)), FULL),
    "a pause": (
        ask(1, learned=learned_limit(hold_until=NOW + timedelta(minutes=3), reason="rate limited")),
        "rate limited; retried after 14:03 UTC",
    ),
    "the pause is over": (ask(1, learned=learned_limit(hold_until=NOW, reason="rate limited")), None),
}


@pytest.mark.parametrize(("found", "expected"), TABLE.values(), ids=TABLE.keys())
def test_a_shard_goes_or_says_what_it_waits_for(found: str | Split | None, expected: str | Split | None) -> None:
    assert found == expected


SIZES = st.integers(1, 3000)
SHARDS = st.lists(st.tuples(SIZES, st.integers(1, 50), st.booleans()), max_size=40)


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(SHARDS, SIZES, st.none() | SIZES)
def test_the_limit_is_never_passed_and_everything_goes_in_the_end(
    shards: list[tuple[int, int, bool]], declared: int, taught: int | None
) -> None:
    """Shards want to go in turn; before each, a batch may end. One that has to wait waits until one ends."""
    learned = learned_limit(taught, NOW)
    limit = min(declared, taught or declared)
    running: list[tuple[int, int]] = []
    for tokens, rows, one_ends in shards:
        if one_ends and running:
            running.pop(0)
        while True:
            flight = InFlight(sum(size for size, _ in running), sum(rows for _, rows in running))
            held = ask(tokens, rows, limit=declared, there=flight, learned=learned)
            if held is None:
                assert flight.tokens + tokens <= limit or (not running and rows == 1)
                running.append((tokens, rows))
                break
            if isinstance(held, Split):
                assert rows > 1
                assert max_shard_tokens(limit) < tokens
                break
            assert running, "a shard waits although nothing is there that could end"
            running.pop(0)


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(SIZES, st.integers(1, 50), SIZES, st.integers(0, 3000), st.integers(0, 500), st.integers(0, 500), SIZES)
def test_more_room_never_holds_what_less_room_lets_go(
    tokens: int, rows: int, limit: int, flying: int, fewer: int, smaller: int, more: int
) -> None:
    if ask(tokens, rows, limit=limit, there=there(flying)) is None:
        assert ask(tokens, rows, limit=limit, there=there(max(0, flying - fewer))) is None
        assert ask(max(1, tokens - smaller), rows, limit=limit, there=there(flying)) is None
        assert ask(tokens, rows, limit=limit + more, there=there(flying)) is None
        assert ask(tokens, rows, limit=None, there=there(flying)) is None


def refuse(limit: int | None, in_flight: int, shard: int, learned: LearnedLimit = NOTHING) -> LearnedLimit:
    return refused(
        learned, limit=limit, in_flight_tokens=in_flight, shard_tokens=shard, reason="no room for gpt-x", now=NOW
    )


def test_token_limit_exceeded_with_its_limit_is_kept_to_for_a_day_without_a_pause() -> None:
    learned = refuse(900_000, in_flight=800_000, shard=200_000)
    assert (learned.enqueued_tokens, learned.hold_until, learned.strikes) == (900_000, None, 0)
    assert learned.reason == "queued behind quota: no room for gpt-x"
    assert ask(200_000, limit=None, there=there(800_000), learned=current(learned, NOW)) is not None
    assert ask(200_000, limit=None, there=there(700_000), learned=current(learned, NOW)) is None
    tomorrow = NOW + timedelta(days=1)
    assert current(learned, tomorrow - timedelta(seconds=1)).enqueued_tokens == 900_000
    assert current(learned, tomorrow).enqueued_tokens is None
    assert current(learned, tomorrow).learned_at is None


def test_token_limit_exceeded_that_our_own_tokens_do_not_explain_means_others_use_the_quota() -> None:
    learned = refuse(900_000, in_flight=100_000, shard=200_000)
    assert (learned.enqueued_tokens, learned.strikes) == (900_000, 1)
    assert learned.hold_until is not None
    assert learned.reason == "queued behind quota: no room for gpt-x (100k tokens enqueued by us)"


def test_token_limit_exceeded_without_a_number_and_nothing_of_ours_there_only_waits() -> None:
    learned = refuse(None, in_flight=0, shard=200_000)
    assert (learned.enqueued_tokens, learned.learned_at, learned.strikes) == (None, None, 1)
    assert learned.reason == "queued behind quota: no room for gpt-x (nothing enqueued by us)"
    assert learned.hold_until is not None
    said = f"{learned.reason}; retried after {learned.hold_until:%H:%M} UTC"
    assert ask(200_000, limit=None, learned=learned) == said
    assert ask(200_000, limit=None, learned=learned, now=learned.hold_until) is None


def test_token_limit_exceeded_by_one_batch_alone_pauses_and_then_cuts_it() -> None:
    learned = refuse(900_000, in_flight=0, shard=M)
    later = NOW + timedelta(hours=1)
    assert learned.strikes == 1
    assert isinstance(ask(M, limit=None, learned=learned), str)
    assert isinstance(ask(M, limit=None, learned=learned, now=later), Split)


def test_token_limit_exceeded_without_a_number_is_below_the_sum_and_not_below_what_was_taken() -> None:
    learned = refuse(None, in_flight=500_000, shard=500_000)
    assert (learned.enqueued_tokens, learned.learned_at, learned.strikes) == (900_000, NOW, 1)
    assert refuse(None, in_flight=990_000, shard=10_000).enqueued_tokens == 990_000


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(1, 10**9))
def test_refusals_without_a_number_find_a_limit_that_is_there(real: int, flying: int, shard: int) -> None:
    """Each time less is tried than what was refused, until it is taken or nothing else is there."""
    learned = learned_limit()
    flying = min(flying, real)
    for _ in range(1000):
        if flying + shard <= real or flying == 0:
            return
        before = flying + shard
        learned = refuse(None, flying, shard, learned)
        assert learned.enqueued_tokens is not None
        assert flying <= learned.enqueued_tokens < before or learned.enqueued_tokens == flying
        # The next one waits until as much has ended as the limit asks for.
        flying = max(0, min(flying, learned.enqueued_tokens - shard))
    pytest.fail("no end")


def test_pauses_grow_to_half_an_hour_and_start_over_when_something_is_taken() -> None:
    learned, pauses = learned_limit(tokens=7, learned_at=NOW), []
    for _ in range(8):
        learned = wait(learned, "busy", None, NOW)
        assert learned.hold_until is not None
        pauses.append((learned.hold_until - NOW).total_seconds())
    for pause, base in zip(pauses, (60, 120, 240, 480, 960, 1800, 1800, 1800), strict=True):
        assert base * 0.8 <= pause <= base * 1.2
    assert learned.strikes == 8
    calm = accepted(learned)
    assert calm == learned_limit(tokens=7, learned_at=NOW)
    assert wait(calm, "busy", None, NOW).strikes == 1


def test_a_pause_is_never_shorter_than_the_backend_asked_for() -> None:
    assert wait(learned_limit(), "busy", 86_400.0, NOW).hold_until == NOW + timedelta(days=1)
    short = wait(learned_limit(), "busy", 0.5, NOW).hold_until
    assert short is not None
    assert short >= NOW + timedelta(seconds=FIRST_PAUSE * 0.8)


@given(st.integers(0, 10**6), st.text(max_size=20), st.none() | st.floats(0, 1e6))
def test_a_pause_is_always_one_and_always_ends(strikes: int, reason: str, retry_after: float | None) -> None:
    found = wait(learned_limit(strikes=strikes), reason, retry_after, NOW)
    assert found.hold_until is not None
    assert NOW < found.hold_until <= NOW + timedelta(seconds=max(retry_after or 0, LONGEST_PAUSE * 1.2) + 1)
    assert found == wait(learned_limit(strikes=strikes), reason, retry_after, NOW)


def test_who_was_refused_together_does_not_come_back_together() -> None:
    times = [NOW + timedelta(milliseconds=number) for number in range(20)]
    ends = [wait(learned_limit(), "busy", None, now).hold_until for now in times]
    assert len({end - now for end, now in zip(ends, times, strict=True) if end is not None}) == 20


@pytest.mark.parametrize(
    ("declared", "learned", "limit"), [(None, None, None), (5, None, 5), (None, 6, 6), (5, 6, 5), (6, 5, 5)]
)
def test_the_smaller_limit_counts(declared: int | None, learned: int | None, limit: int | None) -> None:
    assert effective(declared, learned) == limit


PLANNED = {
    "of a large limit a quarter": (2 * M, 500_000),
    "of a small limit nearly all": (90_000, 81_000),
    "between, what is worth a batch": (200_000, 100_000),
    "the smallest limit": (1, 1),
}


@pytest.mark.parametrize(("limit", "tokens"), PLANNED.values(), ids=PLANNED.keys())
def test_how_large_shards_are_planned(limit: int, tokens: int) -> None:
    assert max_shard_tokens(limit) == tokens


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_planned_shards_fit_the_limit_and_grow_with_it(limit: int, more: int) -> None:
    assert 1 <= max_shard_tokens(limit) <= limit
    assert max_shard_tokens(limit) <= max_shard_tokens(limit + more)
    assert ask(max_shard_tokens(limit), limit=limit) is None


CORRECTED = {
    "nothing is known": (0, 0, 1.0),
    "told nothing": (100, 0, 1.0),
    "as estimated": (100, 100, 1.0),
    "more than estimated": (100, 130, 1.3),
    "far more: those were odd ones": (100, 10_000, 4.0),
    "far less": (10_000, 1, 0.25),
}


@pytest.mark.parametrize(("estimated", "told", "factor"), CORRECTED.values(), ids=CORRECTED.keys())
def test_estimates_are_corrected_by_what_was_told(estimated: int, told: int, factor: float) -> None:
    assert correction(estimated, told) == factor


AMOUNTS = {
    0: "0", 7: "7", 999: "999", 1000: "1k", 1500: "1.5k", 1999: "2k", 12_345: "12.3k", 99_949: "99.9k",
    99_951: "100k", 100_000: "100k", 300_000: "300k", 999_400: "999k", 999_500: "1M", 1_900_000: "1.9M",
    1_999_999: "2M", 15_000_000: "15M", 999_499_999: "999M", 999_500_000: "1B", 5_000_000_000: "5B",
    123_000_000_000: "123B",
}  # fmt: skip


@pytest.mark.parametrize(("count", "text"), AMOUNTS.items(), ids=AMOUNTS.values())
def test_amounts_as_people_say_them(count: int, text: str) -> None:
    assert amount(count) == text


def test_learned_facts_are_kept_when_others_change() -> None:
    known = learned_limit(5, NOW, NOW, 3, "said")
    assert current(known, NOW) == known
    assert wait(known, "busy", None, NOW) == replace(
        known, hold_until=wait(known, "busy", None, NOW).hold_until, strikes=4, reason="busy"
    )
