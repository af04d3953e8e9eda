"""Search for an engine's best concurrency. Returns the next point to measure, or the knee.

Concurrency doubles while throughput grows. Then the search narrows the interval between the last point below the
plateau and the first point on it, by halving. If the engine fails at a point (errors, or less throughput than with
fewer rows), the search continues below that point. If throughput falls without errors, other load on the machine may
be the cause, so the point is measured twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

FIRST = 1
GAIN = 1.05
"""Minimum growth factor of throughput per doubling. Below it, the plateau is reached."""
KNEE = 0.97
"""Share of the best throughput that the knee, the lowest sufficient concurrency, must reach."""
WIDTH = 0.10
"""Maximum width of the interval around the knee, as a share of the knee."""
MOST_ERRORS = 0.02
"""Maximum share of failed attempts. Above it, the engine has failed."""
COLLAPSE = 0.8
"""Minimum throughput, as a share of the throughput with fewer rows at once. Below it, the engine has failed."""


class SweepPoint(Struct, frozen=True):
    """A measurement at a concurrency: rows per second, and the share of failed attempts from 0 to 1."""

    concurrency: int
    rows_per_second: float
    error_share: float = 0.0


class Measure(Struct, frozen=True):
    concurrency: int
    reason: str


class Knee(Struct, frozen=True):
    """The lowest concurrency that reaches the plateau. The concurrency `above` is too low; 0 if unknown.

    `rows_per_second` is the knee's throughput. `falls_over_at` is the lowest concurrency at which the engine failed,
    None if it never failed.
    """

    concurrency: int
    above: int
    rows_per_second: float
    falls_over_at: int | None
    reason: str

    @property
    def within(self) -> float:
        """Uncertainty of the knee, as a share of its concurrency."""
        return (self.concurrency - self.above) / self.concurrency if self.above else 0.0


class NoKnee(Struct, frozen=True):
    """Result of a sweep in which the engine fails at every concurrency."""

    reason: str


def next_step(points: Sequence[SweepPoint], most: int, *, settle: bool = False) -> Measure | Knee | NoKnee:
    """Return the next step after these points, which may be in any order. `most` is the maximum concurrency.

    If a concurrency was measured twice, the later measurement counts. With `settle`, time is up: return the knee as
    precisely as it is known.
    """
    latest = {point.concurrency: point for point in points}
    seen = [latest[concurrency] for concurrency in sorted(latest)]
    good, ceiling = _below_failure(seen)
    if not good:
        lowest = ceiling or FIRST
        if not seen or lowest > FIRST:
            return Measure(max(FIRST, lowest // 2) if seen else FIRST, "the lowest concurrency")
        return NoKnee(f"the engine fails at {lowest} at once")
    best = max(good, key=lambda point: (point.rows_per_second, -point.concurrency))
    disputed = _unconfirmed_end(points, good, ceiling)
    if disputed is not None and not settle:
        return Measure(disputed, f"throughput stopped growing at {disputed} without an error: measured again")
    if disputed is not None and disputed == ceiling:
        ceiling = None  # time ended before a second measurement could confirm the end of growth
    further = None if settle else _further(good, ceiling, most)
    return further if further is not None else _narrower(good, best, ceiling, settle=settle)


def _below_failure(seen: Sequence[SweepPoint]) -> tuple[list[SweepPoint], int | None]:
    good: list[SweepPoint] = []
    best = 0.0
    for point in seen:
        fails = point.error_share > MOST_ERRORS or point.rows_per_second <= 0
        if fails or point.rows_per_second < COLLAPSE * best:
            return good, point.concurrency
        good.append(point)
        best = max(best, point.rows_per_second)
    return good, None


def _unconfirmed_end(points: Sequence[SweepPoint], good: Sequence[SweepPoint], ceiling: int | None) -> int | None:
    ends = good[-1].concurrency if ceiling is None and not _grows(good) else ceiling
    seen = [point for point in points if point.concurrency == ends]
    once = len(seen) == 1 and seen[0].error_share <= MOST_ERRORS and seen[0].rows_per_second > 0
    return ends if once else None


def _grows(good: Sequence[SweepPoint]) -> bool:
    highest = good[-1]
    lower = [point for point in good if 2 * point.concurrency <= highest.concurrency]
    return highest.rows_per_second >= GAIN * max((point.rows_per_second for point in lower), default=0.0)


def _further(good: Sequence[SweepPoint], ceiling: int | None, most: int) -> Measure | None:
    if not _grows(good):
        return None
    highest = good[-1]
    limit = most if ceiling is None else ceiling - 1
    if ceiling is None:
        wanted = min(2 * highest.concurrency, limit)
        reason = f"{highest.rows_per_second:.3g} rows/s at {highest.concurrency}, and it may grow"
    else:
        if ceiling - highest.concurrency <= WIDTH * highest.concurrency:
            return None
        wanted = (highest.concurrency + ceiling) // 2
        reason = f"it still grew at {highest.concurrency}, and fails at {ceiling}"
    return Measure(wanted, reason) if highest.concurrency < wanted <= limit else None


def _narrower(good: Sequence[SweepPoint], best: SweepPoint, ceiling: int | None, *, settle: bool) -> Measure | Knee:
    place = next(place for place, one in enumerate(good) if one.rows_per_second >= KNEE * best.rows_per_second)
    knee, above = good[place], good[place - 1].concurrency if place else 0
    middle = (above + knee.concurrency) // 2
    if not settle and above and above < middle and knee.concurrency - above > WIDTH * knee.concurrency:
        return Measure(middle, f"the knee is above {above} and at most {knee.concurrency}")
    fails = "" if ceiling is None else f"; it fails at {ceiling}"
    reason = f"{knee.rows_per_second:.4g} rows/s at {knee.concurrency}, {best.rows_per_second:.4g} at best{fails}"
    return Knee(knee.concurrency, above, knee.rows_per_second, ceiling, reason)
