"""Who may hold a connection to a server of this program, and for how long.

Whoever can reach an address can open connections and then say nothing, half a request, or read no answer. So there is
a time for each step, and a cap on connections: where it is reached, a newcomer takes the place of the one that has
kept the server waiting longest. Part of the cap is kept for connections that have shown a valid key.

What is here knows no library; `guarded` puts it between uvicorn and an application.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import termios
from array import array
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long a client may keep the server waiting, in seconds.

    `head` is for a whole request head, from the connection or its first byte on. A body, and an answer that is being
    read, must move by at least `least_rate` bytes a second on average over each `body` or `answer` seconds: what is
    slow but steady goes on for as long as it takes.
    """

    head: float = 20.0
    body: float = 60.0
    answer: float = 120.0
    least_rate: float = 500.0


PATIENCE = ClientTimeouts()


class Closed(StrEnum):
    """Why a connection was closed from this side."""

    REFUSED = "refused"  # no room for it, and nobody to make some
    REPLACED = "replaced"  # it waited, and a newcomer took its place
    HEAD = "head"  # no whole request head in time
    BODY = "body"  # a body that did not come
    ANSWER = "answer"  # an answer that was not read
    MEMORY = "memory"  # an answer that was not read while too much waited to be


class Phase(StrEnum):
    """What a connection does."""

    IDLE = "idle"  # between requests
    HEAD = "head"  # part of a request head is here, or nothing at all yet
    BODY = "body"  # a stranger's request whose body is awaited
    BUSY = "busy"  # a request that waits for nothing of its client


class Connection:
    """One connection. It is a stranger's until `trust` is called."""

    __slots__ = ("_guard", "_mark", "_requests", "is_trusted", "phase", "since", "transport", "written")

    def __init__(self, guard: Connections) -> None:
        self._guard = guard
        self._requests = 0
        self._mark: tuple[float, int] | None = None
        self.transport: asyncio.Transport | None = None
        self.phase = Phase.HEAD
        self.since = 0.0
        """When its phase began, by the loop's clock."""
        self.is_trusted = False
        self.written = 0
        """Bytes of answers that it was given to send."""

    @property
    def patience(self) -> ClientTimeouts:
        """How long it may keep the server waiting."""
        return self._guard.patience

    def opened(self, transport: asyncio.Transport) -> bool:
        """It is there; False where it must not stay."""
        self.transport = transport
        self.since = now()
        return self._guard.admit(self)

    def heard(self) -> None:
        """Bytes came. Those of a head do not count as progress: it is short, and has its time as a whole."""
        if self.phase is Phase.IDLE:
            self._move(Phase.HEAD)
        elif self.phase is Phase.BODY:
            self._move(Phase.BODY)

    def trust(self) -> None:
        """It has shown a valid key."""
        if not self.is_trusted:
            self._guard.trust(self)

    def begin(self, has_body: bool) -> None:
        """A request's head is whole."""
        self._requests += 1
        self._move(Phase.BODY if has_body and not self.is_trusted else Phase.BUSY)

    def whole(self) -> None:
        """The body of its request is here."""
        if self.phase is Phase.BODY:
            self._move(Phase.BUSY)

    def end(self) -> None:
        """A request is over."""
        self._requests -= 1
        if not self._requests:
            self._move(Phase.IDLE)

    def unsent(self) -> int:
        """Bytes of answers that its client has not taken yet."""
        assert self.transport is not None
        return self.transport.get_write_buffer_size()

    def _taken(self, unsent: int) -> int:
        """Bytes of answers that its client has taken: what the kernel still holds for it is not."""
        assert self.transport is not None
        queued = array("i", [0])
        bound = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError, ValueError):
            fcntl.ioctl(bound.fileno(), termios.TIOCOUTQ, queued)
        return self.written - unsent - queued[0]

    def is_stalled(self, moment: float, unsent: int) -> bool:
        """Whether its client has taken too little of an answer in the time that it has for so much."""
        if not unsent:
            self._mark = None
            return False
        sent, patience = self._taken(unsent), self.patience
        if self._mark is None:
            self._mark = moment, sent
        began, before = self._mark
        if moment - began < patience.answer:
            return False
        self._mark = moment, sent
        return sent - before < patience.answer * patience.least_rate

    def moved(self) -> int:
        """Bytes that were sent since it was last asked whether it stalls."""
        return 0 if self._mark is None else self._taken(self.unsent()) - self._mark[1]

    def close(self, reason: Closed) -> None:
        """End it: at once, without what its client has not read."""
        self._guard.closed[reason] += 1
        self.abort()

    def abort(self) -> None:
        """End it at once, as a part of the server's own end."""
        assert self.transport is not None
        self.transport.abort()

    def too_slow(self) -> None:
        """The body of its request did not come in time; who receives it refuses the request."""
        self._guard.closed[Closed.BODY] += 1

    def _move(self, phase: Phase) -> None:
        self._guard.leave_queue(self)
        self.phase, self.since = phase, now()
        self._guard.enter_queue(self)


class Connections:
    """Every open connection of one server: at most `most`, of which `reserved` are only for those with a key.

    `buffered` bounds the bytes of all answers that wait to be read.
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
        """How many were closed from this side, by reason."""
        self._buffered = buffered
        self._open: dict[Connection, None] = {}
        self._trusted = 0
        # Those that keep the server waiting, the longest first.
        self._strangers: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}

    @property
    def trusted(self) -> int:
        """How many have shown a valid key."""
        return self._trusted

    @property
    def strangers(self) -> int:
        """How many have not."""
        return len(self._open) - self._trusted

    def admit(self, connection: Connection) -> bool:
        """Take a new connection in, in the place of another one where it is full; False where there is none."""
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
        """It is gone; a second time changes nothing."""
        if connection in self._open:
            del self._open[connection]
            self._trusted -= connection.is_trusted
            self.leave_queue(connection)

    def trust(self, connection: Connection) -> None:
        """It has shown a valid key."""
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
        """It begins to wait, as its phase says."""
        queue = self._queue(connection)
        if queue is not None and connection in self._open:
            queue[connection] = None

    def leave_queue(self, connection: Connection) -> None:
        """It waits no more."""
        queue = self._queue(connection)
        if queue is not None:
            queue.pop(connection, None)

    def sweep(self) -> None:
        """Close those that were waited for long enough; call it a few times within the shortest patience."""
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
        """Too much waits to be read: drop the answers of those that read least of the most."""
        unread = [connection for connection in self._open if connection.unsent()]
        for connection in sorted(unread, key=lambda each: (each.moved(), -each.unsent())):
            if excess <= 0:
                return
            excess -= connection.unsent()
            connection.close(Closed.MEMORY)


def now() -> float:
    """The clock of the loop that runs."""
    return asyncio.get_running_loop().time()
