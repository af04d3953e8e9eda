"""How many rows of a job are in which state, and which failures count."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from orchestrator.core.clock import day

MARKED = ("cut", "repaired", "odd_ends", "unverifiable")
"""Of the accepted answers, those that are counted apart."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many requests of a job are in which state; derived from the rows each time it is asked for.

    `cut` counts those of the succeeded ones whose answer ended at `max_tokens`.
    """

    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    cut: int = 0
    repaired: int = 0
    odd_ends: int = 0
    unverifiable: int = 0

    @property
    def total(self) -> int:
        """All requests."""
        return self.pending + self.succeeded + self.failed + self.cancelled + self.expired

    @property
    def done(self) -> int:
        """Requests with an outcome."""
        return self.total - self.pending


class FailOn(StrEnum):
    """For which rows a command ends with exit code 1. Rows that never ran always count."""

    NEW = "new"  # those that did not fail for the same reason in an earlier run, nor are acknowledged
    UNACKNOWLEDGED = "unacknowledged"  # those that nobody has acknowledged
    ANY = "any"
    CUT = "cut"  # those that nobody has acknowledged, and accepted answers that ended at max_tokens


@dataclass(frozen=True, slots=True)
class Failing:
    """The failed rows of a job: new ones, those known from an earlier run, and those a person has acknowledged.

    `since` is when the oldest of the known ones began.
    """

    new: int = 0
    known: int = 0
    acknowledged: int = 0
    since: datetime | None = None

    def counted(self, fail_on: FailOn) -> int:
        """How many of them count."""
        match fail_on:
            case FailOn.NEW:
                return self.new
            case FailOn.UNACKNOWLEDGED | FailOn.CUT:
                return self.new + self.known
            case FailOn.ANY:
                return self.new + self.known + self.acknowledged

    def __str__(self) -> str:
        """`1 new, 1 known since Mon 9 Nov`; empty where no row failed."""
        known = "known" if self.since is None else f"known since {day(self.since)}"
        told = ((self.new, "new"), (self.known, known), (self.acknowledged, "acknowledged"))
        return ", ".join(f"{number:,} {word}" for number, word in told if number)
