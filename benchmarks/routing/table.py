"""Runs policies over scenarios and says how they compare, and whether what ours tells comes true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.routing.coverage import Coverage, added
from benchmarks.routing.informed import family
from benchmarks.routing.night import Job, Night, Score, clairvoyant
from benchmarks.routing.ours import Ours
from benchmarks.routing.rules import rules
from benchmarks.routing.scenarios import MONTH, Scenario
from benchmarks.routing.world import Policy, World

GOAL_IN_TIME, GOAL_COST = 0.99, 1.15
SPARE = 300.0
"""A night counts where who knows it could be in time with so many seconds to spare: nobody merges in none."""
BUCKETS = (0.999, 0.995, 0.99, 0.95, 0.9, 0.5, 0.0)
"""What was told, from this on."""
TRAINING_SEED, TRAINING, FEW, MOST = 9001, 120, 30, 60
"""The nights on which rules that know the world are chosen, those that all rules live through, and how many go on."""
LOOKS = (0.0, 0.25, 0.5, 0.75, 0.9)
"""When it is read what is told: at these parts of the time until the deadline."""


@dataclass(frozen=True, slots=True)
class Told:
    """How often something in a bucket was told, and how often it came true; `sum` is the sum of what was told."""

    bucket: float
    count: int
    true: int
    sum: float

    def __add__(self, other: Told) -> Told:
        return Told(self.bucket, self.count + other.count, self.true + other.true, self.sum + other.sum)


@dataclass(frozen=True, slots=True)
class Row:
    """A policy in a scenario; `in_time` and `cost` (times the clairvoyant's) over jobs that could be in time."""

    policy: str
    in_time: float
    cost: float
    late_hours: float


@dataclass(frozen=True, slots=True)
class Result:
    """A scenario: `possible` of its `jobs` a clairvoyant has in time, for `least` dollars on the mean."""

    scenario: str
    about: str
    seed: int
    nights: int
    jobs: int
    possible: int
    least: float
    rows: tuple[Row, ...]
    told: tuple[Told, ...]
    coverage: tuple[Coverage, ...]
    priced: int
    within: int
    """Jobs of ours that were told what they cost at most, and those that cost no more."""

    @property
    def ours(self) -> Row:
        """Our row; it is the first."""
        return self.rows[0]

    @property
    def rival(self) -> Row | None:
        """The cheapest simple rule that is in time as often as ours."""
        as_often = [row for row in self.rows[1:] if row.in_time >= self.ours.in_time]
        return min(as_often, key=lambda row: row.cost, default=None)

    @property
    def lost(self) -> list[str]:
        """Where ours is not as good as it should be, in words."""
        found = []
        if self.ours.in_time < GOAL_IN_TIME:
            found.append(f"in time {self.ours.in_time:.2%}, goal {GOAL_IN_TIME:.0%}")
        if self.ours.cost > GOAL_COST:
            found.append(f"cost {self.ours.cost:.3f}x, goal {GOAL_COST}x")
        if self.rival is not None and self.rival.cost < self.ours.cost * 0.999:
            found.append(
                f"dearer than `{self.rival.policy}` ({self.rival.cost:.3f}x, in time {self.rival.in_time:.2%})"
            )
        return found

    def as_json(self) -> dict[str, object]:
        """All of it as plain data."""
        return {**asdict(self), "lost": self.lost}


@dataclass(frozen=True, slots=True)
class Lived:
    """A job as it was lived through, and the least it could have cost (None: nobody could have been in time)."""

    job: Job
    score: Score
    least: float | None

    @property
    def in_time(self) -> bool:
        """Whether the deadline and the budget were kept."""
        budget = self.job.budget
        return self.score.in_time and (budget is None or self.score.cost <= budget + 1e-9)


def run(scenario: Scenario, seed: int, count: int, *, alone: bool = False, probe: bool = False) -> Result:
    """Let every policy that has the routes for it, or ours `alone`, live through the same nights.

    Ours sends probes to routes long unused where it is to `probe`.
    """
    nights = scenario.nights(seed, count)
    policies: Sequence[Policy] = (Ours(probe=probe),) if alone else (Ours(probe=probe), *rules(nights[0]))
    rows, ours = [], list[Lived]()
    covered: list[Coverage] = []
    for policy in policies:
        lived = _live(policy, scenario, nights, covered)
        rows.append(_row(policy.name, [one for one in lived if one.least is not None]))
        ours = ours or lived
    priced = [one.score for one in ours if one.score.at_most is not None]
    least = [one.least for one in ours if one.least is not None]
    mean = sum(least) / max(1, len(least))
    return Result(
        scenario.name,
        scenario.about,
        seed,
        count,
        len(ours),
        len(least),
        mean,
        tuple(rows),
        tuple(reliability(ours)),
        tuple(covered),
        len(priced),
        sum(one.cost <= (one.at_most or 0.0) + 1e-9 for one in priced),
    )


def informed(scenario: Scenario, seed: int, count: int) -> list[Row]:
    """Live through the same nights by the cheapest rules that were in time on `TRAINING` others, the cheapest first.

    The first few of those nights choose whom the others are worth living through.
    """
    training = scenario.nights(TRAINING_SEED, TRAINING)
    rules = family(training)

    def score(rule: Policy, nights: Sequence[Night]) -> Row:
        return _row(rule.name, [one for one in _live(rule, scenario, nights, []) if one.least is not None])

    first = sorted(((score(rule, training[:FEW]), rule) for rule in rules), key=lambda pair: pair[0].cost)
    likely = [rule for row, rule in first if row.in_time >= 1 - 2 / FEW][:MOST]
    chosen = sorted(((score(rule, training), rule) for rule in likely), key=lambda pair: pair[0].cost)
    nights = scenario.nights(seed, count)
    return [score(rule, nights) for row, rule in chosen if row.in_time >= GOAL_IN_TIME][:2]


def _bounds(night: Night) -> list[float | None]:
    """The least each job costs who knows the night, None where not even he has it in time with some to spare."""
    sooner = replace(night, jobs=tuple(replace(job, deadline=job.deadline - SPARE) for job in night.jobs))
    pairs = zip(clairvoyant(night), clairvoyant(sooner), strict=True)
    return [None if spare is None else least for least, spare in pairs]


def _live(
    policy: Policy,
    scenario: Scenario,
    nights: Sequence[Night],
    covered: list[Coverage],
) -> list[Lived]:
    """The jobs of all nights; what ours told of routes is added to `covered`."""
    found, spent = [], 0.0
    homes = [policy]
    for night in nights:
        if scenario.monthly is not None:
            spent = spent if night.number % MONTH else 0.0
            left = max(0.0, scenario.monthly - spent)
            night = replace(night, jobs=tuple(replace(job, purse=left) for job in night.jobs))
        if scenario.forgets and isinstance(policy, Ours):
            homes.append(policy.anew())
        scores = World(night).live(homes[-1])
        spent += sum(score.cost for score in scores)
        found += [Lived(*each) for each in zip(night.jobs, scores, _bounds(night), strict=True)]
    if isinstance(policy, Ours):
        covered[:] = added(home.coverage for home in homes if isinstance(home, Ours))
    return found


def _row(name: str, lived: Sequence[Lived]) -> Row:
    count = max(1, len(lived))
    in_time = sum(one.in_time for one in lived)
    late = sum(min(96.0, max(0.0, one.score.done_at - one.job.deadline) / 3600.0) for one in lived)
    least = sum(one.least or 0.0 for one in lived)
    cost = sum(one.score.cost for one in lived) / least if least else 1.0
    return Row(name, in_time / count, cost, late / count)


def reliability(lived: Sequence[Lived]) -> list[Told]:
    """What was told when a job was submitted and at later looks, by bucket, and how often it came true."""
    found = {bucket: Told(bucket, 0, 0, 0.0) for bucket in BUCKETS}
    for one in lived:
        for chance in told_at(one):
            bucket = next(each for each in BUCKETS if chance >= each)
            found[bucket] += Told(bucket, 1, int(one.score.in_time), chance)
    return list(found.values())


def told_at(one: Lived) -> list[float]:
    """What was told last by each of `LOOKS`."""
    begin, length = one.job.at, one.job.deadline - one.job.at
    found = []
    for part in LOOKS:
        at = begin + part * length
        said = [chance for when, chance in one.score.told if when <= at + 1e-6]
        if said and one.score.done_at > at:
            found.append(said[-1])
    return found


def together(results: Sequence[Result]) -> list[Told]:
    """The reliability of what was told in all of them."""
    found = []
    for place, bucket in enumerate(BUCKETS):
        whole = Told(bucket, 0, 0, 0.0)
        for result in results:
            whole += result.told[place]
        found.append(whole)
    return found


def spelled(told: Sequence[Told]) -> str:
    """A reliability table: told, how often, told on the mean, came true."""
    lines = [f"  {'told':>10}{'times':>9}{'on the mean':>14}{'came true':>12}\n"]
    for one in told:
        if one.count:
            bucket, mean, true = f"≥ {one.bucket:.1%}", one.sum / one.count, one.true / one.count
            lines.append(f"  {bucket:>10}{one.count:>9,}{mean:>14.2%}{true:>12.2%}\n")
    return "".join(lines)


def wilson(true: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Between which shares the true one lies (95 %)."""
    if not count:
        return 0.0, 1.0
    share, spread = true / count, z * z / count
    middle = (share + spread / 2) / (1 + spread)
    reach = z / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / 4 / count)
    return middle - reach, middle + reach
