"""Which courses there are, and the best of them.

The choices depend neither on the deadline nor on the budget, so more of either can only help.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.planner.courses import WAITS, Course, Judged, Stake, at_most, chance_of, judge
from orchestrator.planner.ground import Ground, Rows
from orchestrator.planner.values import BatchOption, Terms

PARTS = 12
"""Into how many parts rows are cut to be shared by batches and paced routes."""
PATIENCE = 1.01
"""Pulling back cannot be undone: the guard waits where that is expected to cost no more than this much."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a job's rows are; `held` by lane, `coming` ones are free in `free_in` seconds. See `values.Open`."""

    waiting: int
    pulled: int
    coming: int
    free_in: float
    stakes: tuple[Stake, ...]
    held: Rows
    cancel: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """A course with its figures; `value` is what is expected, and what being late costs."""

    course: Course
    expected: float
    value: float
    at_most: Decimal
    chance: float
    holds: bool


def best(position: Position, batches: Sequence[BatchOption], ground: Ground, terms: Terms) -> Chosen | None:
    """The cheapest course that holds the deadline within the budget; else the likeliest within it, None without any.

    Where being late has a price, the cheapest with that price. Of equals the first wins.
    """
    judged = _judged(position, batches, ground, terms, range(len(ground.lanes) + 1))
    return _cheapest(judged, ground, terms) or _likeliest(judged, ground, terms)


def holding(position: Position, batches: Sequence[BatchOption], ground: Ground, terms: Terms) -> Chosen | None:
    """The cheapest course that holds the deadline within the budget, if there is one."""
    judged = _judged(position, batches, ground, terms, range(len(ground.lanes) + 1))
    return _cheapest(judged, ground, terms)


def patient(position: Position, batches: Sequence[BatchOption], ground: Ground, terms: Terms) -> Chosen | None:
    """The best, but of those that cost about the same the one that waits longest."""
    full = len(ground.lanes)
    judged = _judged(position, batches, ground, terms, (full,) if terms.budget is None else range(full + 1))
    first = _cheapest(judged, ground, terms)
    if first is None:
        return _likeliest(judged, ground, terms)
    # By their pull alone: what goes where is chosen.
    later = (
        one
        for one in judged
        if one.value <= first.value * PATIENCE
        and _counts(one, terms)
        and _waits(one.pull) > _waits(first.course.pull)
        and (one.course.new, one.course.stakes) == (first.course.new, first.course.stakes)
    )
    for one in sorted(later, key=lambda one: -_waits(one.pull)):
        if chosen := _affordable(one, ground, terms):
            return chosen
    return first


def _waits(pull: float | None) -> float:
    return math.inf if pull is None else pull


def _counts(one: Judged, terms: Terms) -> bool:
    return one.holds or terms.late_cost is not None


def _judged(
    position: Position, batches: Sequence[BatchOption], ground: Ground, terms: Terms, covers: Iterable[int]
) -> list[Judged]:
    courses = _courses(position, batches, ground, terms, covers)
    return sorted((one for course in courses for one in judge(course, ground, terms)), key=lambda one: one.value)


def _cheapest(judged: Iterable[Judged], ground: Ground, terms: Terms) -> Chosen | None:
    counting = (one for one in judged if _counts(one, terms))
    return next((chosen for one in counting if (chosen := _affordable(one, ground, terms))), None)


def _likeliest(judged: Iterable[Judged], ground: Ground, terms: Terms) -> Chosen | None:
    found = [chosen for one in judged if (chosen := _affordable(one, ground, terms))]
    return max(found, key=lambda one: (round(one.chance, 3), -one.expected), default=None)


def _affordable(one: Judged, ground: Ground, terms: Terms) -> Chosen | None:
    course = one.whole
    most = at_most(course, ground)
    if terms.budget is not None and most > terms.budget:
        return None
    return Chosen(course, one.expected, one.value, most, chance_of(course, ground), one.holds)


def _courses(
    position: Position, batches: Sequence[BatchOption], ground: Ground, terms: Terms, covers: Iterable[int]
) -> Iterator[Course]:
    for cover in covers:
        for bets in _bets(position.waiting, batches):
            sent = position.waiting - sum(stake.rows for stake in bets) + position.pulled
            if (sent or position.coming) and not cover:
                continue
            new, held = _sent(position, sent, cover, ground)
            stakes = (*position.stakes, *bets)
            coming, free_in = position.coming, position.free_in
            yield Course(stakes, new, held, coming, free_in, cover, None, len(bets), position.cancel)
            if terms.hedge and bets and cover and not (sent or any(held) or position.stakes):
                new, held = _sent(position, position.waiting, cover, ground)
                yield Course(stakes, new, held, coming, free_in, cover, None, len(bets), both=True)


def _bets(waiting: int, batches: Sequence[BatchOption]) -> Iterator[tuple[Stake, ...]]:
    """What of the waiting rows goes to batches: nothing, or so many parts to one backend, or to all as far as there
    is room, the cheapest first."""
    yield ()
    if not waiting:
        return
    parts = sorted({-(-waiting * part // PARTS) for part in range(1, PARTS + 1)})
    for option in batches:
        yield from ((Stake(option, rows),) for rows in parts if rows >= option.min_rows)
    if any(option.room is not None for option in batches) and len(batches) > 1:
        for rows in parts:
            spilled = _spilled(rows, batches)
            if len(spilled) > 1:
                yield spilled


def _spilled(rows: int, batches: Sequence[BatchOption]) -> tuple[Stake, ...]:
    found = []
    for option in sorted(batches, key=lambda one: one.cost.p50):
        many = rows if option.room is None else min(rows, option.room)
        if many >= max(1, option.min_rows):
            found.append(Stake(option, many))
            rows -= many
    return tuple(found) if not rows else ()


def _sent(position: Position, rows: int, cover: int, ground: Ground) -> tuple[Rows, Rows]:
    """Rows that go to lanes now, and what the lanes hold then.

    As much to the cheap ones as they usually do, while the others can still take over what they turn out not to do;
    else what they surely do.
    """
    for sure in (False, True):
        new = (
            ground.fill(rows, ground.room(position.held, 0.0, cover, sure=sure)) if rows else (0,) * len(ground.lanes)
        )
        held = tuple(a + b for a, b in zip(position.held, new, strict=True))
        if ground.fits(position.coming, held, max(WAITS[0], position.free_in), cover):
            break
    return new, held
