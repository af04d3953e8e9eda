"""Limits on connections to orch's servers: their number, and the time of each step.

A client can open connections and send nothing, send half a request, or never read an answer. So each step has a time
limit, and the number of connections is capped. At the cap, a new connection replaces the connection that has kept the
server waiting longest. Part of the cap is reserved for connections that have shown a valid key.

This module needs no web server; `guarded_server` puts it between uvicorn and an application.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import termios
from array import array
from collections import Counter
from enum import StrEnum

from msgspec import Struct


class ClientTimeouts(Struct, frozen=True):
    """Times that a client may keep the server waiting, in seconds.

    `head` limits the wait for a whole request head, from the connection or the head's first byte on. A client that
    sends a body must average `least_rate` bytes a second over every `body` seconds. While a client reads an answer,
    the average counts over every `answer` seconds. A slow but steady client may take as long as it needs.
    """

    head: float = 20.0
    body: float = 60.0
    answer: float = 120.0
    least_rate: float = 500.0


PATIENCE = ClientTimeouts()


class Closed(StrEnum):
    """A reason why this side closed a connection."""

    REFUSED = "refused"  # the cap was reached, and no connection could be replaced
    REPLACED = "replaced"  # a new connection replaced it while it waited
    HEAD = "head"  # no whole request head arrived in time
    BODY = "body"  # the request's body did not arrive in time
    ANSWER = "answer"  # the client did not read its answer in time
    MEMORY = "memory"  # the client did not read its answer while unread answers took too much memory


class Phase(StrEnum):
    """Phases of a connection."""

    IDLE = "idle"  # between requests
    HEAD = "head"  # part of a request head has arrived, or nothing yet
    BODY = "body"  # an untrusted client's request whose body is awaited
    BUSY = "busy"  # a request that does not wait for its client


class Connection:
    """A client's connection, untrusted until `trust` is called."""

    __slots__ = ("_guard", "_mark", "_requests", "is_trusted", "phase", "since", "transport", "written")

    def __init__(self, guard: Connections) -> None:
        self._guard = guard
        self._requests = 0
        self._mark: tuple[float, int] | None = None
        self.transport: asyncio.Transport | None = None
        self.phase = Phase.HEAD
        self.since = 0.0
        """Start of the phase on the event loop's clock."""
        self.is_trusted = False
        self.written = 0
        """Bytes of answers that were handed to the transport."""

    @property
    def patience(self) -> ClientTimeouts:
        """The server's time limits."""
        return self._guard.patience

    def opened(self, transport: asyncio.Transport) -> bool:
        """Register the connection. Return False if it must be refused."""
        self.transport = transport
        self.since = now()
        return self._guard.admit(self)

    def heard(self) -> None:
        """Note that bytes arrived. Bytes of a request head do not restart the clock: the whole head has one time
        limit.
        """
        if self.phase is Phase.IDLE:
            self._move(Phase.HEAD)
        elif self.phase is Phase.BODY:
            self._move(Phase.BODY)

    def trust(self) -> None:
        """Mark the connection as having shown a valid key."""
        if not self.is_trusted:
            self._guard.trust(self)

    def begin(self, has_body: bool) -> None:
        """Note that a request's head is complete."""
        self._requests += 1
        self._move(Phase.BODY if has_body and not self.is_trusted else Phase.BUSY)

    def whole(self) -> None:
        """Note that a request's body is complete."""
        if self.phase is Phase.BODY:
            self._move(Phase.BUSY)

    def end(self) -> None:
        """Note that a request is over."""
        self._requests -= 1
        if not self._requests:
            self._move(Phase.IDLE)

    def unsent(self) -> int:
        """Return the number of answer bytes still in the transport's buffer."""
        assert self.transport is not None
        return self.transport.get_write_buffer_size()

    def _received_bytes(self, unsent: int) -> int:
        """Return the number of answer bytes that the client has received, without bytes still in the kernel."""
        assert self.transport is not None
        queued = array("i", [0])
        bound = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError):
            fcntl.ioctl(bound.fileno(), termios.TIOCOUTQ, queued)
        return self.written - unsent - queued[0]

    def is_stalled(self, moment: float, unsent: int) -> bool:
        """True if the client has read too little of its answer in the last `answer` seconds."""
        if not unsent:
            self._mark = None
            return False
        sent, patience = self._received_bytes(unsent), self.patience
        if self._mark is None:
            self._mark = moment, sent
        began, before = self._mark
        if moment - began < patience.answer:
            return False
        self._mark = moment, sent
        return sent - before < patience.answer * patience.least_rate

    def moved(self) -> int:
        """Return the number of bytes that the client has received since `is_stalled` last started its clock."""
        return 0 if self._mark is None else self._received_bytes(self.unsent()) - self._mark[1]

    def close(self, reason: Closed) -> None:
        """Close the connection immediately, drop its unsent bytes, and count the reason."""
        self._guard.closed[reason] += 1
        self.abort()

    def abort(self) -> None:
        """Close the connection immediately, without counting a reason."""
        assert self.transport is not None
        self.transport.abort()

    def too_slow(self) -> None:
        """Count a body that did not arrive in time. The code that reads the body refuses the request."""
        self._guard.closed[Closed.BODY] += 1

    def _move(self, phase: Phase) -> None:
        self._guard.leave_queue(self)
        self.phase, self.since = phase, now()
        self._guard.enter_queue(self)


