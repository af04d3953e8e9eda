"""Number of engines for a model whose engines cost by the hour: the fewest that meet every deadline. Pure.

An engine costs from its lease to its release. So two engines for one hour cost as much as one for two hours, plus one
extra start. A model therefore gets no more engines than its deadlines need. Running engines continue until no row
waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from msgspec import Struct, field

from orchestrator.core.engines import ModelDemand

MARGIN = 1.25
"""Factor by which work may take longer than expected."""
FINISH_SECONDS = 120.0
"""Seconds before the deadline by which rows must be done: the last rows and the file take time."""
WINDOW_SECONDS = 60.0
"""Seconds over which rates are measured."""
LEAST_SECONDS = 5.0
"""Minimum seconds of observation. A shorter observation says nothing about a rate."""


def engines_for(
    due: Iterable[tuple[float, int]], *, rate: float, start: float, running: int, most: int, now: float
) -> int:
    """Return the fewest engines, running ones included, that do these rows in time. Returns `most` if no number can.

    `due` pairs deadlines, in Unix seconds, with numbers of rows. `rate` is the rows a second of one engine. A new
    engine takes its first row `start` seconds from `now`.
    """
    wanted = rows = 0
    for deadline, more in sorted(due):
        rows += more
        work = MARGIN * rows / rate
        left = deadline - FINISH_SECONDS - now
        if work <= running * max(0.0, left):
            wanted = max(wanted, math.ceil(work / left) if work else 0)
        elif left <= start:
            return most
        else:
            late = work - running * left
            wanted = max(wanted, running + math.ceil(late / (left - start)))
    return min(most, wanted)


def due_of(demands: Iterable[ModelDemand]) -> list[tuple[float, int]]:
    """Return the rows without a result, as (deadline, number of rows)."""
    return [one for demand in demands for one in demand.due or ((demand.deadline, demand.rows),)]


class RateWatch(Struct):
    """Rows a second of one engine of a model, from observations of its engines."""

    _seen: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _known: float | None = None

    def observe(self, at: float, url: str, rows: int, in_flight: int) -> None:
        """Record the total rows that an engine has finished at time `at`, in seconds.

        If no row is in flight, the engine's earlier observations are dropped: an idle engine has no rate. A total
        that has fallen, as after a restart, drops the earlier observations too.
        """
        looks = self._seen.setdefault(url, deque())
        if not in_flight or (looks and rows < looks[-1][1]):
            looks.clear()
            return
        looks.append((at, rows))
        while looks[0][0] < at - WINDOW_SECONDS:
            looks.popleft()

    def keep(self, urls: Iterable[str]) -> None:
        """Forget all engines except these."""
        for url in self._seen.keys() - set(urls):
            del self._seen[url]

    @property
    def rate(self) -> float | None:
        """Median rate of the engines. While no engine works, it is the last known rate; None before any engine
        worked.
        """
        rates = [
            (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
            for looks in self._seen.values()
            if len(looks) > 1 and looks[-1][0] - looks[0][0] >= LEAST_SECONDS and looks[-1][1] > looks[0][1]
        ]
        if rates:
            self._known = median(rates)
        return self._known
