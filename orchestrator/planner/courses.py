"""A course: which rows a batch has, which the paced routes, and when what is still in a batch is pulled back.

`judge` says what a course costs and whether it holds. A batch that is cancelled costs only what it has done, so
beginning there costs nothing but time, and the one question is how long to wait: until the last moment at which the
leftovers surely arrive by the routes that remain, unless waiting becomes dearer before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from orchestrator.planner.ground import Ground, Rows, excess
from orchestrator.planner.values import BatchOption, Terms

HOUR = 3600.0
WORTH = 0.1
"""A batch that is less likely than this to be done before it would be pulled back is not worth its trouble."""
MOST_WAVES = 24
"""More times than that no quota is filled for one job."""
WAITS = tuple(60.0 * 1.35**step for step in range(27))
"""Seconds after which batches may be pulled back. The same at every look and for every deadline, so that more time
never means fewer choices; close together near by, where the next look decides anew."""


Sources = tuple[tuple[str, int], ...]
"""Rows by the lane that they leave."""


@dataclass(frozen=True, slots=True)
class Stake:
    """Rows in batches of one backend; those that were sent have run for `age` seconds.

    `kept` is the share of them that is expected to be done where they are pulled back when half of all batches are.
    """

    option: BatchOption
    rows: int
    age: float = 0.0
    kept: float = 0.0

    def by(self, seconds: float) -> float:
        """P(all of them are done so many seconds from now).

        Shards of a night are slow together, so they are done when one of them is; what does not fit the quota goes
        in waves, each as slow as the first.
        """
        waves = self.waves
        each = min((seconds + self.age) / waves, self.option.window)
        return self.option.turnaround.by(each, self.age)

    def lost(self, seconds: float) -> float:
        """The share of the rows that is expected to be left when they are pulled back so many seconds from now."""
        waves, option = self.waves, self.option
        kept = self.kept * min(1.0, seconds / option.turnaround.within(0.5, self.age)) if self.kept else 0.0
        if waves == 1:
            return (1.0 - self.by(seconds)) * (1.0 - kept)
        left, lost = self.rows, 0.0
        for wave in range(1, waves + 1):
            rows = min(left, option.room or left)
            each = min((seconds + self.age) / wave, option.window)
            lost += rows * (1.0 - option.turnaround.by(each, self.age))
            left -= rows
        return lost / self.rows * (1.0 - kept)

    def within(self, chance: float) -> float:
        """Seconds from now by which they are done with this chance; infinite where they expire before."""
        each = self.option.turnaround.within(chance, self.age)
        return each * self.waves - self.age if each <= self.option.window else float("inf")

    @property
    def waves(self) -> int:
        """How many times the quota is filled."""
        room = self.option.room
        return 1 if room is None else max(1, min(MOST_WAVES, -(-self.rows // max(1, room))))


@dataclass(frozen=True, slots=True)
class Course:
    """Where rows are, and what may come.

    `stakes` in batches, the last `bets` of them not sent yet; `new` rows are sent to lanes, so that they hold `held`;
    `coming` ones are free in `free_in` seconds. The first `cover` lanes may take more later. Batches are pulled back
    `pull` seconds from now, never where it is None. `cancel` names those that are pulled back at once, `sources` the
    rows that leave a lane. `both`: the lanes do what is staked as well.
    """

    stakes: tuple[Stake, ...]
    new: Rows
    held: Rows
    coming: int
    free_in: float
    cover: int
    pull: float | None
    bets: int = 0
    cancel: tuple[str, ...] = ()
    sources: Sources = ()
    both: bool = False

    @property
    def staked(self) -> int:
        """Rows in batches."""
        return sum(stake.rows for stake in self.stakes)

    @property
    def effort(self) -> tuple[int, int]:
        """How many backends it sends rows to, and how many times the fullest quota of theirs is filled."""
        places = self.bets + sum(1 for rows in self.new if rows)
        return places, max((stake.waves for stake in self.unsent), default=1)

    @property
    def is_unsafe(self) -> bool:
        """Whether it counts on batches, and nothing could take over."""
        return bool(self.stakes) and not self.cover

    @property
    def unsent(self) -> tuple[Stake, ...]:
        """The stakes that are not sent yet."""
        return self.stakes[len(self.stakes) - self.bets :]


@dataclass(frozen=True, slots=True)
class Judged:
    """A course that pulls batches back after `pull` seconds.

    What it is `expected` to cost, in dollars, and its `value`, which has the price of being late in it.
    """

    course: Course
    pull: float | None
    expected: float
    value: float
    holds: bool

    @property
    def whole(self) -> Course:
        """The course with its pull."""
        return replace(self.course, pull=self.pull)


def arrival(course: Course) -> float:
    """Seconds from now when what is pulled back is there to be sent on."""
    latency = max((stake.option.cancel_seconds for stake in course.stakes), default=0.0)
    return max(course.free_in, (course.pull or 0.0) + latency)


def done_by(stakes: Sequence[Stake], seconds: float) -> float:
    """P(all batches are done by then): of one backend all at once, of several each by itself."""
    worst: dict[str, float] = {}
    for stake in stakes:
        worst[stake.option.backend] = min(worst.get(stake.option.backend, 1.0), stake.by(seconds))
    chance = 1.0
    for each in worst.values():
        chance *= each
    return chance


def judge(course: Course, ground: Ground, terms: Terms, *, late: bool) -> Iterator[Judged]:
    """What a course costs, and whether it holds the deadline with the chance asked for, by when it pulls back.

    Pulls that are too late for that only where `late` ones are worth a thought.
    """
    paced = _paced(course, ground)
    staked = sum(float(stake.option.cost.p50) * stake.rows for stake in course.stakes)
    yield _valued(course, None, paced + staked, _holds(course, ground), ground, terms)
    if not course.stakes or not course.cover or course.both:
        return
    latency = max(stake.option.cancel_seconds for stake in course.stakes)
    burden = course.staked + course.coming
    for pull in WAITS:
        at = max(course.free_in, pull + latency)
        fits = ground.fits(burden, course.held, at, course.cover)
        if fits and course.bets:
            fits = done_by(course.unsent, pull) >= WORTH
        if fits or late:
            yield _valued(course, pull, paced + _staked(course, pull, at, ground), fits, ground, terms)


def _valued(course: Course, pull: float | None, expected: float, holds: bool, ground: Ground, terms: Terms) -> Judged:
    if terms.late_cost is None:
        return Judged(course, pull, expected, expected, holds)
    late = lateness(replace(course, pull=pull), ground) / HOUR * float(terms.late_cost)
    return Judged(course, pull, expected, expected + late, holds)


def _paced(course: Course, ground: Ground) -> float:
    """Dollars for what the lanes hold and will hold without a pull."""
    cost = ground.price(course.held) + ground.overrun(course.held, course.cover)
    if course.coming:
        room = ground.room(course.held, course.free_in, course.cover, sure=False)
        cost += ground.price(ground.fill(course.coming, room))
    return cost


def _staked(course: Course, pull: float, at: float, ground: Ground) -> float:
    """Dollars for what is in batches that are pulled back, and free at `at`."""
    total, left, staked = 0.0, 0.0, 0
    for stake in course.stakes:
        lost = stake.lost(pull)
        total += float(stake.option.cost.p50) * stake.rows * (1.0 - lost)
        left += stake.rows * lost
        staked += stake.rows
    room = ground.room(course.held, at, course.cover, sure=False)
    return total + left / staked * ground.price(ground.fill(staked, room))


def _holds(course: Course, ground: Ground) -> bool:
    """Whether a course without a pull holds.

    Where a rescue is paid for, it is made: once a batch is slow, the chance asked for is that of what is left.
    """
    if course.stakes:
        return (course.both or not course.cover) and chance_of(course, ground) >= ground.target
    # What does not keep up goes on to the rest of the cover when it must: it is enough that all of it together can.
    return ground.fits(course.coming, course.held, course.free_in, course.cover)


def chance_of(course: Course, ground: Ground) -> float:
    """P(all rows are done by the deadline)."""
    if ground.horizon <= 0:
        return 0.0
    if not course.stakes:
        return ground.chance(course.coming, course.held, course.free_in, course.cover)
    rest = ground.chance(course.coming, course.held, course.free_in, course.cover)
    if course.both:
        return 1.0 - (1.0 - done_by(course.stakes, ground.horizon)) * (1.0 - rest)
    if course.pull is None:
        return done_by(course.stakes, ground.horizon) * rest
    done = done_by(course.stakes, min(course.pull, ground.horizon))
    burden = course.staked + course.coming
    return done * rest + (1.0 - done) * ground.chance(burden, course.held, arrival(course), course.cover)


def lateness(course: Course, ground: Ground) -> float:
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


def at_most(course: Course, ground: Ground) -> Decimal:
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

    if course.pull is None or course.both or not course.stakes:
        return staked + paced(moved, course.free_in)
    return max(staked + paced(moved, course.free_in), paced(moved + course.staked, arrival(course)))
