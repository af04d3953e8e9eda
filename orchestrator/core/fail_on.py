"""Failed rows of a job, and the rules by which `--fail-on` counts them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.clock import day


class FailOn(StrEnum):
    """Rows that make a command end with exit code 1. Rows that never ran always count."""

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
        """Return the number of failed rows that count under `fail_on`."""
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