class Connections:
    """The open connections of a server: at most `most`, of which `reserved` are only for clients with a valid key.

    `buffered` limits the bytes of all unread answers.
    """

    def __init__(
        self,
        most: int,
        reserved: int = 0,
        patience: ClientTimeouts = PATIENCE,
        buffered: int = 256 * 1024 * 1024,
    ) -> None:
        self.most = most
        self.reserved = reserved
        self.patience = patience
        self.closed: Counter[Closed] = Counter()
        """Connections closed from this side, by reason."""
        self._buffered = buffered
        self._open: dict[Connection, None] = {}
        self._trusted = 0
        # Connections that keep the server waiting, longest wait first.
        self._strangers: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}

    @property
    def trusted(self) -> int:
        """Number of connections that have shown a valid key."""
        return self._trusted

    @property
    def strangers(self) -> int:
        """Number of connections that have not shown a valid key."""
        return len(self._open) - self._trusted

    def admit(self, connection: Connection) -> bool:
        """Add a connection. At the limit, close the longest-waiting connection; return False if none can be
        closed.
        """
        is_crowded = self.strangers >= self.most - self.reserved
        if is_crowded or len(self._open) >= self.most:
            found = next(iter(self._strangers), None)
            if found is None and not is_crowded:
                found = next(iter(self._known), None)
            if found is None:
                self.closed[Closed.REFUSED] += 1
                return False
            self.remove(found)
            found.close(Closed.REPLACED)
        self._open[connection] = None
        self.enter_queue(connection)
        return True

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection; a second call changes nothing."""
        if connection in self._open:
            del self._open[connection]
            self._trusted -= connection.is_trusted
            self.leave_queue(connection)

    def trust(self, connection: Connection) -> None:
        """Mark a connection as having shown a valid key."""
        if connection in self._open:
            self.leave_queue(connection)
            connection.is_trusted = True
            self._trusted += 1
            if connection.phase is Phase.BODY:
                connection.phase = Phase.BUSY
            self.enter_queue(connection)

    def _queue(self, connection: Connection) -> dict[Connection, None] | None:
        if connection.phase is Phase.BUSY:
            return None
        return self._known if connection.is_trusted else self._strangers

    def enter_queue(self, connection: Connection) -> None:
        """Add a connection to the queue of its kind, trusted or not, unless it is busy."""
        queue = self._queue(connection)
        if queue is not None and connection in self._open:
            queue[connection] = None

    def leave_queue(self, connection: Connection) -> None:
        """Remove a connection from the queue of its kind, trusted or not."""
        queue = self._queue(connection)
        if queue is not None:
            queue.pop(connection, None)

    def sweep(self) -> None:
        """Close connections whose time is up. Call this a few times within the shortest limit."""
        moment = now()
        for waiting in (self._strangers, self._known):
            late = [each for each in waiting if each.phase is Phase.HEAD and moment - each.since > self.patience.head]
            for connection in late:
                connection.close(Closed.HEAD)
        unread = 0
        for connection in self._open:
            size = connection.unsent()
            unread += size
            if connection.is_stalled(moment, size):
                connection.close(Closed.ANSWER)
        if unread > self._buffered:
            self._make_room(unread - self._buffered)

    def _make_room(self, excess: int) -> None:
        """Close connections to free `excess` bytes of unread answers.

        The slowest connections go first, and the largest of equally slow connections.
        """
        unread = [connection for connection in self._open if connection.unsent()]
        for connection in sorted(unread, key=lambda each: (each.moved(), -each.unsent())):
            if excess <= 0:
                return
            excess -= connection.unsent()
            connection.close(Closed.MEMORY)


def now() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()
