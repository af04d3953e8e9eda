"""Published rates: never above them, and all of them; what an answer's headers say of them. Time is simulated."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.rate_limiter import (
    LONGEST_HOLD,
    LONGEST_PAUSE,
    SLACK,
    AnnouncedRate,
    RateLimiter,
    Standings,
    Ticket,
    read_standings,
    reset_seconds,
)
from tests.support.examples import ample

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
NOTHING = AnnouncedRate()


def driven(
    rate_limiter: RateLimiter, seconds: float, sizes: Iterable[int] = (), late: Iterable[float] = ()
) -> list[tuple[float, int]]:
    """When rows of these sizes go (0 behind the last), each as soon as it may, but so much later: time and size."""
    now, gone = 0.0, []
    lateness, size = chain(late, repeat(0.0)), chain(sizes, repeat(0))
    while now < seconds:
        if wait := rate_limiter.wait(now):
            now += wait + next(lateness)
            continue
        gone.append((now, next(size)))
        rate_limiter.take(*gone[-1])
    return gone


def fullest_minute(gone: list[tuple[float, int]]) -> tuple[int, int]:
    """The most rows, and the most tokens without those of the last row, that any minute has."""
    most_rows, most_tokens, first, tokens = 0, 0, 0, 0
    for last, (at, size) in enumerate(gone):
        # What goes a minute after another row is in the next minute; a rounding error is no second.
        while at - gone[first][0] >= 60 - 1e-6:
            tokens -= gone[first][1]
            first += 1
        most_rows, most_tokens = max(most_rows, last - first + 1), max(most_tokens, tokens)
        tokens += size
    return most_rows, most_tokens


LATE = st.lists(st.floats(0, 3), max_size=300)


@pytest.mark.slow
@settings(max_examples=ample(60))
@given(st.integers(1, 600), LATE)
def test_no_minute_has_more_requests_than_the_limit(limit: int, late: list[float]) -> None:
    rows, _ = fullest_minute(driven(RateLimiter(requests_per_minute=limit), 150, late=late))
    assert rows <= limit


@settings(max_examples=ample(60))
@given(st.integers(100, 100_000), st.lists(st.integers(50, 20_000), min_size=1, max_size=40), LATE)
def test_no_minute_has_more_tokens_than_the_limit_and_one_row(
    limit: int, sizes: list[int], late: list[float]
) -> None:
    rate_limiter = RateLimiter(tokens_per_minute=limit)
    gone = driven(rate_limiter, 150, chain(sizes, repeat(limit)), late)
    _, tokens = fullest_minute(gone)
    assert tokens <= limit


@settings(max_examples=ample(40))
@given(st.integers(1, 600), st.lists(st.floats(0, SLACK), max_size=600))
def test_the_whole_rate_is_used(limit: int, late: list[float]) -> None:
    minutes = 3
    gone = driven(RateLimiter(requests_per_minute=limit), 60 * minutes, late=late)
    assert len(gone) >= int(limit * minutes * 0.995)


def test_the_whole_rate_of_tokens_is_used() -> None:
    gone = driven(RateLimiter(requests_per_minute=100_000, tokens_per_minute=60_000), 180, repeat(500))
    assert sum(size for _, size in gone) >= 3 * 60_000 * 0.99


def test_there_is_no_burst_at_the_start() -> None:
    gone = driven(RateLimiter(requests_per_minute=600), 10)
    assert len([at for at, _ in gone if at < 1.0]) <= 10 + 3


def test_the_tighter_limit_holds() -> None:
    gone = driven(RateLimiter(requests_per_minute=600, tokens_per_minute=6_000), 120, repeat(1_000))
    assert len(gone) in range(12, 14)


def test_without_a_limit_nothing_waits() -> None:
    rate_limiter = RateLimiter()
    for _ in range(1000):
        rate_limiter.take(0.0, 10_000)
    assert rate_limiter.wait(0.0) == 0.0


def test_who_may_not_wait_is_counted_too() -> None:
    rate_limiter = RateLimiter(requests_per_minute=60)
    for _ in range(10):  # requests of people
        rate_limiter.take(0.0, 0)
    assert rate_limiter.wait(0.0) == pytest.approx(10, abs=0.5)


def test_tokens_that_were_not_used_are_given_back() -> None:
    rate_limiter = RateLimiter(tokens_per_minute=60_000)
    ticket = rate_limiter.take(0.0, 4_000)
    assert rate_limiter.wait(0.0) == pytest.approx(4, abs=0.5)
    rate_limiter.settle(ticket, 1_000)
    assert rate_limiter.wait(0.0) == pytest.approx(1, abs=0.5)


def test_tokens_that_were_not_foreseen_are_paid_for() -> None:
    rate_limiter = RateLimiter(tokens_per_minute=60_000)
    rate_limiter.settle(rate_limiter.take(0.0, 0), 5_000)
    assert rate_limiter.wait(0.0) == pytest.approx(5, abs=0.5)


def told(
    rate_limiter: RateLimiter,
    now: float,
    ticket: Ticket,
    requests: AnnouncedRate = NOTHING,
    tokens: AnnouncedRate = NOTHING,
) -> None:
    rate_limiter.told(now, ticket, Standings(requests, tokens))


def test_a_limit_that_is_not_set_is_the_one_that_the_upstream_tells() -> None:
    rate_limiter = RateLimiter()
    told(
        rate_limiter,
        0.0,
        rate_limiter.take(0.0, 10),
        AnnouncedRate(500, 499, 0.12),
        AnnouncedRate(30_000, 29_990, 0.02),
    )
    assert (rate_limiter.requests_per_minute, rate_limiter.tokens_per_minute) == (500, 30_000)
    assert len(driven(rate_limiter, 60)) <= 500


def test_the_lower_limit_counts() -> None:
    rate_limiter = RateLimiter(requests_per_minute=100)
    told(rate_limiter, 0.0, rate_limiter.take(0.0, 0), AnnouncedRate(500, 499))
    assert rate_limiter.requests_per_minute == 100
    told(rate_limiter, 0.0, rate_limiter.take(0.0, 0), AnnouncedRate(60, 50))
    assert rate_limiter.requests_per_minute == 60
    told(rate_limiter, 0.0, rate_limiter.take(0.0, 0), AnnouncedRate(0, None))
    assert rate_limiter.requests_per_minute == 60, "a limit of nothing is none"


# Others use the same account: what is left, what was sent since, and for how long nothing more goes.
LEFT = {
    "plenty": (AnnouncedRate(600, 599, 0.1), 0, 0.0),
    "one": (AnnouncedRate(600, 1, 59.9), 0, 0.0),
    "none: until there is one again": (AnnouncedRate(600, 0, 60), 0, 0.1),
    "none of a limit that is none": (AnnouncedRate(5e-324, 0, 1.0), 0, 0.1),
    "none, and it comes back slowly": (AnnouncedRate(600, 0, 1200), 0, 2.0),
    "none, and it is not said when": (AnnouncedRate(600, 0, None), 0, 0.1),
    "none, and no limit is told": (AnnouncedRate(None, 0, 1.0), 0, 0.1),
    "none, and at once again": (AnnouncedRate(600, 0, 0.0), 0, 0.1),
    "some, but more was sent since": (AnnouncedRate(600, 5, 59.5), 9, 0.5),
    "nothing is said of it": (AnnouncedRate(600, None, 60), 0, 0.0),
    "an end that never comes": (AnnouncedRate(600, 0, 1e12), 0, LONGEST_HOLD),
}  # fmt: skip


@pytest.mark.parametrize(("said", "since", "wait"), LEFT.values(), ids=LEFT)
def test_what_is_left_at_the_upstream(said: AnnouncedRate, since: int, wait: float) -> None:
    rate_limiter = RateLimiter(requests_per_minute=600)
    ticket = rate_limiter.take(0.0, 0)
    for _ in range(since):
        rate_limiter.take(0.0, 0)
    told(rate_limiter, 100.0, ticket, said)
    assert rate_limiter.wait(100.0) == pytest.approx(wait, abs=0.02)


def test_tokens_that_are_left_at_the_upstream() -> None:
    rate_limiter = RateLimiter(tokens_per_minute=60_000)
    told(rate_limiter, 100.0, rate_limiter.take(0.0, 2_000), tokens=AnnouncedRate(60_000, 500, 59.5))
    assert rate_limiter.wait(100.0) == pytest.approx(1.5, abs=0.02)


REFUSED = {
    "for how long": ([(0.0, 7.0)], 7.0),
    "not for how long": ([(0.0, None)], 0.5),
    "again and again": ([(0.0, None), (10.0, None), (20.0, None)], 2.0),
    "again and again, come at once": ([(0.0, 0.0), (10.0, 0.0), (20.0, 0.0)], 2.0),
    "those that were out together count as one": ([(0.0, None), (-1.0, None), (-1.0, None)], 0.5),
    "one of them says for how long": ([(0.0, None), (-1.0, 9.0)], 9.0),
    "for ever": ([(float(at), None) for at in range(0, 4000, 100)], LONGEST_PAUSE),
    "for an hour": ([(0.0, 3600.0)], LONGEST_HOLD),
}  # fmt: skip


@pytest.mark.parametrize(("refusals", "wait"), REFUSED.values(), ids=REFUSED)
def test_one_too_many(refusals: list[tuple[float, float | None]], wait: float) -> None:
    rate_limiter = RateLimiter()
    for sent_at, retry_after in refusals:
        now = max(sent_at, 0.0)
        rate_limiter.refused(now, sent_at, retry_after, pause=0.5)
    assert rate_limiter.wait(now) == wait


def test_a_good_answer_ends_the_growing_of_pauses_if_it_was_asked_for_behind_the_last_refusal() -> None:
    rate_limiter = RateLimiter()
    for now in (0.0, 100.0, 200.0):
        rate_limiter.refused(now, now, None, pause=1.0)
    rate_limiter.answered(sent_at=150.0)
    rate_limiter.refused(300.0, 300.0, None, pause=1.0)
    assert rate_limiter.wait(300.0) == 8.0
    rate_limiter.answered(sent_at=300.0)
    rate_limiter.refused(400.0, 400.0, None, pause=1.0)
    assert rate_limiter.wait(400.0) == 1.0


RESETS = {
    "1s": 1.0,
    "6m0s": 360.0,
    "120ms": 0.12,
    "1h2m3.5s": 3723.5,
    "2m59.56s": 179.56,
    "1d0h0m": 86_400.0,
    "500µs": 0.0005,
    "7": 7.0,
    "0.25": 0.25,
    "2026-11-21T12:01:30Z": 90.0,
    "2026-11-21T13:01:00+01:00": 60.0,
    "2026-11-21T12:00:05": 5.0,
    "2026-11-21T11:59:00Z": 0.0,
    "": None,
    "soon": None,
    "1s later": None,
    "-5": None,
    "nan": None,
    "1x": None,
}


@pytest.mark.parametrize(("text", "seconds"), RESETS.items())
def test_when_a_rate_is_whole_again(text: str, seconds: float | None) -> None:
    assert reset_seconds(text, NOW) == (None if seconds is None else pytest.approx(seconds))


HEADERS = {
    "openai": (
        {
            "x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms", "x-ratelimit-limit-tokens": "30000",
            "x-ratelimit-remaining-tokens": "29000", "x-ratelimit-reset-tokens": "2s",
        },
        Standings(AnnouncedRate(500, 499, 0.12), AnnouncedRate(30_000, 29_000, 2.0)),
    ),
    "groq-counts-requests-by-the-day": (
        {"x-ratelimit-limit-requests": "14400", "x-ratelimit-remaining-requests": "14370",
         "x-ratelimit-reset-requests": "2m59.56s"},
        Standings(AnnouncedRate(14_400, 14_370, 179.56), NOTHING),
    ),
    "anthropic": (
        {
            "anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": "2026-11-21T12:00:30Z",
            "anthropic-ratelimit-tokens-limit": "40000",
        },
        Standings(AnnouncedRate(50, 0, 30.0), AnnouncedRate(40_000, None, None)),
    ),
    "what-cannot-be-read": (
        {"x-ratelimit-limit-requests": "many", "x-ratelimit-remaining-tokens": "7"},
        Standings(NOTHING, AnnouncedRate(None, 7, None)),
    ),
    "others": ({"x-ratelimit-limit": "5", "content-type": "application/json"}, None),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "standings"), HEADERS.values(), ids=HEADERS)
def test_what_headers_say(headers: dict[str, str], standings: Standings | None) -> None:
    assert read_standings(headers.get, NOW) == standings
