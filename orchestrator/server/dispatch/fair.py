"""Whose row goes next. Pure: time is an argument.

Tenants share what there is equally, measured in the bytes of their rows. A tenant's batches share its part in the
proportion of how soon each is due: one that is due in an hour goes twelve times as fast as one that is due in twelve,
and every batch moves on, so a long one does not starve a short one and none waits for ever (its share grows as its
deadline comes nearer). A batch that could miss its deadline at the present rate goes before all others, the earliest
deadline first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Generic, Protocol, TypeVar

SOON = 60.0
"""Batches due within so many seconds share equally."""
TIGHT = 0.5
"""A batch is urgent once it needs more than this part of the time it has left, alone at the present rate."""
ROW_BYTES = 256
"""What a row counts beside its bytes."""


class Waiting(Protocol):
    """Rows that wait: a running batch. `deadline` is in the seconds of the caller's clock."""

    tenant: str
    deadline: float

    @property
    def rows_left(self) -> int:
        """How many rows have no result yet."""


S = TypeVar("S", bound=Waiting)
T = TypeVar("T")


class _Entry(Generic[S]):
    """Something that is served in turn; `served` is its virtual time."""

    __slots__ = ("number", "served", "source")

    def __init__(self, source: S, served: float, number: int) -> None:
        self.source, self.served, self.number = source, served, number

    def __lt__(self, other: _Entry[S]) -> bool:
        return (self.served, self.number) < (other.served, other.number)


class _Tenant(Generic[S]):
    """A tenant's batches, the one to be served next on top; `clock` is the virtual time of the one served last."""

    __slots__ = ("batches", "clock", "number", "served")

    def __init__(self, number: int) -> None:
        self.batches: list[_Entry[S]] = []
        self.served, self.clock, self.number = 0.0, 0.0, number

    def __lt__(self, other: _Tenant[S]) -> bool:
        return (self.served, self.number) < (other.served, other.number)


class Fair(Generic[S]):
    """The batches that have rows, in the order in which they are served."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[S]] = {}
        self._turns: list[_Tenant[S]] = []
        self._urgent: list[S] = []
        self._numbers = count()
        self._clock = 0.0
        self._only: S | None = None

    def __len__(self) -> int:
        return sum(len(tenant.batches) for tenant in self._turns)

    def add(self, source: S) -> None:
        """A batch joins; it is owed nothing for the time before."""
        tenant = self._tenants.get(source.tenant)
        if tenant is None:
            tenant = self._tenants[source.tenant] = _Tenant(next(self._numbers))
            self._turns.append(tenant)
        tenant.served = max(tenant.served, self._clock)
        heapq.heapify(self._turns)
        heapq.heappush(tenant.batches, _Entry(source, tenant.clock, next(self._numbers)))
        self._only = self._find_only()

    def remove(self, source: S) -> None:
        """A batch leaves."""
        tenant = self._tenants[source.tenant]
        tenant.batches = [entry for entry in tenant.batches if entry.source is not source]
        heapq.heapify(tenant.batches)
        if not tenant.batches:
            del self._tenants[source.tenant]
            self._turns.remove(tenant)
            heapq.heapify(self._turns)
        self._urgent = [urgent for urgent in self._urgent if urgent is not source]
        self._only = self._find_only()

    def _find_only(self) -> S | None:
        """The batch that has nobody to share with: its rows need no account."""
        return self._turns[0].batches[0].source if len(self) == 1 else None

    def review(self, now: float, rows_per_second: float) -> None:
        """Look which batches are urgent; call it about once a second."""
        sources = [entry.source for tenant in self._turns for entry in tenant.batches]
        self._urgent = sorted(
            (
                source
                for source in sources
                if len(sources) > 1
                and rows_per_second > 0
                and source.rows_left / rows_per_second > TIGHT * (source.deadline - now)
            ),
            key=lambda source: source.deadline,
        )

    def take(self, now: float, take: Callable[[S], T | None], size: Callable[[T], int]) -> T | None:
        """The next row: `take` gives one of a batch or None, `size` its bytes. None where no batch gives any."""
        if self._only is not None:
            return take(self._only)
        for source in self._urgent:
            found = take(source)
            if found is not None:
                return found
        passed: list[_Tenant[S]] = []
        found = None
        while self._turns and found is None:
            tenant = heapq.heappop(self._turns)
            passed.append(tenant)
            found = self._take_of(tenant, now, take, size)
        for tenant in passed:
            heapq.heappush(self._turns, tenant)
        return found

    def _take_of(
        self, tenant: _Tenant[S], now: float, take: Callable[[S], T | None], size: Callable[[T], int]
    ) -> T | None:
        passed: list[_Entry[S]] = []
        found = None
        while tenant.batches and found is None:
            entry = heapq.heappop(tenant.batches)
            passed.append(entry)
            found = take(entry.source)
            if found is not None:
                cost = size(found) + ROW_BYTES
                self._clock, tenant.clock = tenant.served, entry.served
                tenant.served += cost
                entry.served += cost * max(SOON, entry.source.deadline - now)
        for entry in passed:
            heapq.heappush(tenant.batches, entry)
        return found
