"""Requests in flight to an upstream, and the batches that they come from."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from msgspec import Raw, Struct

from orchestrator.core.batch_api import LineError
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.packing import Pack
from orchestrator.server.dispatch.payload import Content
from orchestrator.server.dispatch.rate_limiter import Ticket
from orchestrator.server.dispatch.request_header import InputLine
from orchestrator.server.dispatch.retry import SHARED_FAULTS, AttemptFault, RetryVerdict
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.memory_limits import Room

SUSPECT_CUTS = 2
"""Number of cut connections after which a row may be crashing the engine. Only one of these rows is in flight at a
time.
"""
UNREADABLE_SECONDS = 1.0
"""Seconds before an unreadable row is read again."""
NO_TRIES: Counter[AttemptFault] = Counter()


class Work(Struct, eq=False):
    """One request in flight: a row, or several rows packed into one request.

    `held` is the memory room of its body, or None if it has none now. `tries` counts failed attempts by fault;
    `attempts` counts all attempts. `failed_on` is the upstream of the last failed attempt. `size` is the size of its
    rows in bytes. `packed` and `packed_ids` are the rows of its pack. `custom_id` is JSON, once it has been read.
    `line` was read ahead.

    `upstream_seconds` is the row's share of the upstreams' time. `ticket` is the row's count against an upstream's
    rates. `refused_at` is the send time of the first attempt that met a refused account. `is_at_fault` is true if an
    upstream answered other rows after this row failed there.
    """

    source: RowSource
    index: int
    size: int
    held: Room | None = None
    custom_id: Raw | None = None
    line: InputLine | None = None
    pack: Pack | None = None
    packed: tuple[int, ...] = ()
    packed_ids: tuple[Raw, ...] = ()
    tries: Counter[AttemptFault] = NO_TRIES
    failed_on: Upstream | None = None
    is_at_fault: bool = False
    attempts: int = 0
    upstream_seconds: float = 0.0
    refused_at: float | None = None
    ticket: Ticket | None = None

    def failed_by(self, fault: AttemptFault) -> int:
        """Count a failed attempt. Return how many attempts have failed by this fault."""
        if self.tries is NO_TRIES:
            self.tries = Counter()
        self.tries[fault] += 1
        return self.tries[fault]

    def forgive(self) -> None:
        """Reset the tries that failed while the upstream was at fault for every row."""
        for fault in SHARED_FAULTS if self.tries is not NO_TRIES else ():
            self.tries[fault] = 0

    @property
    def is_suspect(self) -> bool:
        """True if this row may be crashing the engine."""
        return self.tries is not NO_TRIES and self.tries[AttemptFault.CUT] >= SUSPECT_CUTS


class RowSource(Protocol):
    """A running batch, which supplies rows and receives their results."""

    batch_id: str
    tenant: str
    deadline: float
    endpoint: str

    @property
    def model(self) -> str | None:
        pass

    @property
    def rows_left(self) -> int:
        """Number of rows without a result."""

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        """Return the next row for an upstream, or None if there is no row for it now.

        `elsewhere` is true if other upstreams can take the rows that failed on this upstream.
        """

    def give_back(self, work: Work) -> None:
        pass

    def put_back(self, work: Work) -> None:
        """Put back a row for which there was no room. It will be the next row taken."""

    def unpack(self, work: Work) -> None:
        """Requeue the rows of a failed pack, one by one."""

    def tokens(self, work: Work) -> int:
        """Estimate the tokens that a request counts against a rate limit."""

    def leaves(self, work: Work) -> None:
        """Log that a request is about to be sent. If this raises StorageError, the request must not be sent."""

    def came_back(self, work: Work) -> None:
        """Record that a request is free of charge: it was answered without a result, or never sent."""

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        """Record the task that sends a row. Cancelling this task takes the row back."""

    def leave(self, task: asyncio.Task[None]) -> None:
        """Forget a task that has ended, by an answer or by cancellation."""

    async def read_ahead(self, work: Work) -> None:
        """Read a long row in a thread, so that other rows are served meanwhile. Errors of this read are raised later
        by `request_body`.
        """
        return

    def request_body(self, work: Work, upstream: Upstream) -> Content:
        """Return the body to send. Raises BodyError if the body must not be sent, StorageError if it cannot be read
        now.
        """

    def refuse(self, work: Work, fault: LineError) -> None:
        """End a row without an answer, because it must not be sent or because of an internal error."""

    def hold(self, reason: str) -> None:
        """Stop giving rows for a while, after giving a row failed for `reason`."""

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: RetryVerdict, latency: float) -> bool:
        """Record a row's answer, or the reason why it has no answer. Return False if the row is a pack that must be
        unpacked.
        """

    @property
    def is_stopping(self) -> bool:
        """True if rows of this batch will not be sent any more."""
