"""The canary: a few rows of a job go first, and the others follow only if these succeed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

from msgspec import Struct

from orchestrator.core.counts import number_of
from orchestrator.core.money import money

KIND = "canary"
"""Kind of the forecast of the canary's cost."""
PART = 4
"""The canary may take this fraction of the time from the build to the job's deadline: 1 / `PART`.

After that time, the other rows are sent even without the canary's results.
"""
MOST_CODES = 3


class CanaryLimits(Struct, frozen=True):
    """Limits for the canary: the share of rows that may fail, and the maximum cost as a multiple of the forecast."""

    max_failed: float
    max_cost: float


class CanaryFigures(Struct, frozen=True):
    """Results of the canary's rows: their number, failures by code, and cost in dollars.

    `foreseen` is the forecast cost in dollars, or None.
    """

    rows: int
    failed: Mapping[str, int]
    cost: Decimal
    foreseen: Decimal | None


class CanaryVerdict(Struct, frozen=True):
    """Decision to send or stop the remaining rows, with its reason."""

    passed: bool
    reason: str


def places(rows: int, wanted: int) -> list[int]:
    """Return the positions (from 1) of `wanted` rows among `rows`: the middles of equal parts, in order."""
    return [(2 * part + 1) * rows // (2 * wanted) + 1 for part in range(wanted)]


def until(built_at: datetime, deadline: datetime | None) -> datetime | None:
    """Return when the other rows are sent even without the canary's results. None without a deadline."""
    return None if deadline is None else built_at + (deadline - built_at) / PART


def judge(seen: CanaryFigures, limits: CanaryLimits) -> CanaryVerdict:
    """Decide if the other rows are sent, once all canary rows have an outcome."""
    failed = sum(seen.failed.values())
    told = f"{failed:,} of {number_of(seen.rows, 'row')} that went first failed{_codes(seen.failed)}"
    if failed > limits.max_failed * seen.rows:
        return CanaryVerdict(False, f"canary: {told}, more than {limits.max_failed:.0%}")
    if seen.foreseen is None or seen.foreseen <= 0:
        return CanaryVerdict(True, told)
    times = seen.cost / seen.foreseen
    cost = f"they cost {money(seen.cost)}, {times:.2f} times the forecast"
    if times > Decimal(str(limits.max_cost)):
        return CanaryVerdict(False, f"canary: {told}; {cost}, more than {limits.max_cost:g} times")
    return CanaryVerdict(True, f"{told}; {cost}")


def _codes(failed: Mapping[str, int]) -> str:
    if not failed:
        return ""
    common = sorted(failed.items(), key=lambda one: (-one[1], one[0]))[:MOST_CODES]
    return f" ({', '.join(f'{rows:,} {code}' for code, rows in common)})"
