"""Rows to upstreams and back: workers pull, each row ends with one result line or goes back to be tried again."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from orchestrator.server.dispatch.retry import MAX_TRIES, Action, Fault, Verdict, fault_of, judge
from orchestrator.server.dispatch.upstreams import Reply, Upstream

# A row that was in a cut connection so often may be what kills the engine. From then on no other such row is out
# with it; and its last try it has alone, so that no row is given up for what another one did.
SUSPECT_CUTS = 2
ALONE_CUTS = MAX_TRIES[Fault.CUT] - 1


@dataclass(slots=True)
class Work:
    """One row on its way. `tries` counts attempts that failed, by their fault; `attempts` counts all."""

    source: Source
    index: int
    tries: Counter[Fault] = field(default_factory=Counter)
    attempts: int = 0
    upstream_seconds: float = 0.0

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what kills the engine."""
        return self.tries[Fault.CUT] >= SUSPECT_CUTS


class Source(Protocol):
    """Where rows come from, and where their ends go: a running batch."""

    endpoint: str

    def take(self) -> Work | None:
        """The next row to run, or None while there is none."""

    def give_back(self, work: Work) -> None:
        """A row to be taken again."""

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        """A task sends one of its rows; cancelling the task takes the row back."""

    def leave(self, task: asyncio.Task[None]) -> None:
        """The task has its answer, or was cancelled."""

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        """The body to send."""

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: Verdict, latency: float) -> None:
        """A row's end: its answer, or the reason why there will be none."""

    @property
    def is_stopping(self) -> bool:
        """Whether its rows are no longer wanted."""


class FanOut:
    """Drives every upstream at its limit with rows of the sources, in the order the sources stand in."""

    def __init__(
        self, upstreams: Sequence[Upstream], *, retry_delay: float, paused: Callable[[], bool], enabled: bool
    ) -> None:
        self.upstreams = upstreams
        self.sources: list[Source] = []
        self._retry_delay = retry_delay
        self._paused = paused
        self._enabled = enabled
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspects: deque[Work] = deque()
        self._suspects_out = 0
        self._last_tries: deque[Work] = deque()
        self._alone: Work | None = None
        self._emptied: Upstream | None = None

    def top_up(self) -> None:
        """Start workers where an upstream is below its limit and rows wait. Cheap; call it on any change."""
        if not self._enabled or self._paused():
            return
        self._isolate()
        for upstream in self.upstreams:
            while self._takes_rows(upstream) and upstream.workers < upstream.flow.limit:
                work = self._take()
                if work is None:
                    return
                self._start(upstream, work)

    def _takes_rows(self, upstream: Upstream) -> bool:
        return upstream.problem is None and upstream is not self._emptied

    def _start(self, upstream: Upstream, work: Work) -> None:
        upstream.workers += 1
        task = asyncio.create_task(self._worker(upstream, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _isolate(self) -> None:
        """Empty an upstream for the next row that has its last try, and send the row there alone."""
        if self._alone is not None:
            return
        while self._last_tries and self._last_tries[0].source.is_stopping:
            self._last_tries.popleft()
        if not self._last_tries:
            self._emptied = None
            return
        if self._emptied is None or self._emptied.problem is not None:
            self._emptied = next((upstream for upstream in self.upstreams if upstream.problem is None), None)
        if self._emptied is not None and self._emptied.workers == 0:
            self._alone = self._last_tries.popleft()
            self._start(self._emptied, self._alone)

    async def close(self) -> None:
        """End every worker; rows in flight stay without a result and run again at the next start."""
        self._enabled = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self) -> Work | None:
        if self._suspects and not self._suspects_out:
            work = self._suspects.popleft()
            if not work.source.is_stopping:
                self._suspects_out += 1
                return work
        return next((found for source in self.sources if (found := source.take()) is not None), None)

    async def _worker(self, upstream: Upstream, first: Work) -> None:
        alone = first is self._alone
        try:
            work: Work | None = first
            while work is not None:
                await self._attempt(upstream, work)
                if not self._takes_rows(upstream) or upstream.workers > upstream.flow.limit:
                    return
                if not self._enabled or self._paused():
                    return
                work = self._take()
        finally:
            upstream.workers -= 1
            if alone:
                self._alone = None
            if upstream is self._emptied:
                self.top_up()

    async def _attempt(self, upstream: Upstream, work: Work) -> None:
        source = work.source
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        counted = work.is_suspect and work is not self._alone
        sent_at, began = loop.time(), upstream.begin()
        source.enter(task, work, upstream, began)
        try:
            reply = await upstream.send(source.endpoint, source.request_body(work, upstream))
        except asyncio.CancelledError:
            # A batch that is stopping takes back its rows; the worker lives on. Anything else ends the worker.
            if not source.is_stopping or not self._enabled:
                raise
            task.uncancel()
            return
        finally:
            work.upstream_seconds += upstream.end(began)
            source.leave(task)
            self._suspects_out -= counted
        work.attempts += 1
        self._act(upstream, work, reply, sent_at, loop.time())

    def _act(self, upstream: Upstream, work: Work, reply: Reply, sent_at: float, now: float) -> None:
        fault = fault_of(reply.end, reply.status)
        if fault is not None:
            work.tries[fault] += 1
        verdict = judge(
            reply.end,
            status=reply.status,
            detail=reply.detail,
            retry_after=reply.retry_after,
            tries=work.tries[fault] if fault is not None else 0,
            base=self._retry_delay,
        )
        if verdict.overload:
            upstream.flow.overloaded(now, sent_at)
        match verdict.action:
            case Action.KEEP | Action.GIVE_UP:
                upstream.flow.completed()
                if verdict.action is Action.KEEP:
                    upstream.well()
                work.source.settle(work, upstream, reply, verdict, now - sent_at)
            case Action.WAIT:
                upstream.down(verdict.reason)
                self._again(work)
            case Action.RETRY:
                asyncio.get_running_loop().call_later(verdict.delay, self._again, work)
            case _:
                assert_never(verdict.action)

    def _again(self, work: Work) -> None:
        if work.source.is_stopping:
            return
        if work.tries[Fault.CUT] >= ALONE_CUTS:
            self._last_tries.append(work)
        elif work.is_suspect:
            self._suspects.append(work)
        else:
            work.source.give_back(work)
        self.top_up()
