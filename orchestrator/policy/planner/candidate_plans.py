"""A course: which rows a batch has, which the paced routes, and when what is still in a batch is pulled back.

`judge` says what a course costs and whether it holds. A batch that is cancelled costs only what it has done, so
beginning there costs nothing but time, and the one question is how long to wait: until the last moment at which the
leftovers surely arrive by the routes that remain, unless waiting becomes dearer before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from orchestrator.policy.planner.batch_shares import BatchShare, done_by
from orchestrator.policy.planner.capacity import Capacity, Rows, excess
from orchestrator.policy.planner.values import SLIPS, Terms

HOUR = 3600.0
WORTH = 0.1
"""A batch that is less likely than this to be done before it would be pulled back is not worth its trouble."""
WAITS = tuple(60.0 * 1.35**step for step in range(27))
"""Seconds after which batches may be pulled back. The same at every look and for every deadline, so that more time
never means fewer choices; close together near by, where the next look decides anew."""


Sources = tuple[tuple[str, int], ...]
"""Rows by the lane that they leave."""


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """Where rows are, and what may come.

    `stakes` in batches, the last `bets` of them not sent yet; `new` rows are sent to lanes, so that they hold `held`;
    `coming` ones are free in `free_in` seconds. The first `cover` lanes may take more later. Batches are pulled back
    `pull` seconds from now, never where it is None. `cancel` names those that are pulled back at once, `sources` the
    rows that leave a lane.
    """

    stakes: tuple[BatchShare, ...]
    new: Rows
    held: Rows
    coming: int
    free_in: float
    cover: int
    pull: float | None
    bets: int = 0
    cancel: tuple[str, ...] = ()
    sources: Sources = ()

    @property
    def staked(self) -> int:
        """Rows in batches that can be pulled back."""
        return sum(stake.rows for stake in self.stakes)

    @property
    def effort(self) -> tuple[int, int]:
        """How many backends it sends rows to, and how many times the fullest quota of theirs is filled."""
        places = self.bets + sum(1 for rows in self.new if rows)
        return places, max((stake.waves for stake in self.unsent), default=1)

    @property
    def unsent(self) -> tuple[BatchShare, ...]:
        """The stakes that are not sent yet."""
        return self.stakes[len(self.stakes) - self.bets :]

    @property
    def causes(self) -> frozenset[str]:
        """The backends whose slowness makes a rescue of these rows needed, and of other jobs' rows there too."""
        return frozenset(stake.option.backend for stake in self.stakes)

    @property
    def before(self) -> Rows:
        """What lanes held before anything was sent."""
        return tuple(held - new for held, new in zip(self.held, self.new, strict=True))


@dataclass(frozen=True, slots=True)
class Judged:
    """A course that pulls batches back after `pull` seconds.

    What it is `expected` to cost, in dollars, and its `value`, which has the price of being late in it.
    """

    course: CandidatePlan
    pull: float | None
    expected: float
    value: float
    holds: bool

    @property
    def whole(self) -> CandidatePlan:
        """The course with its pull."""
        return replace(self.course, pull=self.pull)


def latency(course: CandidatePlan) -> float:
    """Seconds from a pull until its rows are there to be sent on."""
    return max((stake.free_after for stake in course.stakes), default=0.0)


def arrival(course: CandidatePlan) -> float:
    """Seconds from now when what is pulled back is there to be sent on."""
    return max(course.free_in, (course.pull or 0.0) + latency(course))


def judge(course: CandidatePlan, ground: Capacity, terms: Terms, *, late: bool) -> Iterator[Judged]:
    """What a course costs, and whether it holds the deadline with the chance asked for, by when it pulls back.

    Pulls that are too late for that only where `late` ones are worth a thought.
    """
    staked = sum(stake.price * stake.rows for stake in course.stakes)
    yield _valued(course, None, _paced(course, ground) + staked, _holds(course, ground), ground, terms)
    if not course.stakes or not course.cover:
        return
    for pull in WAITS:
        pulled = replace(course, pull=pull)
        fits = is_in_time(pulled, ground)
        if fits and course.bets:
            fits = done_by(course.unsent, pull) >= WORTH
        if fits or late:
            expected = _pulled(course, pull, arrival(pulled), ground)
            yield _valued(course, pull, expected, fits, ground, terms)


def is_in_time(course: CandidatePlan, ground: Capacity) -> bool:
    """Whether what is pulled back is surely done by the deadline."""
    burden, at = course.staked + course.coming, arrival(course)
    # That a cancel may slip is told; to wait for what seldom does would be dear.
    tail = min(SLIPS, slips(course))
    return ground.fits(burden, course.held, at, course.cover, tail=tail, cause=course.causes)


