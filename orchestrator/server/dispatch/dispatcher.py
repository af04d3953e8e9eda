"""Sends rows to upstreams: workers pull rows, and each row ends with one result line or is retried."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import assert_never

from orchestrator.core.clock import now as clock_now
from orchestrator.core.errors import StorageError
from orchestrator.server.dispatch.body_changes import BodyError
from orchestrator.server.dispatch.body_memory import UNCOUNTED_ROW, BodyMemory, RowPayload
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.fair_queue import Fair, KeepsTurnError
from orchestrator.server.dispatch.in_flight import NO_TRIES, UNREADABLE_SECONDS, RowSource, Work
from orchestrator.server.dispatch.outcomes import INTERNAL
from orchestrator.server.dispatch.rate_alarms import RateAlarms
from orchestrator.server.dispatch.refused_rows import FailedAttempt, RefusedRows
from orchestrator.server.dispatch.retry import (
    ANSWER,
    KEEP,
    MAX_TRIES,
    SHARED_FAULTS,
    Action,
    AttemptFault,
    End,
    RetryVerdict,
    UpstreamRefusal,
    key_refusal,
    leaves_doubt,
)
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.dispatch.verdicts import Verdicts
from orchestrator.server.memory_limits import SMALL, Room, Rooms

log = logging.getLogger(__name__)

# A row that may crash the engine has its last try alone, so that no row is given up for another row's fault.
ALONE_CUTS = MAX_TRIES[AttemptFault.CUT] - 1
AFTER_DEATH_SECONDS = 0.5
"""Pause after an engine's death, in seconds.

