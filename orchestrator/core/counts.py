"""Counts of a job's rows by state."""

from __future__ import annotations

from msgspec import Struct

MARKED = ("cut", "repaired", "odd_ends", "unverifiable")
"""Flags of accepted answers that have their own counts."""


def number_of(number: int, noun: str) -> str:
    """Format a count with its noun: `1 row`, `2,000 rows`, `3 batches`."""
    return f"{number:,} {noun if number == 1 else noun + ('es' if noun.endswith('ch') else 's')}"


def number_that(number: int, noun: str, verb: str) -> str:
    """Format a count with its noun and verb: `1 row waits`, `2 rows wait`. `verb` is the plural."""
    singular = {"are": "is", "were": "was", "have": "has", "go": "goes"}.get(verb, f"{verb}s")
    return f"{number_of(number, noun)} {singular if number == 1 else verb}"


class Counts(Struct, frozen=True):
    """Number of a job's requests in each state, computed from the rows on each call.

    `cut` counts the successful requests whose answer ended at `max_tokens`.
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
        """Number of requests that succeeded or failed. Cancelled and expired requests do not count."""
        return self.succeeded + self.failed

    @property
    def ended(self) -> int:
        """Number of requests with an outcome, whether answered or not."""
        return self.total - self.pending
