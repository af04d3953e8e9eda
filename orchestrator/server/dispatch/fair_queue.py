"""Whose row goes next. Pure: time is an argument.

Tenants share what there is equally, measured in the bytes of their rows. A tenant's batches share its part in the
proportion of how soon each is due: one that is due in an hour goes twelve times as fast as one that is due in twelve,
and every batch moves on, so a long one does not starve a short one and none waits for ever (its share grows as its
deadline comes nearer). A batch that could miss its deadline at the present rate goes before all others, the earliest
deadline first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, Protocol, TypeVar

SOON = 60.0
"""Batches due within so many seconds share equally."""
TIGHT = 0.5
"""A batch is urgent once it needs more than this part of the time it has left, alone at the present rate."""
ROW_BYTES = 256
"""What a row counts beside its bytes."""


class WaitingBatch(Protocol):
    """Rows that wait: a running batch. `deadline` is in the seconds of the caller's clock."""

    tenant: str
    deadline: float

    @property
    def rows_left(self) -> int:
        """How many rows have no result yet."""


S = TypeVar("S", bound=WaitingBatch)
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
        self._sources: list[S] = []
        self._turns: list[_Tenant[S]] = []
        """Tenants of which a batch may have rows; a heap, as are their batches."""
        self._dry: list[tuple[_Tenant[S], _Entry[S]]] = []
        """Batches that gave none when they were asked last."""
        self._refused: set[Hashable] = set()
        self._urgent: list[S] = []
        self._numbers = count()
        self._clock = 0.0

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def _only(self) -> S | None:
        """The batch that has nobody to share with: its rows need no account."""
        return self._sources[0] if len(self._sources) == 1 else None

    def add(self, source: S) -> None:
        """A batch joins; it is owed nothing for the time before."""
        tenant = self._tenants.setdefault(source.tenant, _Tenant(next(self._numbers)))
        self._sources.append(source)
        self._dry.append((tenant, _Entry(source, tenant.clock, next(self._numbers))))
        self._revive()
        self.wake()

    def remove(self, source: S) -> None:
        """A batch leaves."""
        self._revive()
        self._sources.remove(source)
        self._urgent = [urgent for urgent in self._urgent if urgent is not source]
        tenant = self._tenants[source.tenant]
        tenant.batches = [entry for entry in tenant.batches if entry.source is not source]
        heapq.heapify(tenant.batches)
        if not tenant.batches:
            del self._tenants[source.tenant]
            self._turns.remove(tenant)
            heapq.heapify(self._turns)

    def review(self, now: float, rows_per_second: float) -> None:
        """Look which batches are urgent; call it about once a second."""
        self._urgent = sorted(
            (
                source
                for source in self._sources
                if len(self._sources) > 1
                and rows_per_second > 0
                and source.rows_left / rows_per_second > TIGHT * (source.deadline - now)
            ),
            key=lambda source: source.deadline,
        )

    def wake(self) -> None:
        """Rows may have come where there were none: whoever was told that there is nothing may ask again."""
        self._refused.clear()

    def take(self, asker: Hashable, now: float, take: Callable[[S], T | None], size: Callable[[T], int]) -> T | None:
        """The next row for an asker: `take` gives one of a batch or None, `size` its bytes.

        None where no batch gives any, and from then on until `wake`. Batches that gave none are asked again only when
        no other gives any, so that many that wait for something cost nothing.
        """
        if asker in self._refused:
            return None
        if self._only is not None:
            found = take(self._only)
        else:
            found = self._take_urgent(take)
            if found is None:
                found = self._take_in_turn(now, take, size)
            if found is None and self._dry:
                self._revive()
                found = self._take_in_turn(now, take, size)
        if found is None:
            self._refused.add(asker)
        return found

    def _take_urgent(self, take: Callable[[S], T | None]) -> T | None:
        for source in self._urgent:
            found = take(source)
            if found is not None:
                return found
        self._urgent.clear()
        return None

    def _take_in_turn(self, now: float, take: Callable[[S], T | None], size: Callable[[T], int]) -> T | None:
        while self._turns:
            tenant = self._turns[0]
            while tenant.batches:
                entry = tenant.batches[0]
                found = take(entry.source)
                if found is None:
                    self._dry.append((tenant, heapq.heappop(tenant.batches)))
                    continue
                cost = size(found) + ROW_BYTES
                self._clock, tenant.clock = tenant.served, entry.served
                tenant.served += cost
                entry.served += cost * max(SOON, entry.source.deadline - now)
                heapq.heapreplace(tenant.batches, entry)
                heapq.heapreplace(self._turns, tenant)
                return found
            heapq.heappop(self._turns)
        return None

    def _revive(self) -> None:
        """Put back what gave no rows; it is owed nothing for that time."""
        for tenant, entry in self._dry:
            if not tenant.batches:
                tenant.served = max(tenant.served, self._clock)
                self._turns.append(tenant)
            entry.served = max(entry.served, tenant.clock)
            heapq.heappush(tenant.batches, entry)
        self._dry.clear()
        heapq.heapify(self._turns)
