"""The rows of a point: decides when to send each row, and records when and how the row ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from orchestrator.core.answers import NO_TOKENS, TokenCounts, answer_tokens
from orchestrator.core.batch_api import JSON_ERRORS, LineError
from orchestrator.core.errors import StorageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.dispatch import body_changes
from orchestrator.server.dispatch.active_batch import BATCH_PRIORITY
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.in_flight import RowSource, Work
from orchestrator.server.dispatch.inputs import Input, Unreadable
from orchestrator.server.dispatch.pages import said
from orchestrator.server.dispatch.plan import InputRows
from orchestrator.server.dispatch.retry import Action, RetryVerdict
from orchestrator.server.dispatch.upstream_queue import UpstreamQueues
from orchestrator.server.dispatch.upstreams import Upstream

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_decode = json_decoder(dict[str, msgspec.Raw]).decode


class Mode(StrEnum):
    """Rule for when the next row takes a free slot."""

    CONTINUOUS = "continuous"  # immediately
    DYNAMIC = "dynamic"  # at the end of a short window, together with all other free slots
    STATIC = "static"  # when all rows of the batch have ended


class RowEnd(NamedTuple):
    """How a row ended: the time by the upstream's clock, seconds in flight, tokens, and success."""

    at: float
    seconds: float
    tokens: TokenCounts
    is_answer: bool


class PointWork(Work, eq=False):
    """A row of a point. A sample that is too short is repeated, each time in a new `cycle`."""

    cycle: int = 0


class PointRows(RowSource):
    """Rows of a batch file, repeated endlessly for the dispatcher. `gate` returns how many more may be sent.

    A `salt` keeps vLLM's cache from recognising prompts of earlier points and cycles. With `one_token`, answers have
    one token, so that the engine mostly reads prompts.
    """

    batch_id = tenant = "bench"
    deadline = float("inf")

    def __init__(
        self, path: Path, plan: InputRows, endpoint: str, upstreams: tuple[str, ...], *, salt: str, one_token: bool
    ) -> None:
        self.endpoint = endpoint
        self.gate: Callable[[], int] = lambda: 1
        self.on_end: Callable[[], None] = lambda: None
        self.ended: list[RowEnd] = []
        self.failed = 0
        self.taken = 0
        self.problem: str | None = None
        """Error message of the last failed row."""
        self._plan = plan
        self._upstreams = upstreams
        self._salt = salt
        self._one_token = one_token and endpoint in body_changes.CONSTRAINED
        self._cycle = 0
        self._queues = UpstreamQueues(plan, upstreams)
        self._again: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._input = Input(path, plan)

    def close(self) -> None:
        self._input.close()

    @property
    def out(self) -> int:
        """Number of rows in flight."""
        return self.taken - len(self.ended)

    @property
    def model(self) -> str | None:
        return self._plan.model

    @property
    def rows_left(self) -> int:
        """Return the number of rows in the whole sample, because a point never runs out of rows."""
        return len(self._plan)

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        """Return a requeued row, or the next row if the gate is open; otherwise None."""
        if self._stopping:
            return None
        if self._again:
            return self._again.popleft()
        if self.gate() <= 0:
            return None
        index = self._queues.take(upstream.url)
        if index is None:
            self._cycle += 1
            self._queues = UpstreamQueues(self._plan, self._upstreams)
            index = self._queues.take(upstream.url)
            assert index is not None, "a sample has rows"
        self.taken += 1
        return PointWork(self, index, self._plan.size(index), cycle=self._cycle)

    def give_back(self, work: Work) -> None:
        self._again.append(work)

    def put_back(self, work: Work) -> None:
        """Put back a row that found no room. The next `take` returns it."""
        self._again.appendleft(work)

    unpack = give_back  # a point never packs rows

    def tokens(self, work: Work) -> int:
        """Estimate the tokens of a request that count towards a limit."""
        return work.size // body_changes.BYTES_PER_TOKEN

    def leaves(self, work: Work) -> None:
        """Do nothing, because a point books no costs."""

    came_back = leaves

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        """Remember the task that sends a row."""
        self._tasks.add(task)

    def leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        """Return the body as a batch would send it, with a salt if the upstream is vLLM."""
        assert isinstance(work, PointWork)
        try:
            line = self._input.line(work.index)
        except Unreadable as error:
            raise StorageError(f"the rows of this bench cannot be read: {error}") from error
        body = bytes(
            body_changes.prepare(
                line.body,
                endpoint=self.endpoint,
                vllm=upstream.is_vllm,
                model=upstream.served.sent_for(self.model),
                priority=BATCH_PRIORITY if upstream.takes_priority else None,
            )
        )
        if self._one_token:
            body = _limited(body)
        if upstream.is_vllm and self.endpoint in body_changes.CONSTRAINED:
            salt = f"{self._salt}-{work.cycle}".encode()
            body = body.replace(b"{", b'{"cache_salt":"%s",' % salt, 1)
        return body

    def refuse(self, work: Work, fault: LineError) -> None:
        self.problem = fault.message
        self._end(RowEnd(0.0, 0.0, NO_TOKENS, is_answer=False))

    def hold(self, reason: str) -> None:
        """Stop the point because its rows are unusable."""
        self.problem = reason
        self._stopping = True
        self.on_end()

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: RetryVerdict, latency: float) -> bool:
        is_answer = verdict.action is Action.KEEP and reply.status < 300
        tokens = NO_TOKENS
        if is_answer:
            upstream.stats.succeeded += 1
            tokens = answer_tokens(reply.body) if reply.tokens is None else reply.tokens
        else:
            upstream.stats.failed += 1
            self.problem = (verdict.reason or f"status {reply.status}") + said(reply.body)
        self._end(RowEnd(upstream.clock(), latency, tokens, is_answer))
        return True

    def _end(self, ended: RowEnd) -> None:
        self.failed += not ended.is_answer
        self.ended.append(ended)
        self.on_end()

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def stop(self) -> None:
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()


def _limited(body: bytes) -> bytes:
    try:
        fields = _decode(body)
    except JSON_ERRORS:
        return body
    one = msgspec.Raw(b"1")
    named = [name for name in _LIMITS if name in fields] or [_LIMITS[0]]
    fields.pop("min_tokens", None)
    return msgspec.json.encode({**fields, **dict.fromkeys(named, one)})
