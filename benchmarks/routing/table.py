"""Runs policies over scenarios and says how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.routing.night import Night, Score, clairvoyant
from benchmarks.routing.ours import Ours
from benchmarks.routing.rules import rules
from benchmarks.routing.scenarios import Scenario
from benchmarks.routing.world import Policy, World

GOAL_IN_TIME, GOAL_COST = 0.99, 1.15


@dataclass(frozen=True, slots=True)
class Row:
    """A policy in a scenario; `in_time` and `cost` (times the clairvoyant's) over nights that could be in time."""

    policy: str
    in_time: float
    cost: float
    late_hours: float


@dataclass(frozen=True, slots=True)
class Result:
    """A scenario: on `possible` of its `nights` a clairvoyant is in time, for `least` dollars on the mean."""

    scenario: str
    about: str
    seed: int
    nights: int
    possible: int
    least: float
    rows: tuple[Row, ...]

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
        """The goals that were not reached, in words."""
        found = []
        if self.ours.in_time < GOAL_IN_TIME:
            found.append(f"in time {self.ours.in_time:.2%}, the goal is {GOAL_IN_TIME:.0%}")
        if self.ours.cost > GOAL_COST:
            found.append(f"{self.ours.cost:.3f}x the clairvoyant, the goal is {GOAL_COST}x")
        if self.rival and round(self.rival.cost, 3) < round(self.ours.cost, 3):
            found.append(
                f"dearer than `{self.rival.policy}` ({self.rival.cost:.3f}x, in time {self.rival.in_time:.2%})"
            )
        return found

    def as_json(self) -> dict[str, object]:
        """All of it as plain data."""
        return {**asdict(self), "lost": self.lost}


def run(scenario: Scenario, seed: int, count: int) -> Result:
    """Let every policy that has the routes for it live through the same nights."""
    nights = scenario.nights(seed, count)
    bounds = [clairvoyant(night) for night in nights]
    possible = [at for at, bound in enumerate(bounds) if bound.in_time]
    least = sum(bounds[at].cost for at in possible)
    rows = []
    policies: Sequence[Policy] = (Ours(), *rules(nights[0]))
    for policy in policies:
        scores = [World(night).live(policy) for night in nights]
        rows.append(_row(policy.name, [(nights[at], scores[at]) for at in possible], least))
    return Result(
        scenario.name, scenario.about, seed, count, len(possible), least / max(1, len(possible)), tuple(rows)
    )


def _row(name: str, lived: Sequence[tuple[Night, Score]], least: float) -> Row:
    count = max(1, len(lived))
    in_time = sum(
        score.in_time and (night.budget is None or score.cost <= night.budget + 1e-9) for night, score in lived
    )
    late = sum(max(0.0, score.done_at - night.deadline) for night, score in lived) / 3600.0
    cost = sum(score.cost for _, score in lived) / least if least else 1.0
    return Row(name, in_time / count, cost, late / count)
