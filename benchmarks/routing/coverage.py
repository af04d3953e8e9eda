"""Whether routes are done when it was told: how many orders ended by the p50 and the p95 that were told for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.routing.night import Night
from benchmarks.routing.world import Sent


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What was told of rows of a job that were sent to a backend `at`: seconds of the night, infinite for never."""

    job: str
    backend: str
    is_paced: bool
    at: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Orders to one kind of route whose end is known, or known to be behind the mark: how many, and within it."""

    route: str
    known50: int = 0
    by_p50: int = 0
    known95: int = 0
    by_p95: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.route, self.known50 + other.known50, self.by_p50 + other.by_p50, self.known95 + other.known95,
            self.by_p95 + other.by_p95,
        )  # fmt: skip


ROUTES = ("synchronous option", "batch")


def coverage(foreseen: Iterable[Foreseen], shards: Sequence[Sent], night: Night) -> list[Coverage]:
    """What was told in a night, held against how its shards ended, by kind of route.

    Of a batch that was cut short the night knows when it would have ended: without those, the slow ones are missing.
    """
    found = {route: Coverage(route) for route in ROUTES}
    for told in foreseen:
        sent = [one for one in shards if (one.job, one.backend, one.created) == (told.job, told.backend, told.at)]
        if sent:
            route = ROUTES[0] if told.is_paced else ROUTES[1]
            found[route] += _settled(told, sent, route, night)
    return list(found.values())


def _settled(told: Foreseen, sent: Sequence[Sent], route: str, night: Night) -> Coverage:
    """A synchronous one that was cut short would have ended later than that: it tells of a mark that had passed by
    then."""
    ends = {one.number: _would_end(one, night) for one in sent}
    cut = [one for one in sent if ends[one.number] is None]
    end = max(_until(one) if (known := ends[one.number]) is None else known for one in sent)
    known50, known95 = (not cut or end > mark for mark in (told.p50, told.p95))
    in_p50, in_p95 = (not cut and end <= mark for mark in (told.p50, told.p95))
    return Coverage(route, int(known50), int(in_p50), int(known95), int(in_p95))


def _would_end(one: Sent, night: Night) -> float | None:
    """When it ended, or would have ended had it not been cut short; None where nobody knows.

    What a batch waited for room before it was sent is not part of what is told of it.
    """
    batch = next((each for each in night.batches if each.name == one.backend), None)
    if batch is None:
        return one.ended if one.rerouted is None else None
    if one.sent is None:
        return None
    natural = batch.answers(batch.ends(one.sent, one.number)) + batch.poll
    end = one.ended if one.rerouted is None else natural
    return None if end is None else end - one.sent + one.created


def _until(one: Sent) -> float:
    if one.rerouted is not None:
        return one.rerouted
    return math.inf if one.ended is None else one.ended


def added(many: Iterable[Sequence[Coverage]]) -> list[Coverage]:
    """Those of several nights or scenarios as one."""
    total = [Coverage(route) for route in ROUTES]
    for found in many:
        total = [one + other for one, other in zip(total, found, strict=True)] if found else total
    return total


def spelled_coverage(found: Sequence[Coverage]) -> str:
    """A line for each kind of route: told, ended by the p50 and by the p95."""
    lines = []
    for one in found:
        if one.known95:
            p50 = f"{one.by_p50 / one.known50:.1%} by the p50" if one.known50 else "none known at the p50"
            lines.append(f"  {one.route}: {one.known95:,} orders, {p50}, {one.by_p95 / one.known95:.1%} by the p95\n")
    return "".join(lines)
