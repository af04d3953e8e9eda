"""The deadline guard: `replan` looks at a job whose rows are open and says what to do now. Pure, and cheap."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.counts import number_of, number_that
from orchestrator.core.durations import duration
from orchestrator.policy.planner.batch_shares import BatchShare, done_by
from orchestrator.policy.planner.candidate_plans import WAITS, CandidatePlan, Sources, arrival, chance_of
from orchestrator.policy.planner.capacity import DETECTED, Capacity, Rows
from orchestrator.policy.planner.cheaper_hours import priced, starts
from orchestrator.policy.planner.checks import check
from orchestrator.policy.planner.explanations import clock
from orchestrator.policy.planner.planning_problem import (
    batches_of,
    capacity_of,
    cost_of_later,
    less,
    money,
    objection,
    reroute_of,
)
from orchestrator.policy.planner.search import LITTLE, Chosen, Position, best
from orchestrator.policy.planner.types import (
    SLIPS,
    BatchOption,
    Cost,
    Decision,
    Open,
    Option,
    Running,
    Send,
    SynchronousOption,
    Terms,
)

SPARE = 0.03
"""Rows leave an option for a batch where they are more than this part of what it holds, and it saves as much."""
SURER = 0.05
"""And where nothing holds, for so much more chance."""
EVEN = 0.5
"""In either case only for a batch that is likelier to be done in time than to be rerouted itself."""
SOONER = 0.2
"""Where it is late anyway, rows change places only for so much less time."""
HELPS = 0.02
"""And before that for so much more chance."""
SOONEST, LATEST = 30.0, 1800.0
WATCHED = DETECTED / 2
"""How often options are checked that others could take over from."""


class _Board(Struct, frozen=True):
    """A job as it lies: the capacity, the batches it may still use, what is held, and what must leave where it is."""

    ours: Capacity
    batches: list[BatchOption]
    by_name: dict[str, Option]
    held: Rows
    barred: Sources
    terms: Terms

    def best(self, position: Position) -> Chosen | None:
        """The best candidate plan from a position."""
        return best(position, self.batches, self.ours, self.terms, every=False)

    def best_of_all(self, position: Position) -> Chosen | None:
        """The best, also of those in which rows leave the option that has them."""
        return _cheaper(position, self, _spared(position, self, self.best(position)))


def replan(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision:
    """What to do with a job's open rows at this look.

    Every backend that holds some of them must be among the options; where it has an objection, its rows leave it, and
    batches there run on. Raises KeyError for a backend that is not among them, ValueError for figures that
    are none. Rows that wait go on waiting for a cheaper hour if the target is kept all the same.
    """
    check(options, terms, now, job)
    found = best = _replan(job, priced(options, _all(job)), terms, now)
    if not job.waiting or job.rerouted or job.coming or found.cancel or any(one.source for one in found.sends):
        return found
    held = dict(job.synchronous)
    if any(isinstance(one, SynchronousOption) and one.cost_steps and held.get(one.backend) for one in options):
        return found  # what is done meanwhile costs the price of now
    for start, then in starts(options, terms, now):
        # Batches that run are taken to be as young then as now, and so to have less time.
        young = tuple(replace(one, submitted_at=one.submitted_at + (start - now)) for one in job.running)
        later = _replan(replace(job, running=young), priced(then, _all(job)), terms, start)
        is_sure = bool(later.sends) and later.chance >= terms.target
        if is_sure and (best.chance < terms.target or later.expected < best.expected):
            best = _wait(later, found, start, now)
    return best


def _all(job: Open) -> int:
    there = sum(rows for _, rows in job.synchronous) + sum(one.rows for one in job.running)
    return job.waiting + job.rerouted + job.coming + there


def _wait(later: Decision, found: Decision, start: datetime, now: datetime) -> Decision:
    """Send nothing until then."""
    saved = f", which saves {1 - later.expected / found.expected:.0%}" if found.expected > later.expected else ""
    why = f"rows wait until {clock(start, now)}{saved}; {later.chance:.1%} likely to be in time"
    look = min(start, now + timedelta(seconds=LATEST))
    return Decision((), (), why, look, later.chance, later.expected, later.reroute, waits=True)


def _replan(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision:
    """What to do if all that waits is sent now."""
    board = _board(job, options, terms, now)
    chosen = _rerouting(job, board, now)
    if chosen is None:
        return _nothing(job, board, now)
    candidate, ours = chosen.candidate, board.ours
    moves = _moves(chosen, ours)
    return Decision(
        candidate.cancel,
        (*_sends(job, candidate, ours), *moves),
        _reason(job, chosen, moves, ours),
        now + timedelta(seconds=_look(candidate, ours)),
        chosen.chance,
        money(chosen.expected) + cost_of_later(job.later, options, terms, job.later_cost).p50,
        reroute_of(candidate, ours, now),
    )


def _nothing(job: Open, board: _Board, now: datetime) -> Decision:
    """No candidate plan is within the budget: what runs goes on as far as the budget reaches, row by row."""
    at = _position(job, board, job.running, 0, now)
    candidate = CandidatePlan(at.batch_shares, (0,) * len(at.held), at.held, at.coming, at.free_in, 0, None)
    waits = job.waiting + job.rerouted + job.coming > 0
    chance = 0.0 if waits else chance_of(candidate, board.ours)
    why = "nothing else fits the budget"
    return Decision((), (), why, now + timedelta(seconds=LATEST), chance, money(0.0), None)


def _look(candidate: CandidatePlan, ours: Capacity) -> float:
    """Seconds until the next look: well before anything would have to be done as things stand."""
    due = ours.horizon / 8
    if candidate.reroute_after is not None:
        due = min(due, candidate.reroute_after / 3)
    if any(candidate.held):
        due = min(due, ours.slack(candidate.coming, candidate.held, candidate.free_in, candidate.fallback) / 2)
        if candidate.fallback > 1:
            due = min(due, WATCHED)
    if any(batch_share.option.silent > 0 for batch_share in candidate.batch_shares):
        due = min(due, WATCHED)
    return min(LATEST, max(SOONEST, due))


def _board(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> _Board:
    usable = [option for option in options if objection(option, terms) is None]
    ours = capacity_of(usable, terms, now, job.later, job.claims)
    by_name = {option.backend: option for option in options}
    synchronous = dict(job.synchronous)
    held = tuple(synchronous.pop(sync.option.backend, 0) for sync in ours.sync_options)
    unknown = [backend for backend in synchronous if backend not in by_name]
    if unknown:
        raise KeyError(unknown[0])
    within = less(terms, cost_of_later(job.later, options, terms, job.later_cost))
    sendable = [one for one in batches_of(usable) if one.silent <= 0]
    return _Board(ours, sendable, by_name, held, tuple(synchronous.items()), within)


def _rerouting(job: Open, board: _Board, now: datetime) -> Chosen | None:
    """The best candidate plan; where it would reroute within the minute, that is now: the one with most rows left
    where that is cheaper than to wait and leaves the rest sure, else all of them."""
    running = sorted(job.running, key=lambda one: (-one.rows, one.batch))
    at = _position(job, board, running, 0, now)
    found = board.best_of_all(at)
    soon = (
        found is not None and found.candidate.reroute_after is not None and found.candidate.reroute_after <= WAITS[0]
    )
    if found is None or not running or (found.holds and not soon):
        return found
    if found.holds and len(running) > 1:
        one = board.best_of_all(_position(job, board, running, 1, now))
        if one and one.holds and one.value < found.value:
            return one
    everything = board.best_of_all(_position(job, board, running, len(running), now))
    if everything is None:
        return found
    likelier = board.terms.late_cost is None and everything.chance > found.chance + SURER
    return everything if soon or everything.holds or likelier else found


def _spared(position: Position, board: _Board, found: Chosen | None) -> Chosen | None:
    """The same, with what options will not do in time free to move: a batch is cheaper than a late reroute."""
    held, sync_options, horizon = board.held, board.ours.sync_options, board.ours.horizon
    does = [sync.between(0.0, max(0.0, horizon), sync.rate) for sync in sync_options]
    spare = [max(0, math.ceil(rows - done)) for rows, done in zip(held, does, strict=True)]
    if not board.batches or sum(spare) <= SPARE * sum(held):
        return found
    other = board.best(_leaving(position, board, spare, to_batches=True))
    if other is None or not _is_better(other, found, board.terms):
        return found
    return other if done_by(other.candidate.unsent, other.candidate.reroute_after or horizon) >= EVEN else found


def _cheaper(position: Position, board: _Board, found: Chosen | None) -> Chosen | None:
    """The same, with rows of dear options free to move to cheaper ones that have nothing else to do."""
    if found is None or not found.holds or found.candidate.sources != position.sources:
        return found
    room = board.ours.room(found.candidate.held, 0.0, len(board.held), sure=False)
    dear = [0] * len(board.held)
    for place, (sync, rows) in enumerate(zip(board.ours.sync_options, board.held, strict=True)):
        less_dear = zip(board.ours.sync_options, room, strict=True)
        dear[place] = min(rows, int(sum(free for other, free in less_dear if other.price < sync.price)))
    if sum(dear) <= SPARE * sum(board.held):
        return found
    other = board.best(_leaving(position, board, dear, to_batches=False))
    return other if other is not None and _is_better(other, found, board.terms) else found


def _leaving(position: Position, board: _Board, rows: Sequence[int], *, to_batches: bool) -> Position:
    """The same with so many rows of each option free to go elsewhere."""
    each = zip(board.ours.sync_options, rows, strict=True)
    leaving = tuple((sync.option.backend, many) for sync, many in each if many)
    return replace(
        position,
        waiting=position.waiting + to_batches * sum(rows),
        rerouted=position.rerouted + (not to_batches) * sum(rows),
        held=tuple(a - b for a, b in zip(board.held, rows, strict=True)),
        sources=(*position.sources, *leaving),
    )


def _is_better(other: Chosen, than: Chosen | None, terms: Terms) -> bool:
    if than is None:
        return True
    if terms.late_cost is not None or than.holds:
        return other.holds >= than.holds and other.value < than.value * (1.0 - SPARE)
    return other.chance > than.chance + SURER or (other.holds and other.chance >= than.chance)


def _position(job: Open, board: _Board, running: Sequence[Running], many: int, now: datetime) -> Position:
    """Where the rows are once so many of the running batches are cancelled."""
    gone, kept = running[:many], running[many:]
    batch_shares: dict[str, BatchShare] = {}
    for one in kept:
        option, age = _batch(board, one), max(0.0, (now - one.submitted_at).total_seconds())
        same = batch_shares.get(one.backend)
        # The youngest of a backend's batches tells least, so all are taken to be as young.
        rows, age = (one.rows + same.rows, min(age, same.age)) if same else (one.rows, age)
        owed = (same.owed if same else 0) + _owed(one, option)
        batch_shares[one.backend] = BatchShare(option, rows, age, owed=owed)
    free_in = max(0.0, (job.coming_at - now).total_seconds()) if job.coming_at else 0.0
    latency = [_batch(board, one).cancel_seconds for one in gone]
    usual = [option.cancel_usual or option.cancel_seconds for option in (_batch(board, one) for one in gone)]
    return Position(
        job.waiting + sum(rows for _, rows in board.barred),
        job.rerouted,
        job.coming + sum(one.rows for one in gone),
        max(free_in, *latency) if latency else free_in,
        tuple(batch_shares.values()),
        board.held,
        tuple(one.batch for one in gone),
        board.barred,
        max(free_in, *usual) if usual else free_in,
        _sunk(gone, board),
        max((_batch(board, one).slips for one in gone), default=SLIPS),
    )


def _owed(running: Running, option: BatchOption) -> int:
    """Rows of a batch that are paid for though it is given up: a silent provider goes on with it."""
    return running.rows if running.is_over or option.silent > 0 else 0


def _sunk(gone: Sequence[Running], board: _Board) -> Cost:
    """What is paid for batches that are given up."""
    p50 = p95 = Decimal(0)
    for one in gone:
        option = _batch(board, one)
        p50 += _owed(one, option) * option.cost.p50
        p95 += _owed(one, option) * option.cost.p95
    return Cost(p50, p95)


def _batch(board: _Board, running: Running) -> BatchOption:
    option = board.by_name[running.backend]
    assert isinstance(option, BatchOption)
    return option


def _sends(job: Open, candidate: CandidatePlan, ours: Capacity) -> list[Send]:
    """What goes where. Batches take what waits before what leaves an option, and nothing that was rerouted."""
    pool: deque[tuple[str | None, int]] = deque([(None, job.waiting), *candidate.sources, (None, job.rerouted)])
    sends = [send for bet in candidate.unsent for send in _taken(pool, bet.rows, bet.option.backend, from_end=False)]
    for sync, rows in zip(ours.sync_options, candidate.new, strict=True):
        sends += _taken(pool, rows, sync.option.backend, from_end=True)
    # Rows that stay where they are have not moved.
    return [send for send in sends if send.source != send.backend]


def _taken(pool: deque[tuple[str | None, int]], rows: int, backend: str, *, from_end: bool) -> list[Send]:
    sends = []
    while rows:
        source, many = pool.pop() if from_end else pool.popleft()
        taken = min(rows, many)
        rows -= taken
        if many > taken:
            (pool.append if from_end else pool.appendleft)((source, many - taken))
        if taken:
            sends.append(Send(taken, backend, source))
    return sends


def _moves(chosen: Chosen, ours: Capacity) -> list[Send]:
    """Rows that leave an option which does not keep up, once the others could not take them over later."""
    candidate = chosen.candidate
    there, held, fallback = candidate.before, candidate.held, candidate.fallback
    burden = candidate.coming + (0 if candidate.reroute_after is None else candidate.in_batches)
    leave = ours.leave(there)
    later = max(2 * SOONEST + leave, arrival(candidate))
    if not fallback or not any(there) or (ours.horizon > 0 and ours.fits(burden, held, later, fallback)):
        return []
    kept = [
        min(rows, int(sync.between(0.0, ours.until(place, fallback), sync.low))) if place < fallback else rows
        for place, (sync, rows) in enumerate(zip(ours.sync_options, held, strict=True))
    ]
    more = ours.fill(sum(held) - sum(kept), ours.room(kept, leave, fallback, sure=True))
    after = [a + b for a, b in zip(kept, more, strict=True)]
    helps = chosen.holds or _helps(candidate, after, later, burden, ours)
    return _between(there, held, after, ours) if helps else []


def _helps(candidate: CandidatePlan, after: Sequence[int], later: float, burden: float, ours: Capacity) -> bool:
    """Whether it is worth moving rows though nothing holds: what is moved starts anew."""
    held, fallback = candidate.held, candidate.fallback
    if sum(max(0, b - a) for a, b in zip(held, after, strict=True)) < SPARE * sum(held):
        return False
    before = 0.0 if ours.horizon <= 0 else ours.chance(burden, held, later, fallback)
    if before < LITTLE:
        return ours.slowest(after) <= (1.0 - SOONER) * ours.slowest(held)
    return ours.chance(burden, after, later, fallback) >= before + min(HELPS, (1.0 - before) / 5)


def _between(there: Rows, before: Sequence[int], after: Sequence[int], ours: Capacity) -> list[Send]:
    """The sends that lead from rows by option to others; no option gives more than is `there`."""
    names = [sync.option.backend for sync in ours.sync_options]
    gives = {
        name: min(a - b, most) for name, a, b, most in zip(names, before, after, there, strict=True) if a > b and most
    }
    sends = []
    for name, a, b in zip(names, before, after, strict=True):
        lacks = b - a
        for source, rows in gives.items():
            if lacks > 0 and (taken := min(lacks, rows)):
                sends.append(Send(taken, name, source))
                gives[source] -= taken
                lacks -= taken
    return sends


def _reason(job: Open, chosen: Chosen, moves: Sequence[Send], ours: Capacity) -> str:
    candidate, horizon = chosen.candidate, ours.horizon
    if horizon <= 0:
        return "the deadline has passed; open rows go where they finish soonest"
    told = f"{chosen.chance:.1%} likely to be in time"
    if candidate.cancel:
        rows = sum(one.rows for one in job.running if one.batch in candidate.cancel)
        why = "later, the rest might not finish in time" if chosen.holds else "that is likelier than waiting"
        return f"{number_of(rows, 'row')} rerouted from {_named(candidate.cancel)}: {why}; {told}"
    if moves:
        rows, places = sum(one.rows for one in moves), sorted({one.source for one in moves if one.source})
        leave, them = number_that(rows, "row", "leave"), "it" if rows == 1 else "them"
        return f"{leave} {_named(places)}, which would not finish {them} in time; {told}"
    if not chosen.holds:
        return f"nothing is more likely to be in time; {told}"
    if candidate.reroute_after is not None and candidate.batch_shares:
        latest = duration(candidate.reroute_after)
        return f"there is time: batches still running are cancelled and rerouted in {latest} at the latest; {told}"
    return f"on its way; {told}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} batches"
