"""Decides which tenant's batch gives the next row. Pure: time is an argument.

Tenants share upstreams equally, measured in the bytes of their rows. A tenant's batches go one after another,
earliest deadline first. The planner counts on this order, and no other order meets as many deadlines. A tenant goes
first if it could miss a deadline at the present rate. Among several of these tenants, the earliest deadline decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, Protocol, TypeVar

from orchestrator.core.engine_order import turn

TIGHT = 0.5
"""Urgency threshold. A batch is urgent if, alone at the present rate, it would need more than this share of its
remaining time.
"""
ROW_BYTES = 256
"""Bytes added to each row's size as a fixed cost."""


class WaitingBatch(Protocol):
    """The waiting rows of a running batch. `deadline` is in seconds of the caller's clock."""

    tenant: str
    deadline: float

    @property
    def rows_left(self) -> int:
        """Number of rows without a result."""


class KeepsTurnError(Exception):
    """Raised if there is no room now for a batch's row. The batch is passed over and keeps its turn.

    `of_tenant` is true if no other batch of its tenant could give a row either.
    """

    def __init__(self, *, of_tenant: bool = False) -> None:
        super().__init__()
        self.of_tenant = of_tenant


S = TypeVar("S", bound=WaitingBatch)
T = TypeVar("T")


class _Entry(Generic[S]):
    __slots__ = ("place", "source")

    def __init__(self, source: S, number: int) -> None:
        self.source, self.place = source, turn(source.deadline, number)

    def __lt__(self, other: _Entry[S]) -> bool:
        return self.place < other.place


class _Tenant(Generic[S]):
    """A tenant's batches that may have rows, as a heap. `served` is the tenant's virtual time in the fair queue."""

    __slots__ = ("batches", "number", "served")

    def __init__(self, number: int) -> None:
        self.batches: list[_Entry[S]] = []
        self.served, self.number = 0.0, number

    def __lt__(self, other: _Tenant[S]) -> bool:
        return (self.served, self.number) < (other.served, other.number)


class Fair(Generic[S]):
    """The batches that have rows, in the order in which they are served."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[S]] = {}
        self._sources: list[S] = []
        self._turns: list[_Tenant[S]] = []
        """Tenants with a batch that may have rows, as a heap."""
        self._dry: list[tuple[_Tenant[S], _Entry[S]]] = []
        """Batches that gave no row at the last request."""
        self._passed: list[tuple[_Tenant[S], _Entry[S]]] = []
        """Batches passed over in the current turn."""
        self._refused: set[Hashable] = set()
        self._urgent: list[_Tenant[S]] = []
        self._numbers = count()
        self._clock = 0.0

    def __len__(self) -> int:
        return len(self._sources)

    def add(self, source: S) -> None:
        """Add a batch. Its tenant gets no credit for earlier times without rows."""
        tenant = self._tenants.setdefault(source.tenant, _Tenant(next(self._numbers)))
        self._sources.append(source)
        self._dry.append((tenant, _Entry(source, next(self._numbers))))
        self._revive()
        self.wake()

    def remove(self, source: S) -> None:
        self._revive()
        self._sources.remove(source)
        tenant = self._tenants[source.tenant]
        tenant.batches = [entry for entry in tenant.batches if entry.source is not source]
        heapq.heapify(tenant.batches)
        if not tenant.batches:
            del self._tenants[source.tenant]
            self._urgent = [urgent for urgent in self._urgent if urgent is not tenant]
            self._turns.remove(tenant)
            heapq.heapify(self._turns)

    def review(self, now: float, rows_per_second: float) -> None:
        """Decide which tenants are urgent. Call this about once a second."""
        self._urgent.clear()
        if len(self._tenants) < 2 or rows_per_second <= 0:
            return
        of_tenant: dict[str, float] = {}
        urgent: dict[str, float] = {}
        for source in sorted(self._sources, key=lambda source: source.deadline):
            rows = of_tenant[source.tenant] = of_tenant.get(source.tenant, 0.0) + source.rows_left
            if source.rows_left and rows / rows_per_second > TIGHT * (source.deadline - now):
                urgent.setdefault(source.tenant, source.deadline)
        self._urgent = [self._tenants[tenant] for tenant in urgent]

    def wake(self) -> None:
        """Let every asker try again, because there may be new rows."""
        self._refused.clear()

    def take(self, asker: Hashable, take: Callable[[S], T | None], size: Callable[[T], int]) -> T | None:
        """Return the next row for an asker. `take` returns a row of a batch or None; `size` returns a row's bytes.

        If no batch gives a row, the asker gets None until `wake`. A batch that gave no row is asked again only if no
        other batch gives one. So many waiting batches cost nothing. `take` may raise KeepsTurnError.
        """
        if asker in self._refused:
            return None
        if len(self._sources) == 1:  # the only batch: its rows need no accounting
            try:  # `suppress` would cost more than the rest of this method, for every row
                found = take(self._sources[0])
            except KeepsTurnError:
                found = None
        else:
            found = self._take_urgent(take)
            if found is None:
                found = self._take_in_turn(take, size)
            if found is None and self._dry:
                self._revive()
                found = self._take_in_turn(take, size)
        if self._passed:
            self._return_passed()
        if found is None:
            self._refused.add(asker)
        return found

    def _take_urgent(self, take: Callable[[S], T | None]) -> T | None:
        for tenant in self._urgent:
            found = self._take_of(tenant, take)
            if found is not None:
                return found
        if not self._passed:
            self._urgent.clear()
        return None

    def _take_in_turn(self, take: Callable[[S], T | None], size: Callable[[T], int]) -> T | None:
        while self._turns:
            tenant = self._turns[0]
            found = self._take_of(tenant, take)
            if found is not None:
                self._clock = tenant.served
                tenant.served += size(found) + ROW_BYTES
                heapq.heapreplace(self._turns, tenant)
                return found
            heapq.heappop(self._turns)
        return None

    def _take_of(self, tenant: _Tenant[S], take: Callable[[S], T | None]) -> T | None:
        while tenant.batches:
            try:
                found = take(tenant.batches[0].source)
            except KeepsTurnError as error:
                self._passed.append((tenant, heapq.heappop(tenant.batches)))
                if error.of_tenant:
                    return None
                continue
            if found is not None:
                return found
            self._dry.append((tenant, heapq.heappop(tenant.batches)))
        return None

    def _return_passed(self) -> None:
        turns = {id(tenant) for tenant in self._turns}
        for tenant, entry in self._passed:
            if id(tenant) not in turns:
                turns.add(id(tenant))
                self._turns.append(tenant)
            heapq.heappush(tenant.batches, entry)
        self._passed.clear()
        heapq.heapify(self._turns)

    def _revive(self) -> None:
        """Requeue batches that gave no row. A tenant without any other batch gets no credit for that time."""
        turns = {id(tenant) for tenant in self._turns}
        for tenant, entry in self._dry:
            if id(tenant) not in turns:
                turns.add(id(tenant))
                tenant.served = max(tenant.served, self._clock)
                self._turns.append(tenant)
            heapq.heappush(tenant.batches, entry)
        self._dry.clear()
        heapq.heapify(self._turns)
