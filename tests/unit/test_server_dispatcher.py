"""The fan-out by itself: rows of a source that a test makes, and an upstream that answers at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.core.batch_api import LineError
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.dispatcher import Dispatcher
from orchestrator.server.dispatch.in_flight import RowSource, Work
from orchestrator.server.dispatch.rate_limiter import RateLimiter
from orchestrator.server.dispatch.retry import End, RetryVerdict
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.memory_limits import SMALL

TOKENS = 3_000_000


class Rows(RowSource):
    """A batch of so many rows, each of which may take TOKENS; `end` is told of a row's end."""

    tenant, deadline, endpoint, model, is_stopping = "", 0.0, "/v1/x", None, False

    def __init__(self, rows: int, end: Callable[[], None]) -> None:
        self.rows = iter(range(rows))
        self.end = end

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        index = next(self.rows, None)
        return None if index is None else Work(self, index, 10)

    def tokens(self, work: Work) -> int:
        return TOKENS

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        return b"{}"

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: RetryVerdict, latency: float) -> bool:
        self.end()
        return True


class Answering(Upstream):
    """An upstream that is well; each of its answers took 500 tokens."""

    problem = None

    async def send(self, endpoint: str, body: bytes) -> Reply:
        await asyncio.sleep(0)
        return Reply(End.ANSWERED, 200, b'{"usage":{"prompt_tokens":500}}')


def dispatcher(rows: int, end: Callable[[], None], rate_limiter: RateLimiter | None = None) -> Dispatcher:
    """One that has these rows to send, and nothing else that would make it look for rows."""
    clock = time.monotonic
    upstream = Answering("http://x/v1", api_key=None, timeout=5.0, ceiling=4, clock=clock, rate_limiter=rate_limiter)
    upstream.problem = None
    found = Dispatcher([upstream], retry_delay=0.1, paused=lambda: False, enabled=True)
    found.sources.add(Rows(rows, end))
    return found


def test_tokens_that_come_back_let_the_next_row_go_earlier_than_was_thought() -> None:
    """After each row the next one would have had to wait for most of an hour; it has to for half a second."""

    async def live() -> int:
        ended = asyncio.Semaphore(0)
        made = dispatcher(4, ended.release, RateLimiter(tokens_per_minute=60_000))
        made.top_up()
        for _ in range(4):
            await ended.acquire()
        await made.close()
        return made.upstreams[0].workers

    assert asyncio.run(asyncio.wait_for(live(), 20)) == 0


def test_only_as_many_rows_go_at_once_as_the_rate_allows() -> None:
    async def live() -> list[int]:
        ends: list[int] = []
        made = dispatcher(100, lambda: ends.append(1), RateLimiter(requests_per_minute=1))
        for _ in range(10):
            made.top_up()
            await asyncio.sleep(0)
        await made.close()
        return ends

    assert len(asyncio.run(asyncio.wait_for(live(), 20))) == 1


@pytest.mark.parametrize("step", ["request_body", "leaves", "settle"])
def test_what_the_program_fails_at_is_the_end_of_one_row(step: str, caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(Rows):
        """Its second row is one that nobody foresaw, at one step of the way."""

        def refuse(self, work: Work, fault: LineError) -> None:
            refused.append((work.index, fault.code))
            self.end()

    def broken(self: Rows, work: Work, *given: Any) -> Any:
        if work.index == 1:
            raise LookupError("oh")
        return getattr(Rows, step)(self, work, *given)

    setattr(Breaking, step, broken)
    refused: list[tuple[int, str]] = []

    async def live() -> list[str | None]:
        ended = asyncio.Semaphore(0)
        made = dispatcher(0, ended.release)
        made.sources.add(Breaking(4, ended.release))
        made.top_up()
        for _ in range(4):
            await ended.acquire()
        await made.close()
        return [made.problem, *(upstream.problem for upstream in made.upstreams)]

    assert asyncio.run(asyncio.wait_for(live(), 20)) == [None, None]
    assert refused == [(1, "internal_error")]
    assert "Traceback" in caplog.text


def test_a_batch_that_fails_at_giving_rows_keeps_no_other_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    held: list[str] = []

    class Broken(Rows):
        def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
            raise LookupError("oh")

        def hold(self, reason: str) -> None:
            held.append(reason)

    async def live() -> str | None:
        ended = asyncio.Semaphore(0)
        made = dispatcher(3, ended.release)
        made.sources.add(Broken(1, ended.release))
        made.top_up()
        for _ in range(3):
            await ended.acquire()
        await made.close()
        return made.problem

    assert asyncio.run(asyncio.wait_for(live(), 20)) is None
    assert held
    assert "Traceback" in caplog.text


class LongRows(Rows):
    """Rows that are read ahead, for as long as `read` is not set."""

    def __init__(self, rows: int, end: Callable[[], None]) -> None:
        super().__init__(rows, end)
        self.reads, self.read = asyncio.Event(), asyncio.Event()
        self.returned: list[int] = []
        self.asked: list[int] = []

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        index = next(self.rows, None)
        return None if index is None else Work(self, index, SMALL + 1)

    async def read_ahead(self, work: Work) -> None:
        self.reads.set()
        await self.read.wait()

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        self.asked.append(work.index)
        return b"{}"

    def give_back(self, work: Work) -> None:
        self.returned.append(work.index)


@pytest.mark.parametrize(
    ("what", "asked", "returned"), [("read", [0], []), ("stopped", [], []), ("upstream leaves", [], [0])]
)
def test_a_long_row_is_sent_once_it_is_read_and_still_wanted(
    what: str, asked: list[int], returned: list[int]
) -> None:
    async def live() -> LongRows:
        ended = asyncio.Event()
        made = dispatcher(0, ended.set)
        rows = LongRows(1, ended.set)
        made.sources.add(rows)
        made.top_up()
        await rows.reads.wait()
        assert rows.asked == []
        if what == "upstream leaves":
            await made.leave(made.upstreams[0], 0.0)
        else:
            rows.is_stopping = what == "stopped"
            rows.read.set()
            while made.in_flight:
                await asyncio.sleep(0)
        assert (made.in_flight, ended.is_set()) == (0, what == "read")
        await made.close()
        return rows

    rows = asyncio.run(asyncio.wait_for(live(), 20))
    assert (rows.asked, rows.returned) == (asked, returned)
