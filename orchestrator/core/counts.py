"""Numbers of a job's rows by state, and the failures that count."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.clock import day

MARKED = ("cut", "repaired", "odd_ends", "unverifiable")
"""States of accepted answers that are counted separately."""


def number_of(number: int, noun: str) -> str:
    """Format a count with its noun: `1 row`, `2,000 rows`, `3 batches`."""
    return f"{number:,} {noun if number == 1 else noun + ('es' if noun.endswith('ch') else 's')}"


def number_that(number: int, noun: str, verb: str) -> str:
    """Format a count with its noun and verb: `1 row waits`, `2 rows wait`. `verb` is the plural."""
    singular = {"are": "is", "were": "was", "have": "has"}.get(verb, f"{verb}s")
    return f"{number_of(number, noun)} {singular if number == 1 else verb}"


class Counts(Struct, frozen=True):
    """Requests of a job by state, derived from the rows on each call.

    `cut` counts the succeeded requests whose answer ended at `max_tokens`.
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
        """Number of all requests."""
        return self.pending + self.succeeded + self.failed + self.cancelled + self.expired

    @property
    def done(self) -> int:
        """Number of requests with an outcome."""
        return self.total - self.pending


class FailOn(StrEnum):
    """Rows for which a command ends with exit code 1. Rows that never ran always count."""

    NEW = "new"  # failed rows without the same failure in an earlier run, and not acknowledged
    UNACKNOWLEDGED = "unacknowledged"  # failed rows that nobody has acknowledged
    ANY = "any"
    CUT = "cut"  # failed rows that nobody has acknowledged, and accepted answers that ended at max_tokens


class Failing(Struct, frozen=True):
    """Failed rows of a job: new, known from an earlier run, and acknowledged by a person.

    `since` is when the oldest known failure began.
    """

    new: int = 0
    known: int = 0
    acknowledged: int = 0
    since: datetime | None = None

    def counted(self, fail_on: FailOn) -> int:
        """Return the number of failed rows that count."""
        match fail_on:
            case FailOn.NEW:
                return self.new
            case FailOn.UNACKNOWLEDGED | FailOn.CUT:
                return self.new + self.known
            case FailOn.ANY:
                return self.new + self.known + self.acknowledged

    def __str__(self) -> str:
        """Format the numbers: `1 new, 1 known since Mon 9 Nov`; empty if no row failed."""
        known = "known" if self.since is None else f"known since {day(self.since)}"
        told = ((self.new, "new"), (self.known, known), (self.acknowledged, "acknowledged"))
        return ", ".join(f"{number:,} {word}" for number, word in told if number)
