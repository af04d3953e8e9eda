"""What is on its way to an upstream, and where it comes from."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from msgspec import Raw

from orchestrator.core.wire import LineError
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.packing import Pack
from orchestrator.server.dispatch.rate_limiter import Ticket
from orchestrator.server.dispatch.retry import SHARED_FAULTS, AttemptFault, RetryVerdict
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.memory_limits import Room

SUSPECT_CUTS = 2
"""A row that was in a cut connection so often may be what kills the engine: no other such row is out with it."""
UNREADABLE_SECONDS = 1.0
"""A row that cannot be read is tried again after so long."""
NO_TRIES: Counter[AttemptFault] = Counter()


class Work:
    """One request on its way: a row, or several rows packed into one.

    `held` is the room that its body takes in memory now. `tries` counts attempts that failed, by their fault,
    `failed_on` is where the last of them did; `attempts` counts all. `size` is the bytes of its rows, `packed` every
    row of its pack with `packed_ids`, `custom_id` its id as JSON once it was read.
    `upstream_seconds` is its share of the upstreams' time. `refused_at` is when it was sent the first time that the
    account was refused, `ticket` what it counts against an upstream's rates. `is_at_fault`: an upstream that failed
    it answered other rows afterwards.
    """

    __slots__ = (
        *("attempts", "custom_id", "failed_on", "held", "index", "is_at_fault", "pack", "packed", "packed_ids"),
        *("refused_at", "size", "source", "ticket", "tries", "upstream_seconds"),
    )

    def __init__(self, source: RowSource, index: int, size: int) -> None:
        self.source = source
        self.index = index
        self.size = size
        self.held: Room | None = None
        self.custom_id: Raw | None = None
        self.pack: Pack | None = None
        self.packed: tuple[int, ...] = ()
        self.packed_ids: tuple[Raw, ...] = ()
        self.tries = NO_TRIES
        self.failed_on: Upstream | None = None
        self.is_at_fault = False
        self.attempts = 0
        self.upstream_seconds = 0.0
        self.refused_at: float | None = None
        self.ticket: Ticket | None = None

    def failed_by(self, fault: AttemptFault) -> int:
        """Count an attempt that failed; how many failed by this fault."""
        if self.tries is NO_TRIES:
            self.tries = Counter()
        self.tries[fault] += 1
        return self.tries[fault]

    def forgive(self) -> None:
        """Count none of the tries that failed while the upstream was at fault for all rows."""
        for fault in SHARED_FAULTS if self.tries is not NO_TRIES else ():
            self.tries[fault] = 0

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what kills the engine."""
        return self.tries is not NO_TRIES and self.tries[AttemptFault.CUT] >= SUSPECT_CUTS


class RowSource(Protocol):
    """Where rows come from, and where their ends go: a running batch."""

    batch_id: str
    tenant: str
    deadline: float
    endpoint: str

    @property
    def model(self) -> str | None:
        """The model that its rows name."""

    @property
    def rows_left(self) -> int:
        """How many rows have no result yet."""

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        """The next row for an upstream, or None while there is none for it.

        `elsewhere` says that there are other upstreams for what failed on this one.
        """

    def give_back(self, work: Work) -> None:
        """Something to be taken again."""

    def put_back(self, work: Work) -> None:
        """There was no room for it: nothing of it was done, and it is the next to be taken."""

    def unpack(self, work: Work) -> None:
        """A pack that did not end well: its rows are to be taken again, one by one."""

    def tokens(self, work: Work) -> int:
        """About how many tokens a request will count against a limit."""

    def leaves(self, work: Work) -> None:
        """A request is about to be sent. Raises StorageError where that cannot be noted: then it must not be."""

    def came_back(self, work: Work) -> None:
        """It was answered without a result, or never left: nobody has to pay for that attempt."""

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        """A task sends one of its rows; cancelling the task takes the row back."""

    def leave(self, task: asyncio.Task[None]) -> None:
        """The task has its answer, or was cancelled."""

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        """The body to send. Raises BodyError where it may not be, StorageError where it cannot be read now."""

    def refuse(self, work: Work, fault: LineError) -> None:
        """A row's end without an answer: what it asks for must not be sent, or this program fails at it."""

    def hold(self, reason: str) -> None:
        """It fails at giving rows: it is not asked for a while."""

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: RetryVerdict, latency: float) -> bool:
        """A row's end: its answer, or the reason why there will be none. False where a pack has to be unpacked."""

    @property
    def is_stopping(self) -> bool:
        """Whether its rows are no longer wanted."""
