"""Which candidate plans there are, and the best of them.

The choices depend neither on the deadline nor on the budget, so more of either can only help.
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
"""Into how many parts rows are cut to be shared by batches and synchronous routes."""
FEW = frozenset(WAITS[::3])
"""The reroutes that are thought of where none is in time."""
LITTLE = 0.1
"""Less of a chance than this is none."""


class Position(Struct, frozen=True):
    """Where a job's rows are; `held` by option, `coming` ones are free in `free_in` seconds.

    Those of `sources` wait, but in an option as yet. See `values.Open` and `candidate_plans.CandidatePlan`.
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


class Chosen(Struct, frozen=True):
    """A candidate plan with its figures; `value` is what is expected, and what being late costs.

    One that `holds` is in time with the chance asked for, as far as it has a say in that: what is on its way from
    batches that were cancelled before comes when it comes.
    """

    candidate: CandidatePlan
    expected: float
    value: float
    at_most: Decimal
    chance: float
    holds: bool


def best(
    position: Position, batches: Sequence[BatchOption], capacity: Capacity, terms: Terms, *, every: bool = True
) -> Chosen | None:
    """The cheapest candidate plan that holds the deadline within the budget; else the likeliest within it, or None.

    Where being late has a price, the cheapest with that price. Of equals the first wins. Unless `every` is asked for,
    a candidate plan may come to need all options (fewer matter to the budget alone).
    """
    full = len(capacity.sync_options)
    fallbacks = range(full + 1) if every or terms.budget is not None else {full, 0}
    candidates = list(_candidates(position, batches, capacity, fallbacks))
    judged = _judged(candidates, capacity, terms)
    found = _cheapest(judged, capacity, terms)
    return _with_net(found, judged, capacity, terms) if found else _likeliest(candidates, capacity, terms)


def holding(position: Position, batches: Sequence[BatchOption], capacity: Capacity, terms: Terms) -> Chosen | None:
    """The cheapest candidate plan that holds the deadline within the budget, if there is one."""
    fallbacks = range(len(capacity.sync_options) + 1)
    return _cheapest(_judged(_candidates(position, batches, capacity, fallbacks), capacity, terms), capacity, terms)


def _judged(candidates: Iterable[CandidatePlan], capacity: Capacity, terms: Terms) -> list[Judged]:
    """The candidate plans with their reroutes that hold; where being late has a price, all of them."""
    late = terms.late_cost is not None
    return [one for candidate in candidates for one in judge(candidate, capacity, terms, late=late)]


def _cheapest(judged: Iterable[Judged], capacity: Capacity, terms: Terms) -> Chosen | None:
    late = terms.late_cost is not None
    # Of equally dear ones the simplest.
    in_turn = sorted(judged, key=lambda one: (round(one.value, 9), one.candidate.effort))
    affordable = (chosen for one in in_turn if (chosen := _affordable(one, capacity, terms)))
    return next((chosen for chosen in affordable if chosen.holds or late), None)


def _with_net(found: Chosen, judged: Iterable[Judged], capacity: Capacity, terms: Terms) -> Chosen:
    """The same, with a reroute where it counts on batches alone and the budget pays for one: it will be made."""
    candidate = found.candidate
    if not candidate.batch_shares or candidate.reroute_after is not None or terms.late_cost is not None:
        return found
    same = [
        one for one in judged if one.candidate.fallback
        and one.candidate.batch_shares == candidate.batch_shares and one.candidate.new == candidate.new
    ]  # fmt: skip
    same.sort(key=lambda one: (round(one.value, 9), one.candidate.fallback))
    net = next((net for one in same if (net := _affordable(one, capacity, terms)) and net.holds), None)
    if net is None or net.chance < found.chance:
        return found
    return replace(net, expected=found.expected, value=found.value)


def _likeliest(candidates: Iterable[CandidatePlan], capacity: Capacity, terms: Terms) -> Chosen | None:
    """The one that is in time with the best chance; where there is next to none, the one that is least late."""
    judged = (one for candidate in candidates for one in judge(candidate, capacity, terms, late=True))
    some = (one for one in judged if one.reroute_after is None or one.reroute_after in FEW)
    found = [chosen for one in some if (chosen := _affordable(one, capacity, terms))]
    return min(
        found,
        key=lambda one: (-_worth(one.chance), _tenths(one, capacity), round(one.expected, 9), one.candidate.effort),
        default=None,
    )


def _worth(chance: float) -> float:
    """A chance as far as it counts: next to none is none, and less late is worth more."""
    return round(chance, 2) if chance >= LITTLE else 0.0


def _tenths(one: Chosen, capacity: Capacity) -> int:
    """How late it is expected to be, in steps of a tenth: less does not matter."""
    late = lateness(one.candidate, capacity)
    return 0 if late <= 60.0 else math.ceil(math.log(late, 1.1)) if math.isfinite(late) else 10**6


def _affordable(one: Judged, capacity: Capacity, terms: Terms) -> Chosen | None:
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
    for fallback in fallbacks:
        for bets in _bets(at.waiting, batches):
            sent = at.waiting - sum(batch_share.rows for batch_share in bets) + at.rerouted
            if (sent or at.coming) and not fallback:
                continue
            batch_shares = (*at.batch_shares, *bets)
            for new, held in _sent(at, sent, fallback, capacity):
                yield CandidatePlan(
                    batch_shares, new, held, at.coming, at.free_in, fallback, None, len(bets), at.cancel, at.sources,
                    at.usually_free_in, at.sunk, at.slips,
                )  # fmt: skip


def _bets(waiting: int, batches: Sequence[BatchOption]) -> Iterator[tuple[BatchShare, ...]]:
    """What of the waiting rows goes to batches: nothing, or so many parts to one backend, or to all as far as there
    is room, the cheapest first."""
    yield ()
    if not waiting:
        return
    parts = sorted({-(-waiting * part // PARTS) for part in range(1, PARTS + 1)})
    for option in batches:
        fit = [rows for rows in parts if rows <= most_rows(option)]
        yield from ((BatchShare(option, rows, kept=option.kept),) for rows in fit)
    if any(option.room is not None for option in batches) and len(batches) > 1:
        for rows in parts:
            spilled = _spilled(rows, batches)
            if len(spilled) > 1:
                yield spilled


def _spilled(rows: int, batches: Sequence[BatchOption]) -> tuple[BatchShare, ...]:
    found = []
    for option in sorted(batches, key=lambda one: one.cost.p50):
        many = rows if option.room is None else min(rows, option.room)
        if many > 0:
            found.append(BatchShare(option, many, kept=option.kept))
            rows -= many
    return tuple(found) if not rows else ()


def _sent(position: Position, rows: int, fallback: int, capacity: Capacity) -> Iterator[tuple[Rows, Rows]]:
    """Rows that go to options now, and what the options hold then.

    As much to the cheap ones as they usually do, where the others can still take over what they turn out not to do;
    else what they surely do.
    """
    if not rows:
        yield (0,) * len(capacity.sync_options), position.held
        return
    for sure in (False, True):
        new = capacity.fill(rows, capacity.room(position.held, 0.0, fallback, sure=sure))
        held = tuple(a + b for a, b in zip(position.held, new, strict=True))
        if sure or capacity.fits(position.coming, held, max(WAITS[0], position.free_in), fallback):
            yield new, held
            return
