"""The number of engines for a model's rows if each costs by the hour: the fewest that meet every deadline. Pure.

An engine costs from its lease to its release, so two engines for an hour cost as much as one for two hours. Only each
start costs extra. So a model gets no more engines than its deadlines need, and running engines continue until no row
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
"""Work may take longer than expected by this factor."""
FINISH_SECONDS = 120.0
"""Rows must be done this long before they are due: the last rows, and the file, take time."""
WINDOW_SECONDS = 60.0
"""Seconds over which rates are measured."""
LEAST_SECONDS = 5.0
"""Observations of fewer seconds are ignored, because they say nothing about a rate."""


def engines_for(
    due: Iterable[tuple[float, int]], *, rate: float, start: float, running: int, most: int, now: float
) -> int:
    """Return the fewest engines, including running ones, that do these rows in time, or `most` if none can.

    `due` has deadlines in Unix seconds with their rows; `rate` is rows a second of one engine; a new engine takes its
    first row `start` seconds from `now`.
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
    """Return the rows without a result, by deadline."""
    return [one for demand in demands for one in demand.due or ((demand.deadline, demand.rows),)]


class RateWatch(Struct):
    """Rows a second of one engine of a model, from observations of its engines."""

    _seen: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _known: float | None = None

    def observe(self, at: float, url: str, rows: int, in_flight: int) -> None:
        """Record the rows that an engine has finished by time `at` (seconds). An engine without rows has no rate."""
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
        """Median rate of the engines; the last known rate while no engine works; None before any engine worked."""
        rates = [
            (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
            for looks in self._seen.values()
            if len(looks) > 1 and looks[-1][0] - looks[0][0] >= LEAST_SECONDS and looks[-1][1] > looks[0][1]
        ]
        if rates:
            self._known = median(rates)
        return self._known
