"""Requests on their way to an upstream, and the batches they come from."""

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
"""After this many cut connections, a row may be crashing the engine. Only one such row is in flight at a time."""
UNREADABLE_SECONDS = 1.0
"""Seconds until a row that cannot be read is tried again."""
NO_TRIES: Counter[AttemptFault] = Counter()


class Work(Struct, eq=False):
    """One request on its way: a row, or several rows packed into one request.

    `held` is the memory room of its body, None if it has none now. `tries` counts failed attempts by fault, and
    `attempts` counts all attempts. `failed_on` is the upstream of the last failed attempt. `size` is the bytes of its
    rows. `packed` and `packed_ids` are the rows of its pack. `custom_id` is JSON, once read. `line` was read ahead.

    `upstream_seconds` is the row's share of the upstreams' time. `ticket` is the row's count against an upstream's
    rates. `refused_at` is when the first attempt was sent that met a refused account. `is_at_fault`: an upstream
    answered other rows after this row failed there.
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
        """Count a failed attempt. Return how many attempts failed by this fault."""
        if self.tries is NO_TRIES:
            self.tries = Counter()
        self.tries[fault] += 1
        return self.tries[fault]

    def forgive(self) -> None:
        """Reset the tries that failed while the upstream was at fault for all rows."""
        for fault in SHARED_FAULTS if self.tries is not NO_TRIES else ():
            self.tries[fault] = 0

    @property
    def is_suspect(self) -> bool:
        """True if this row may be crashing the engine."""
        return self.tries is not NO_TRIES and self.tries[AttemptFault.CUT] >= SUSPECT_CUTS


class RowSource(Protocol):
    """A running batch: the source of rows, and the receiver of their results."""

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
        """Return the next row for an upstream, or None if the upstream can have no row now.

        `elsewhere`: other upstreams can take the rows that failed on this one.
        """

    def give_back(self, work: Work) -> None:
        pass

    def put_back(self, work: Work) -> None:
        """Put back a row for which there was no room. The row is taken next."""

    def unpack(self, work: Work) -> None:
        """Requeue the rows of a failed pack, one by one."""

    def tokens(self, work: Work) -> int:
        """Estimate the tokens that a request counts against a limit."""

    def leaves(self, work: Work) -> None:
        """Log that a request is about to be sent. If this raises StorageError, the request must not be sent."""

    def came_back(self, work: Work) -> None:
        """Note that a request costs nothing: it was answered without a result, or never sent."""

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        """Note the task that sends a row. Cancelling the task takes the row back."""

    def leave(self, task: asyncio.Task[None]) -> None:
        """Forget a task that was answered or cancelled."""

    async def read_ahead(self, work: Work) -> None:
        """Read a long row in a thread, so that other rows are served meanwhile. Only `request_body` raises errors of
        this read.
        """
        return

    def request_body(self, work: Work, upstream: Upstream) -> Content:
        """Return the body to send. Raises BodyError if the body must not be sent, StorageError if it cannot be read
        now.
        """

    def refuse(self, work: Work, fault: LineError) -> None:
        """End a row without an answer: the row must not be sent, or an internal error occurred."""

    def hold(self, reason: str) -> None:
        """Give no rows for a while, because giving one failed for `reason`."""

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: RetryVerdict, latency: float) -> bool:
        """Record a row's answer, or the reason why it has none. False if the row is a pack that must be unpacked."""

    @property
    def is_stopping(self) -> bool:
        """True if rows of this batch are no longer sent."""
