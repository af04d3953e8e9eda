"""Rows to upstreams and back: workers pull, each row ends with one result line or goes back to be tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from orchestrator.server.retry import Action, Verdict, judge
from orchestrator.server.upstreams import Reply, Upstream


@dataclass(slots=True)
class Work:
    """One row on its way. `tries` counts attempts that may have been its own fault; `attempts` counts all."""

    source: Source
    index: int
    tries: int = 0
    attempts: int = 0
    suspect: bool = False
    upstream_seconds: float = 0.0


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
        self._suspects_out = 0
        self._suspects: list[Work] = []

    def top_up(self) -> None:
        """Start workers where an upstream is below its limit and rows wait. Cheap; call it on any change."""
        if not self._enabled or self._paused():
            return
        for upstream in self.upstreams:
            while upstream.problem is None and upstream.workers < upstream.flow.limit:
                work = self._take()
                if work is None:
                    return
                upstream.workers += 1
                task = asyncio.create_task(self._worker(upstream, work))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End every worker; rows in flight stay without a result and run again at the next start."""
        self._enabled = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self) -> Work | None:
        if self._suspects and not self._suspects_out:
            work = self._suspects.pop(0)
            if not work.source.is_stopping:
                self._suspects_out += 1
                return work
        return next((found for source in self.sources if (found := source.take()) is not None), None)

    async def _worker(self, upstream: Upstream, first: Work) -> None:
        try:
            work: Work | None = first
            while work is not None:
                await self._attempt(upstream, work)
                if upstream.problem or upstream.workers > upstream.flow.limit or not self._enabled or self._paused():
                    return
                work = self._take()
        finally:
            upstream.workers -= 1

    async def _attempt(self, upstream: Upstream, work: Work) -> None:
        source = work.source
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
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
            if work.suspect:
                self._suspects_out -= 1
        work.attempts += 1
        work.tries += 1
        self._act(upstream, work, reply, sent_at, loop.time())

    def _act(self, upstream: Upstream, work: Work, reply: Reply, sent_at: float, now: float) -> None:
        verdict = judge(
            reply.end,
            status=reply.status,
            detail=reply.detail,
            retry_after=reply.retry_after,
            tries=work.tries,
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
                work.tries -= 1
                upstream.down(verdict.reason)
                self._again(work)
            case Action.RETRY:
                # A row that was in a cut connection twice may be what kills the engine: it goes out alone from now
                # on, so that it takes no other row down with it.
                work.suspect = reply.end == "cut" and work.tries >= 2
                asyncio.get_running_loop().call_later(verdict.delay, self._again, work)
            case _:
                assert_never(verdict.action)

    def _again(self, work: Work) -> None:
        if work.source.is_stopping:
            return
        if work.suspect:
            self._suspects.append(work)
        else:
            work.source.give_back(work)
        self.top_up()
