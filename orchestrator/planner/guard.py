"""The deadline guard: `replan` looks at a job whose rows are open and says what to do now. Pure, and cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.durations import duration
from orchestrator.planner.courses import WAITS, Stake, arrival
from orchestrator.planner.ground import Ground, Rows
from orchestrator.planner.plan import batches_of, ground_of, money, objection, rescue_of
from orchestrator.planner.search import Chosen, Position, patient
from orchestrator.planner.values import BatchOption, Decision, Open, Option, Running, Send, Terms

SURER = 0.05
"""Where nothing holds, rows are moved only for so much more chance: what is moved starts anew."""
SOONEST, LATEST = 60.0, 1800.0


@dataclass(frozen=True, slots=True)
class _Board:
    """A job as it lies: the ground, the batches it may still use, what is held, and what must leave where it is."""

    ours: Ground
    batches: list[BatchOption]
    by_name: dict[str, Option]
    held: Rows
    barred: tuple[tuple[str, int], ...]


def replan(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision:
    """What to do with a job's open rows at this look.

    Every backend that holds some of them must be among the options; where it has an objection, its paced rows leave
    it, and batches there run on. Raises KeyError for a backend that is not among them.
    """
    board = _board(job, options, terms, now)
    chosen = _choose(job, board, terms, now)
    if chosen is None:
        why = "nothing more can be done within the budget" if job.rows else "every row has its outcome"
        return Decision((), (), why, now + timedelta(seconds=LATEST), 0.0 if job.rows else 1.0, money(0.0), None)
    course = chosen.course
    sends = [Send(stake.rows, stake.option.backend) for stake in course.stakes[len(course.stakes) - course.bets :]]
    sends += _sends(course.new, board)
    moves, chance = _moves(chosen, board)
    rescue = rescue_of(course, board.ours, now)
    look = course.pull / 3 if course.pull is not None else max(0.0, board.ours.horizon) / 8
    return Decision(
        course.cancel,
        (*sends, *moves),
        _reason(job, chosen, moves, board),
        now + timedelta(seconds=min(LATEST, max(SOONEST, look))),
        chance,
        money(chosen.expected),
        rescue,
    )


def _board(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> _Board:
    usable = [option for option in options if objection(option, terms) is None]
    ours = ground_of(usable, terms, now)
    by_name = {option.backend: option for option in options}
    paced = dict(job.paced)
    held = tuple(paced.pop(lane.option.backend, 0) for lane in ours.lanes)
    unknown = [backend for backend in paced if backend not in by_name]
    if unknown:
        raise KeyError(unknown[0])
    return _Board(ours, batches_of(usable), by_name, held, tuple(paced.items()))


def _choose(job: Open, board: _Board, terms: Terms, now: datetime) -> Chosen | None:
    """The best course that cancels nothing, unless what it would cancel within the minute, or cannot hold, is better
    cancelled now: as few batches as need be."""
    running = sorted(job.running, key=lambda one: (-one.rows, one.batch))
    chosen = patient(_position(job, board, running, 0, now), board.batches, board.ours, terms)
    if not running or (chosen and chosen.holds and (chosen.course.pull is None or chosen.course.pull > WAITS[0])):
        return chosen
    many, found = 1, chosen
    while many <= len(running):
        other = patient(_position(job, board, running, many, now), board.batches, board.ours, terms)
        if other and _is_better(other, found, terms):
            found = other
            if other.holds:
                break
        many = len(running) if len(running) > many > len(running) // 2 else many * 2
    return found


def _is_better(other: Chosen, than: Chosen | None, terms: Terms) -> bool:
    if than is None:
        return True
    if terms.late_cost is not None:
        return other.value < than.value
    if other.holds != than.holds:
        return other.holds
    return other.value < than.value if other.holds else other.chance > than.chance + SURER


def _position(job: Open, board: _Board, running: Sequence[Running], many: int, now: datetime) -> Position:
    """Where the rows are once so many of the running batches are cancelled."""
    gone, kept = running[:many], running[many:]
    free_in = (job.coming_at - now).total_seconds() if job.coming and job.coming_at else 0.0
    for one in gone:
        free_in = max(free_in, _batch(board, one).cancel_seconds)
    stakes: dict[str, Stake] = {}
    for one in kept:
        option, age = _batch(board, one), (now - one.submitted_at).total_seconds()
        same = stakes.get(one.backend)
        # The youngest of a backend's batches tells least, so all are taken to be as young.
        rows, age = (one.rows + same.rows, min(age, same.age)) if same else (one.rows, age)
        stakes[one.backend] = Stake(option, rows, age)
    return Position(
        job.waiting,
        job.pulled + sum(rows for _, rows in board.barred),
        job.coming + sum(one.rows for one in gone),
        max(0.0, free_in),
        tuple(stakes.values()),
        board.held,
        tuple(one.batch for one in gone),
    )


def _batch(board: _Board, running: Running) -> BatchOption:
    option = board.by_name[running.backend]
    assert isinstance(option, BatchOption)
    return option


def _sends(new: Rows, board: _Board) -> list[Send]:
    """Rows to lanes: first those that must leave where they are, then those that wait."""
    sends, sources = [], [*board.barred]
    for lane, rows in zip(board.ours.lanes, new, strict=True):
        while rows:
            source, many = sources.pop(0) if sources else (None, rows)
            taken = min(rows, many)
            if source is not None and many > taken:
                sources.insert(0, (source, many - taken))
            sends.append(Send(taken, lane.option.backend, source))
            rows -= taken
    return sends


def _moves(chosen: Chosen, board: _Board) -> tuple[list[Send], float]:
    """Rows that leave a lane which does not keep up, once the others could not take them over later; and the chance
    then."""
    course, ours = chosen.course, board.ours
    held, cover = course.held, course.cover
    if ours.horizon <= 0:
        return _off_the_dead(held, ours), chosen.chance
    burden = course.coming + (0 if course.pull is None else course.staked)
    if not any(held) or ours.fits(burden, held, max(WAITS[0], arrival(course)), cover):
        return [], chosen.chance
    kept = [
        min(rows, int(lane.between(0.0, ours.horizon, lane.low))) for lane, rows in zip(ours.lanes, held, strict=True)
    ]
    kept = [rows if place < cover else held[place] for place, rows in enumerate(kept)]
    room = ours.room(kept, 0.0, cover, sure=True)
    after = [a + b for a, b in zip(kept, ours.fill(sum(held) - sum(kept), room), strict=True)] if cover else [*held]
    chance = ours.chance(burden, after, arrival(course), cover)
    if not chosen.holds and chance <= ours.chance(burden, held, arrival(course), cover) + SURER:
        return [], chosen.chance
    return _between(held, after, ours), max(chance, chosen.chance)


def _off_the_dead(held: Rows, ours: Ground) -> list[Send]:
    """It is late: what is held where nothing moves goes on where it costs least."""
    alive = [place for place, lane in enumerate(ours.lanes) if lane.rate > 0]
    after = [rows if lane.rate > 0 or not alive else 0 for lane, rows in zip(ours.lanes, held, strict=True)]
    if alive:
        after[alive[0]] += sum(held) - sum(after)
    return _between(held, after, ours)


def _between(before: Sequence[int], after: Sequence[int], ours: Ground) -> list[Send]:
    names = [lane.option.backend for lane in ours.lanes]
    gives = {name: a - b for name, a, b in zip(names, before, after, strict=True) if a > b}
    sends = []
    for name, a, b in zip(names, before, after, strict=True):
        lacks = b - a
        while lacks > 0:
            source, rows = next((source, rows) for source, rows in gives.items() if rows)
            taken = min(lacks, rows)
            sends.append(Send(taken, name, source))
            gives[source] -= taken
            lacks -= taken
    return sends


def _reason(job: Open, chosen: Chosen, moves: Sequence[Send], board: _Board) -> str:
    course, horizon = chosen.course, board.ours.horizon
    if horizon <= 0:
        return "the deadline has passed; what is open goes on where it costs least"
    told = f"in time with {chosen.chance:.1%}"
    if course.cancel:
        rows = sum(one.rows for one in job.running if one.batch in course.cancel)
        why = "later the rest would not surely be done in time" if chosen.holds else "that is likelier than waiting"
        return f"{rows:,} rows pulled back from {_named(course.cancel)}: {why}; {told}"
    if moves:
        rows, places = sum(one.rows for one in moves), sorted({one.source for one in moves if one.source})
        return f"{rows:,} rows leave {_named(places)}, which would not have them done in time; {told}"
    if not chosen.holds:
        return f"nothing that can be done now is surer; {told}"
    if course.pull is not None and course.stakes:
        return f"there is time: what still runs is pulled back in {duration(course.pull)} at the latest; {told}"
    return f"on its way; {told}"


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} batches"