def slips(course: CandidatePlan) -> float:
    """P(a cancel takes far longer than planned)."""
    coming = SLIPS if course.coming else 0.0
    return max((stake.option.slips for stake in course.stakes), default=coming)


def _valued(
    course: CandidatePlan, pull: float | None, expected: float, holds: bool, ground: Capacity, terms: Terms
) -> Judged:
    if terms.late_cost is None:
        return Judged(course, pull, expected, expected, holds)
    late = lateness(replace(course, pull=pull), ground) / HOUR * float(terms.late_cost)
    return Judged(course, pull, expected, expected + late, holds)


def _paced(course: CandidatePlan, ground: Capacity) -> float:
    """Dollars for what the lanes hold and will hold without a pull."""
    comes = [(0.0, float(sum(course.new))), (course.free_in, float(course.coming))]
    if not course.cover:
        return ground.price(course.held, (), 0)
    return ground.price(course.before, comes, course.cover)


def _pulled(course: CandidatePlan, pull: float, at: float, ground: Capacity) -> float:
    """Dollars for all of it, where what is in batches is pulled back and free at `at`."""
    total, left = 0.0, 0.0
    for stake in course.stakes:
        lost = stake.lost(pull)
        total += stake.price * stake.rows * stake.paid(pull)
        left += stake.rows * lost
    comes = [(0.0, float(sum(course.new))), (course.free_in, float(course.coming))]
    share = left / course.staked
    # Rows come back all together or not at all: what then is dear is paid with that chance.
    alone = ground.price(course.before, comes, course.cover)
    whole = ground.price(course.before, [*comes, (at, float(course.staked))], course.cover)
    return total + alone + share * (whole - alone)


def _holds(course: CandidatePlan, ground: Capacity) -> bool:
    """Whether a course without a pull holds."""
    if course.stakes:
        return not course.cover and chance_of(course, ground) >= ground.target
    # What does not keep up goes on to the rest of the cover when it must: it is enough that all of it together can.
    return ground.fits(course.coming, course.held, course.free_in, course.cover, tail=slips(course))


def chance_of(course: CandidatePlan, ground: Capacity) -> float:
    """P(all rows are done by the deadline)."""
    if ground.horizon <= 0:
        return 0.0
    free = 1.0 - SLIPS if course.coming else 1.0
    rest = ground.chance(course.coming, course.held, course.free_in, course.cover) * free
    if not course.stakes:
        return rest
    if course.pull is None:
        return done_by(course.stakes, ground.horizon) * rest
    done = done_by(course.stakes, min(course.pull, ground.horizon))
    burden = course.staked + course.coming
    pulled = ground.chance(burden, course.held, arrival(course), course.cover, cause=course.causes)
    return done * rest + (1.0 - done) * pulled * (1.0 - slips(course))


def lateness(course: CandidatePlan, ground: Capacity) -> float:
    """Expected seconds late."""
    alone = ground.seconds(course.coming, course.held, course.free_in, course.cover)
    late = excess(*alone, ground.horizon)
    if not course.stakes:
        return late
    if course.pull is None:
        for stake in course.stakes:
            each = stake.option.turnaround.late((ground.horizon + stake.age) / stake.waves, stake.age)
            late = max(late, each * stake.waves)
        return late
    done = done_by(course.stakes, course.pull)
    pulled = ground.seconds(course.staked + course.coming, course.held, arrival(course), course.cover)
    return done * max(late, course.pull - ground.horizon) + (1.0 - done) * excess(*pulled, ground.horizon)


def at_most(course: CandidatePlan, ground: Capacity) -> Decimal:
    """What a course does not exceed (95 %): every batch fails, every pace is low, or every batch is done.

    Between those two lies all that may happen: the routes are filled cheapest first, so their cost is convex.
    """
    lanes, cover = ground.lanes, course.cover
    stay = [
        min(rows, int(lane.between(0.0, ground.horizon, lane.low))) if place < cover else rows
        for place, (lane, rows) in enumerate(zip(lanes, course.held, strict=True))
    ]
    moved = sum(course.held) - sum(stay) + course.coming
    staked = sum((stake.option.cost.p95 * stake.rows for stake in course.stakes), Decimal(0))
    if not cover:
        return staked + ground.at_most(course.held)

    def paced(rows: int, a: float) -> Decimal:
        room = ground.room(stay, a, cover, sure=True)
        filled = list(ground.fill(min(rows, int(sum(room))), room))
        filled[cover - 1] += rows - sum(filled)
        return ground.at_most([kept + more for kept, more in zip(stay, filled, strict=True)])

    if course.pull is None or not course.stakes:
        return staked + paced(moved, course.free_in)
    return max(staked + paced(moved, course.free_in), paced(moved + course.staked, arrival(course)))


__all__ = ["WAITS", "BatchShare", "CandidatePlan", "Judged", "arrival", "at_most", "chance_of", "judge", "lateness"]