A dying engine accepts connections until the very end. The pause keeps it from getting a row's last try.
"""
ANSWERED = RetryVerdict(KEEP)
_size = attrgetter("size")


class Dispatcher:
    """Fills every upstream up to its limit with rows of the running batches, in turn."""

    def __init__(
        self, upstreams: list[Upstream], *, retry_delay: float, paused: Callable[[], bool], enabled: bool,
        expected_models: Collection[str] = (), rooms: Rooms | None = None,
    ) -> None:  # fmt: skip
        """`upstreams` may change later through `join` and `leave`. Rows for `expected_models` wait for an upstream.

        `rooms` is the memory for the bodies of rows and answers.
        """
        self._memory = BodyMemory(Rooms(has_tenants=False) if rooms is None else rooms, self.top_up)
        self.upstreams = upstreams
        self._expected = frozenset(expected_models)
        self.sources: Fair[RowSource] = Fair()
        self._retry_delay = retry_delay
        self._paused = paused
        self._enabled = enabled
        self._tasks: dict[asyncio.Task[None], Upstream] = {}
        self._suspects: deque[Work] = deque()
        self._suspects_out = 0
        self._last_tries: deque[Work] = deque()
        self._alone: Work | None = None
        self._next_alone_at = float("-inf")
        self._emptied: Upstream | None = None
        self._alarms = RateAlarms(self.top_up)
        self.refused = RefusedRows()
        self._verdicts = Verdicts(retry_delay, self.refused)
        self.problem: str | None = None
        """Internal error that keeps rows from progressing, or None."""

    def probed(self, upstream: Upstream) -> None:
        """Give rows to an upstream after a successful probe. If no row is left to try, end its outage."""
        if upstream.outage.is_open and not self.sources:
            upstream.recover()
        self.top_up()

    def top_up(self, at: Upstream | None = None) -> None:
        """Start workers for waiting rows on upstreams below their limit. Call this after any change.

        If only `at` has changed, only this upstream is considered.
        """
        if not self._enabled or self._paused():
            return
        self.sources.wake()
        self._isolate()
        # Round-robin, so that upstreams with room share the rows.
        able = list(self.upstreams) if at is None else [at]
        while able:
            able = [upstream for upstream in able if self._start_one(upstream)]

    def _start_one(self, upstream: Upstream) -> bool:
        if (
            not upstream.takes_rows
            or upstream is self._emptied
            or not upstream.has_slot(upstream.workers)
            or not self._alarms.may_ask(upstream)
        ):
            return False
        work = self._take(upstream, upstream.workers)
        if work is None:
            return False
        self._start(upstream, work)
        return True

    def review(self, rows_per_second: float) -> None:
        """Review the deadlines of batches. Call this about once a second."""
        self.refused.prune()
        self.sources.review(clock_now().timestamp(), rows_per_second)

    def _start(self, upstream: Upstream, work: Work) -> None:
        self._count(upstream, work)
        upstream.workers += 1
        task = asyncio.create_task(self._worker(upstream, work))
        self._tasks[task] = upstream
        task.add_done_callback(self._ended)

    def _count(self, upstream: Upstream, work: Work) -> None:
        if upstream.rate_limiter is not None:
            tokens = 0 if upstream.rate_limiter.tokens_per_minute is None else work.source.tokens(work)
            work.ticket = upstream.rate_limiter.take(upstream.clock(), tokens)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a row stands still", exc_info=error)
            self.problem = "a row is stuck until the next start: an internal error; see the log"

    def _isolate(self) -> None:
        """Empty one upstream for the first row that is on its last try, then send this row alone."""
        if self._alone is not None or time.monotonic() < self._next_alone_at:
            return
        if self._last_tries:
            self._last_tries = deque(work for work in self._last_tries if not work.source.is_stopping)
        able = [upstream for upstream in self.upstreams if self._last_try(upstream)] if self._last_tries else []
        if self._emptied not in able:
            self._emptied = able[0] if able else None
        if self._emptied is not None and self._emptied.workers == 0:
            self._alone = self._last_try(self._emptied)
            assert self._alone is not None
            self._last_tries.remove(self._alone)
            self._start(self._emptied, self._alone)

    def _last_try(self, upstream: Upstream) -> Work | None:
        if not upstream.takes_rows:
            return None
        return next((work for work in self._last_tries if self._suits(work.source, upstream)), None)

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def join(self, upstream: Upstream) -> None:
        """Add an upstream. It gets rows as soon as it is healthy."""
        self.upstreams.append(upstream)

    async def leave(self, upstream: Upstream, seconds: float) -> None:
        """Stop giving rows to an upstream. Rows in flight may take `seconds` more; then they go to other
        upstreams.
        """
        upstream.leave()
        if tasks := [task for task, at in self._tasks.items() if at is upstream]:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self.upstreams.remove(upstream)
        self._alarms.drop(upstream)
        self.top_up()

    async def drain(self, seconds: float) -> None:
        """Stop sending, and wait up to `seconds` for rows in flight."""
        self._enabled = False
        if self._tasks and seconds > 0:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        """End every worker. Rows in flight get no result and are sent again after the next start."""
        self._enabled = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, upstream: Upstream, beside: int) -> Work | None:
        if self._suspects and not self._suspects_out:
            suspects = (
                each for each in self._suspects if each.source.is_stopping or self._suits(each.source, upstream)
            )
            work = next(suspects, None)
            if work is not None:
                self._suspects.remove(work)
                if not work.source.is_stopping:
                    self._suspects_out += 1
                    return work
        # A row that failed here may be at fault: an upstream on trial gets another row.
        elsewhere = upstream.on_trial or (
            len(self.upstreams) > 1
            and any(other.problem is None for other in self.upstreams if other is not upstream)
        )
        full: list[Room] = []

        def take(source: RowSource) -> Work | None:
            if upstream.unread and not upstream.has_slot(beside, source.tenant):
                raise KeepsTurnError(of_tenant=True)
            try:
                work = source.take(upstream, elsewhere) if self._suits(source, upstream) else None
            except Exception:
                # A fault in one batch must not stop the others.
                log.exception("a batch could not give its next row")
                source.hold("an internal error; see the log")
                return None
            if work is None or work.size <= UNCOUNTED_ROW or self._memory.admit(work, full):
                return work
            source.put_back(work)
            raise KeepsTurnError

        return self.sources.take(upstream, take, _size)

    def _suits(self, source: RowSource, upstream: Upstream) -> bool:
        """True if an upstream may have the source's model.

        If no upstream will have a row's model, the row goes to any upstream, which refuses it.
        """
        model = source.model
        if upstream.served.may_be(model):
            return True
        return model not in self._expected and not any(other.served.may_be(model) for other in self.upstreams)

    async def _worker(self, upstream: Upstream, first: Work) -> None:
        alone = first is self._alone
        task = asyncio.current_task()
        assert task is not None
        try:
            work: Work | None = first
            while work is not None:
                source, has_failed = work.source, work.tries is not NO_TRIES
                is_counted = has_failed and work.is_suspect and work is not self._alone
                try:
                    is_read = work.size <= SMALL or await self._read_ahead(task, upstream, work)
                    body = self._prepared(upstream, work) if is_read else None
                    if body is not None:
                        sent_at, reply = upstream.clock(), None
                        began = upstream.begin(sent_at)
                        source.enter(task, work, upstream, began)
                        try:
                            reply = await upstream.send(source.endpoint, body)
                        except asyncio.CancelledError:
                            if not self._is_taken_back(task, upstream, work):
                                raise
                        finally:
                            now = upstream.clock()
                            work.upstream_seconds += upstream.time_share.step(now, -1) - began
                            source.leave(task)
                            if is_counted:
                                self._suspects_out, is_counted = self._suspects_out - 1, False
                        self._handle_reply(upstream, work, reply, sent_at, now)
                finally:
                    self._suspects_out -= is_counted
                    if work.held is not None:
                        self._memory.release(work)
                others, has_rates = upstream.workers - 1, upstream.rate_limiter is not None
                if upstream.problem is not None and not upstream.takes_rows:
                    return
                if upstream is self._emptied or not upstream.has_slot(others):
                    return
                if not self._enabled or self._paused() or (has_rates and not self._alarms.may_ask(upstream)):
                    return
                work = self._take(upstream, others)
                if work is not None and has_rates:
                    self._count(upstream, work)
        finally:
            upstream.workers -= 1
            if alone:
                self._alone = None
            if upstream is self._emptied:
                self.top_up()

    def _handle_reply(self, upstream: Upstream, work: Work, reply: Reply | None, sent_at: float, now: float) -> None:
        """End or retry a row according to its reply. A reply of None means that the row is no longer wanted or moves
        to another upstream.
        """
        if reply is None:
            self._again(work)
            return
        work.attempts += 1
        if work.held is not None:
            self._memory.release(work)
        try:
            if work.ticket is not None:
                upstream.heard(work.ticket, reply, sent_at)
            if reply.end is ANSWER and reply.status < 300:
                self._end(upstream, work, reply, ANSWERED, sent_at, now)
            else:
                self._act(upstream, work, reply, sent_at, now)
        except Exception:
            # An internal error ends only this row, without holding up the others.
            log.exception("a row failed with an internal error")
            self.refused.forget(work)
            work.source.refuse(work, INTERNAL)
        finally:
            if reply.place is not None:
                reply.drop()

    async def _read_ahead(self, task: asyncio.Task[None], upstream: Upstream, work: Work) -> bool:
        """Read a long row before it is sent. Return False if the row is no longer wanted or moves to another
        upstream.
        """
        try:
            if not work.source.is_stopping:
                await work.source.read_ahead(work)
        except asyncio.CancelledError:
            if not self._is_taken_back(task, upstream, work):
                raise
            self._again(work)
            return False
        return True

    def _is_taken_back(self, task: asyncio.Task[None], upstream: Upstream, work: Work) -> bool:
        """Return True, and undo the cancellation, if a cancelled task must continue. Its batch took the row back, or
        its upstream is leaving.
        """
        if not (work.source.is_stopping or upstream.is_leaving) or not self._enabled:
            return False
        task.uncancel()
        return True

    def _prepared(self, upstream: Upstream, work: Work) -> RowPayload | None:
        """Return the body to send. None if the row has ended unsent, or is retried later."""
        source = work.source
        if source.is_stopping:
            return None  # the batch stopped after the row was taken; the row may already have ended
        try:
            body = source.request_body(work, upstream)
            source.leaves(work)
        except BodyError as error:
            source.refuse(work, error.fault)
        except StorageError:
            asyncio.get_running_loop().call_later(UNREADABLE_SECONDS, self._again, work)
        except Exception:
            log.exception("a row could not be sent because of an internal error")
            source.refuse(work, INTERNAL)
        else:
            return RowPayload(body, self._memory, work, upstream)
        return None

    def _end(
        self, upstream: Upstream, work: Work, reply: Reply, verdict: RetryVerdict, sent_at: float, now: float
    ) -> None:
        if work.tries is not NO_TRIES:
            self.refused.forget(work)
        has_room = upstream.answered(now, now - sent_at)
        if verdict.action is KEEP and upstream.well(sent_at, is_success=verdict is ANSWERED):
            self.top_up()
        elif has_room:
            self.top_up(upstream)
        if not work.source.settle(work, upstream, reply, verdict, now - sent_at):
            work.source.unpack(work)
            self.top_up()

    def _act(self, upstream: Upstream, work: Work, reply: Reply, sent_at: float, now: float) -> None:
        if not leaves_doubt(reply.end, reply.status):
            work.source.came_back(work)
        fault, tries, verdict = self._verdicts.judge(upstream, work, reply, sent_at, now)
        if verdict.overload:
            upstream.overloaded(now, sent_at, reply, self._retry_delay)
        elif reply.end is End.TIMED_OUT:
            upstream.limiter.timed_out(now, sent_at)
        if upstream.refuses_priority(reply):
            self._again(work)
            return
        if fault is not None and fault is not AttemptFault.OVERLOAD:
            work.failed_on = upstream
            # With a single upstream, a row's own pauses are enough: bad rows would otherwise hold up good rows.
            # Time-outs are different: a row that times out is rarely a bad row, and blocks a worker for a request's
            # whole time.
            if fault not in SHARED_FAULTS and (len(self.upstreams) > 1 or fault is AttemptFault.TIMED_OUT):
                upstream.faulty(verdict.reason)
            if fault is AttemptFault.CUT and work is self._alone:
                self._next_alone_at = now + AFTER_DEATH_SECONDS
        match verdict.action:
            case Action.KEEP | Action.GIVE_UP:
                self._end(upstream, work, reply, verdict, sent_at, now)
            case Action.WAIT:
                self.refused.forget(work)
                if not upstream.outage.is_open or fault is None:
                    upstream.down(verdict.reason, key_refusal(reply.status))
                self._again(work)
            case Action.LEAVE:
                self.refused.forget(work)
                work.failed_on = upstream
                refusal = UpstreamRefusal.KEY if reply.status == 401 else UpstreamRefusal.ACCOUNT
                upstream.leave_alone(verdict.reason, sent_at, refusal)
                self._again(work)
            case Action.RETRY:
                assert fault is not None
                upstream.stats.retried += 1
                most = None if upstream.paid and fault is AttemptFault.OVERLOAD else MAX_TRIES[fault]
                due = now + verdict.delay
                attempt = FailedAttempt(upstream, fault, reply.status, verdict.reason, tries, most, due)
                self.refused.note(work, attempt)
                asyncio.get_running_loop().call_later(verdict.delay, self._again, work)
            case _:
                assert_never(verdict.action)

    def _again(self, work: Work) -> None:
        if work.source.is_stopping:
            self.refused.forget(work)
            return
        if work.packed and work.is_suspect:
            self.refused.forget(work)
            work.source.unpack(work)
        elif work.tries is not NO_TRIES and work.tries[AttemptFault.CUT] >= ALONE_CUTS:
            self._last_tries.append(work)
        elif work.is_suspect:
            self._suspects.append(work)
        else:
            work.source.give_back(work)
        self.top_up()
