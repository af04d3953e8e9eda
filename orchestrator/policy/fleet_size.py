"""How many engines a model's rows are worth where each costs by the hour: the fewest that keep every deadline. Pure.

An engine costs from its lease to its release, so rows cost the same on two engines in an hour as on one in two; only
each start is paid for beside them. So there are no more engines than the deadlines ask for, and those that run go on
until no row waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from orchestrator.core.engines import ModelDemand

MARGIN = 1.25
"""Work may take longer than expected by this much."""
FINISH_SECONDS = 120.0
"""Rows are to be done so long before they are due: the last ones, and the file, take their time."""
WINDOW_SECONDS = 60.0
"""Rates are those of the latest minute or so."""
LEAST_SECONDS = 5.0
"""What is seen in less says nothing of a rate."""


def engines_for(
    due: Iterable[tuple[float, int]], *, rate: float, start: float, running: int, most: int, now: float
) -> int:
    """The fewest engines, those that run among them, that do these rows in time, or `most` where none do.

    `due`: deadlines in seconds of Unix time with their rows; `rate` in rows a second of one engine; a new one takes
    its first row `start` seconds from `now`.
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
    """The rows without a result by their deadlines."""
    return [one for demand in demands for one in demand.due or ((demand.deadline, demand.rows),)]


@dataclass(slots=True)
class RateWatch:
    """Rows a second of one engine of a model, as looks at its engines show it."""

    _seen: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _known: float | None = None

    def observe(self, at: float, url: str, rows: int, in_flight: int) -> None:
        """An engine has ended so many rows at a moment in seconds; one that has none out shows no rate."""
        looks = self._seen.setdefault(url, deque())
        if not in_flight or (looks and rows < looks[-1][1]):
            looks.clear()
            return
        looks.append((at, rows))
        while looks[0][0] < at - WINDOW_SECONDS:
            looks.popleft()

    def keep(self, urls: Iterable[str]) -> None:
        """Only these are still there."""
        for url in self._seen.keys() - set(urls):
            del self._seen[url]

    @property
    def rate(self) -> float | None:
        """The median of the engines; what it was last while none works, None before any did."""
        rates = [
            (looks[-1][1] - looks[0][1]) / (looks[-1][0] - looks[0][0])
            for looks in self._seen.values()
            if len(looks) > 1 and looks[-1][0] - looks[0][0] >= LEAST_SECONDS and looks[-1][1] > looks[0][1]
        ]
        if rates:
            self._known = median(rates)
        return self._known
