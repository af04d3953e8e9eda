"""What an upstream remembers of its answers: whether it refuses the account, what its rates allow. Time is set."""

from __future__ import annotations

import pytest

from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.concurrency_limiter import START
from orchestrator.server.dispatch.rate_limiter import AnnouncedRate, RateLimiter, Standings
from orchestrator.server.dispatch.retry import End
from orchestrator.server.dispatch.upstreams import BREAK_AFTER, Upstream

GOOD = Reply(End.ANSWERED, 200, b'{"usage":{"prompt_tokens":600,"completion_tokens":400}}')


class Clock:
    """The seconds that a test says it is."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def upstream(clock: Clock, rate_limiter: RateLimiter | None = None, learned: int | None = None) -> Upstream:
    """One that is well and takes up to 1,000 rows at once."""
    found = Upstream(
        "http://upstream/v1", api_key=None, timeout=5.0, ceiling=1000, clock=clock, learned=learned,
        rate_limiter=rate_limiter, paid=True, account_seconds=60.0,
    )  # fmt: skip
    found.problem = None
    return found


ADDRESSES = {
    "http://upstream/v1": "http://upstream/v1/models?a=1",
    "http://upstream": "http://upstream/v1/models?a=1",
    "http://upstream/v1/": "http://upstream/v1/models?a=1",
    "http://upstream/v1?token=t": "http://upstream/v1/models?a=1&token=t",
    "http://upstream/v1/?token=t#top": "http://upstream/v1/models?a=1&token=t",
    "http://upstream/of/us/v1?x=/v1": "http://upstream/of/us/v1/models?a=1&x=/v1",
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_paths_stand_below_the_root_and_the_query_behind_them(url: str, clock: Clock) -> None:
    found = Upstream(url, api_key=None, timeout=5.0, ceiling=10, clock=clock)
    assert found.address("/v1/models?a=1") == ADDRESSES[url]
    assert found.address("/v1/models") == ADDRESSES[url].replace("a=1&", "").replace("?a=1", "")


STARTS = {
    "no rate is known": (None, None, START),
    "a rate": (600, None, 600),
    "a low rate": (3, None, START),
    "a rate above what may be out": (30_000, None, 1000),
    "what was right before": (600, 40, 40),
}


@pytest.mark.parametrize(("rate", "learned", "limit"), STARTS.values(), ids=STARTS)
def test_a_published_rate_is_not_searched_for(
    clock: Clock, rate: int | None, learned: int | None, limit: int
) -> None:
    assert upstream(clock, RateLimiter(rate), learned).room() == limit


def test_answers_that_wait_for_room_take_slots_of_their_own_tenant_alone(clock: Clock) -> None:
    one = Upstream("http://upstream/v1", api_key=None, timeout=5.0, ceiling=4, clock=clock, most_in_flight=9)
    for _ in range(4):
        one.begin(clock.now)
    one.unread.update(a=3, b=1)
    assert (one.inflight, one.at_work) == (4, 0), "its limit is learned from rows that it works on"
    assert [one.has_slot(beside, "a") for beside in (4, 5)] == [True, False]
    assert [one.has_slot(beside, "b") for beside in (6, 7)] == [True, False]
    assert [one.has_slot(beside, "c") for beside in (7, 8)] == [True, False]
    one.unread.update(d=7)
    assert [one.has_slot(beside, "c") for beside in (8, 9)] == [True, False], "more than files may be open for"
    for tenant in "aaabddddddd":
        one.reads(tenant)
    assert (one.has_slot(3), one.has_slot(4), dict(one.unread)) == (True, False, {})


def test_without_rates_nothing_waits(clock: Clock) -> None:
    free = upstream(clock)
    free.heard(None, GOOD, 0.0)
    assert free.wait() == 0.0


def test_what_a_row_took_is_settled_by_its_usage(clock: Clock) -> None:
    rate_limiter = RateLimiter(tokens_per_minute=60_000)
    paced = upstream(clock, rate_limiter)
    ticket = rate_limiter.take(0.0, 8_000)
    assert paced.wait() == pytest.approx(8, abs=0.5)
    paced.heard(ticket, GOOD, 0.0)
    assert paced.wait() == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("reply", [Reply(End.ANSWERED, 200, b"{}"), Reply(End.CUT)], ids=["no usage", "no answer"])
def test_what_a_row_took_stays_an_estimate_where_nothing_is_said(clock: Clock, reply: Reply) -> None:
    rate_limiter = RateLimiter(tokens_per_minute=60_000)
    paced = upstream(clock, rate_limiter)
    paced.heard(rate_limiter.take(0.0, 8_000), reply, 0.0)
    assert paced.wait() == pytest.approx(8, abs=0.5)


def test_a_row_that_was_refused_took_no_tokens(clock: Clock) -> None:
    rate_limiter = RateLimiter(tokens_per_minute=60_000)
    paced = upstream(clock, rate_limiter)
    paced.heard(rate_limiter.take(0.0, 8_000), Reply(End.ANSWERED, 400, GOOD.body), 0.0)
    assert paced.wait() == 0.0


def test_the_headers_of_any_answer_count(clock: Clock) -> None:
    rate_limiter = RateLimiter()
    paced = upstream(clock, rate_limiter)
    said = Standings(AnnouncedRate(60, 0, 60.0), AnnouncedRate())
    paced.heard(rate_limiter.take(0.0, 0), Reply(End.ANSWERED, 400, b"{}", standings=said), 0.0)
    assert paced.wait() == pytest.approx(1, abs=0.1)


def test_too_many_requests_are_a_matter_of_the_rate(clock: Clock) -> None:
    paced = upstream(clock, RateLimiter())
    paced.overloaded(0.0, 0.0, Reply(End.ANSWERED, 429, retry_after=20.0), pause=0.5)
    assert (paced.wait(), paced.room()) == (20.0, START)
    paced.heard(paced.rate_limiter.take(0.0, 0) if paced.rate_limiter else None, GOOD, 1.0)
    clock.now = 30.0
    paced.overloaded(30.0, 30.0, Reply(End.ANSWERED, 429), pause=0.5)
    assert paced.wait() == 0.5, "a good answer in between ends the growing of pauses"


@pytest.mark.parametrize(("status", "paced"), [(503, True), (429, False)], ids=["503", "429-without-rates"])
def test_an_overload_is_a_matter_of_how_many_run_at_once(clock: Clock, status: int, paced: bool) -> None:
    found = upstream(clock, RateLimiter() if paced else None)
    found.overloaded(0.0, 0.0, Reply(End.ANSWERED, status), pause=0.5)
    assert found.wait() == 0.0
    assert found.room() < START


def test_who_refuses_the_account_is_left_alone_and_then_asked_with_one_row(clock: Clock) -> None:
    found = upstream(clock)
    found.leave_alone("no credit", sent_at=0.0)
    assert (found.problem, found.on_trial) == ("no credit", True)
    clock.now = 61.0
    found.problem = None  # its probe went well
    assert found.room() == 1
    assert found.well(sent_at=61.0), "whoever waits may go on"
    assert found.room() == START


def test_a_row_that_it_took_before_it_refused_the_account_proves_nothing(clock: Clock) -> None:
    found = upstream(clock)
    found.leave_alone("no credit", sent_at=10.0)
    assert not found.well(sent_at=9.0)
    assert (found.problem, found.on_trial) == ("no credit", True)
    assert not found.account.took_since(10.0)


def test_a_row_that_it_took_behind_the_refused_one_proves_that_it_takes_the_account(clock: Clock) -> None:
    found = upstream(clock)
    found.leave_alone("forbidden", sent_at=10.0)
    assert found.well(sent_at=10.5)
    assert (found.problem, found.room()) == (None, START)
    assert found.account.took_since(10.0)


def test_many_in_a_row_without_an_answer_leave_one_on_trial(clock: Clock) -> None:
    found = upstream(clock)
    for _ in range(BREAK_AFTER):
        assert found.problem is None
        found.faulty("timed out")
    assert found.problem is not None
    found.problem = None
    assert found.room() == 1
