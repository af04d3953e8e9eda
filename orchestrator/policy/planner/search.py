"""Enumeration of candidate plans, and the choice of the best plan.

The candidates depend on neither deadline nor budget, so more time or money never makes a plan worse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.policy.planner.batch_shares import BatchShare, most_rows
from orchestrator.policy.planner.candidate_plans import (
    WAITS,
    CandidatePlan,
    Judged,
    Sources,
    at_most,
    chance_of,
    judge,
    lateness,
)
from orchestrator.policy.planner.capacity import Capacity, Rows
from orchestrator.policy.planner.types import NOTHING, SLIPS, BatchOption, Cost, Terms

PARTS = 8
"""Number of equal parts into which rows are divided between batches and synchronous routes."""
COARSE_WAITS = frozenset(WAITS[::3])
"""Reroute times to try if every candidate is late. They are fewer than `WAITS`, to save time."""
MIN_CHANCE = 0.1
"""Chances below this count as 0."""


class Position(Struct, frozen=True):
    """Starting point of the search: the places of a job's rows.

    `held` counts rows by option. `coming` rows are free within `free_in` seconds. Rows of `sources` count as waiting,
    although an option still holds them. See `types.Open` and `CandidatePlan`.
    """

    waiting: int
    rerouted: int
    coming: int
    free_in: float
    batch_shares: tuple[BatchShare, ...]
    held: Rows
    cancel: tuple[str, ...] = ()
    sources: Sources = ()
    usually_free_in: float | None = None
    sunk: Cost = NOTHING
    slips: float = SLIPS
    left: tuple[str, ...] = ()

    def others(self, batches: Sequence[BatchOption]) -> list[BatchOption]:
        """Return the batch options that may get rerouted rows."""
        return [option for option in batches if self.left and option.backend not in self.left]


class Chosen(Struct, frozen=True):
    """A candidate plan with its figures. `value` is the expected cost plus the cost of being late.

    `holds` is True if the plan meets the target. Without batches, `holds` assumes that running cancels take about as
    long as planned.
    """

    candidate: CandidatePlan
    expected: float
    value: float
    at_most: Decimal
    chance: float
    holds: bool


def best(
    position: Position,
    batches: Sequence[BatchOption],
    capacity: Capacity,
    terms: Terms,
    *,
    all_fallbacks: bool = True,
) -> Chosen | None:
    """Return the cheapest candidate that holds. If no candidate holds, return the likeliest within the budget, or
    None.

    With `late_cost`, lateness is part of the price. Of equally cheap candidates, the candidate with the least
    `effort` wins. The fallback of a candidate is its cheapest synchronous options, to which rows may be rerouted. If
    `all_fallbacks` is False, only two fallbacks are tried: all synchronous options, and no option. All fallbacks are
    tried anyway if there is a budget or no candidate holds.
    """
    full = len(capacity.sync_options)
    every = range(full + 1)
    fallbacks = every if all_fallbacks or terms.budget is not None else sorted({0, full})
    judged = _judge_all(_candidates(position, batches, capacity, fallbacks), capacity, terms)
    found = _cheapest(judged, capacity, terms)
    if found is not None:
        return _add_fallback(found, judged, capacity, terms)
    return _likeliest(_candidates(position, batches, capacity, every), capacity, terms)


def holding(position: Position, batches: Sequence[BatchOption], capacity: Capacity, terms: Terms) -> Chosen | None:
    """Return the cheapest candidate that meets the deadline and the budget, or None."""
    fallbacks = range(len(capacity.sync_options) + 1)
    return _cheapest(
        _judge_all(_candidates(position, batches, capacity, fallbacks), capacity, terms), capacity, terms
    )


def _judge_all(candidates: Iterable[CandidatePlan], capacity: Capacity, terms: Terms) -> list[Judged]:
    """Return each candidate at each reroute time at which it holds. With `late_cost`, return it at every reroute
    time.
    """
    late = terms.late_cost is not None
    return [one for candidate in candidates for one in judge(candidate, capacity, terms, late=late)]


def _cheapest(judged: Iterable[Judged], capacity: Capacity, terms: Terms) -> Chosen | None:
    late = terms.late_cost is not None
    # The simplest of equally good candidates wins.
    in_turn = sorted(judged, key=lambda one: (round(one.value, 9), one.candidate.effort))
    affordable = (chosen for one in in_turn if (chosen := _choose_affordable(one, capacity, terms)))
    return next((chosen for chosen in affordable if chosen.holds or late), None)


def _add_fallback(chosen: Chosen, judged: Iterable[Judged], capacity: Capacity, terms: Terms) -> Chosen:
    """Add a reroute to a plan that relies on batches alone, if the budget covers the reroute."""
    candidate = chosen.candidate
    if not candidate.batch_shares or candidate.reroute_after is not None or terms.late_cost is not None:
        return chosen
    same = [
        one for one in judged if one.candidate.fallback
        and one.candidate.batch_shares == candidate.batch_shares and one.candidate.new == candidate.new
    ]  # fmt: skip
    same.sort(key=lambda one: (round(one.value, 9), one.candidate.fallback))
    affordable = (_choose_affordable(one, capacity, terms) for one in same)
    with_fallback = next((chosen for chosen in affordable if chosen is not None and chosen.holds), None)
    if with_fallback is None or with_fallback.chance < chosen.chance:
        return chosen
    return replace(with_fallback, expected=chosen.expected, value=chosen.value)


def _likeliest(candidates: Iterable[CandidatePlan], capacity: Capacity, terms: Terms) -> Chosen | None:
    """Return the candidate with the best chance. If every chance is negligible, return the candidate that is least
    late.
    """
    judged = (one for candidate in candidates for one in judge(candidate, capacity, terms, late=True))
    some = (one for one in judged if one.reroute_after is None or one.reroute_after in COARSE_WAITS)
    affordable = [chosen for one in some if (chosen := _choose_affordable(one, capacity, terms))]
    return min(
        affordable,
        key=lambda one: (
            -_comparable_chance(one.chance),
            _lateness_steps(one, capacity),
            round(one.expected, 9),
            one.candidate.effort,
        ),
        default=None,
    )


def _comparable_chance(chance: float) -> float:
    """Round a chance for comparison. A negligible chance counts as 0, so that lateness decides."""
    return round(chance, 2) if chance >= MIN_CHANCE else 0.0


def _lateness_steps(one: Chosen, capacity: Capacity) -> int:
    """Return the expected lateness in steps of 10 %, so that smaller differences do not decide. Up to a minute is
    step 0.
    """
    late = lateness(one.candidate, capacity)
    return 0 if late <= 60.0 else math.ceil(math.log(late, 1.1)) if math.isfinite(late) else 10**6


def _choose_affordable(one: Judged, capacity: Capacity, terms: Terms) -> Chosen | None:
    candidate = one.whole
    most = at_most(candidate, capacity)
    if terms.budget is not None and most > terms.budget:
        return None
    chance = chance_of(candidate, capacity)
    holds = one.holds and (candidate.reroute_after is None or chance >= capacity.target)
    return Chosen(candidate, one.expected, one.value, most, chance, holds)


def _candidates(
    position: Position, batches: Sequence[BatchOption], capacity: Capacity, fallbacks: Iterable[int]
) -> Iterator[CandidatePlan]:
    at = position
    others = tuple(option for option in batches if option.backend not in at.left)
    for fallback in fallbacks:
        for bets in _bets(at, batches):
            sent = at.waiting - sum(batch_share.rows for batch_share in bets) + at.rerouted
            if (sent or at.coming) and not fallback:
                continue
            batch_shares = (*at.batch_shares, *bets)
            for new, held in _synchronous_rows(at, sent, fallback, capacity):
                yield CandidatePlan(
                    batch_shares, new, held, at.coming, at.free_in, fallback, None, len(bets), at.cancel, at.sources,
                    at.usually_free_in, at.sunk, at.slips, others,
                )  # fmt: skip


def _bets(position: Position, batches: Sequence[BatchOption]) -> Iterator[tuple[BatchShare, ...]]:
    """Yield divisions of rows into batches. Rerouted rows never return to a backend that the job has left."""
    yield ()
    others = position.others(batches) if position.rerouted else []
    yield from _divisions(position.waiting + position.rerouted, others)
    yield from _divisions(position.waiting, [option for option in batches if option not in others])


def _divisions(rows: int, batches: Sequence[BatchOption]) -> Iterator[tuple[BatchShare, ...]]:
    """Yield ways to send some or all parts of the rows to batches.

    Each way uses one backend, or several backends with the cheapest first.
    """
    parts = sorted({-(-rows * part // PARTS) for part in range(1, PARTS + 1)} - {0})
    for option in batches:
        fit = [rows for rows in parts if option.least <= rows <= most_rows(option)]
        yield from ((BatchShare(option, rows),) for rows in fit)
    if any(option.room is not None for option in batches) and len(batches) > 1:
        for rows in parts:
            spilled = _spill(rows, batches)
            if len(spilled) > 1:
                yield spilled


def _spill(rows: int, batches: Sequence[BatchOption]) -> tuple[BatchShare, ...]:
    shares = []
    for option in sorted(batches, key=lambda one: one.cost.p50):
        taken = rows if option.room is None else min(rows, option.room)
        if taken >= option.least:
            shares.append(BatchShare(option, taken))
            rows -= taken
    return tuple(shares) if not rows else ()


def _synchronous_rows(
    position: Position, rows: int, fallback: int, capacity: Capacity
) -> Iterator[tuple[Rows, Rows]]:
    """Yield the rows to send to synchronous options, and the rows that the options then hold.

    A cheap option gets as many rows as its median pace allows, if other options can take over what a low pace would
    leave. Otherwise, it gets as many as its low pace allows. It gets as many as its high pace allows if a batch would
    do the rest later.
    """
    if not rows:
        yield (0,) * len(capacity.sync_options), position.held
        return
    for hopeful, sure in ((True, False), (False, False), (False, True)):
        new = capacity.fill(rows, capacity.room(position.held, 0.0, fallback, sure=sure, hopeful=hopeful))
        held = tuple(a + b for a, b in zip(position.held, new, strict=True))
        if sure or capacity.fits(position.coming, held, max(WAITS[0], position.free_in), fallback):
            yield new, held
            if not hopeful or math.isinf(capacity.budget):
                return
