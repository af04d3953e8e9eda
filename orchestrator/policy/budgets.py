"""Budgets that several jobs share: what of them is spent in a night or a month, and whether a batch still fits.

A budget holds in every one of its periods: what is booked in it, and the most that batches in flight may cost, never
come to more than its stop mark. A batch in flight counts in the period that is now, whenever it was sent: it is
booked when it is collected. So nothing has to be carried over at a period's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum

from orchestrator.core.errors import RefusedError
from orchestrator.core.money import amount, money, up_to
from orchestrator.settings.config import Budget


class TooDear(RefusedError):
    """A batch that may cost `wanted` dollars where no more than `left` may ever be spent: smaller ones may fit."""

    def __init__(self, message: str, *, hint: str, wanted: Decimal, left: Decimal) -> None:
        super().__init__(message, hint=hint)
        self.wanted, self.left = wanted, left


class BudgetMark(StrEnum):
    """How a budget stands."""

    OK = "ok"
    WARNING = "warning"  # more than its warning mark is spent
    STOPPED = "stopped"  # nothing is left that is neither spent nor in flight


@dataclass(frozen=True, slots=True)
class Period:
    """From `starts` to just before `ends`, in UTC; `renews` is the end as local clocks show it."""

    starts: datetime
    ends: datetime
    renews: str


def period_at(budget: Budget, now: datetime, zone: tzinfo | None = None) -> Period:
    """The period of a budget that `now` (aware) lies in, by the clocks of `zone`, or of this machine.

    A start that the clocks skip is the moment after the gap as long as the start lies in it; one that they show twice
    is the first of the two.
    """
    here = now.astimezone(zone)
    months = budget.period == "month"
    starts = sorted({_start(budget, day, zone) for day in (_months(here.date()) if months else _days(here.date()))})
    ends = min(at for at in starts if at > now)
    return Period(max(at for at in starts if at <= now), ends, f"{ends.astimezone(zone):%Y-%m-%d %H:%M}")


def _start(budget: Budget, day: date, zone: tzinfo | None) -> datetime:
    at = time() if budget.period == "month" else budget.night_starts
    # Without a zone, astimezone takes a naive time for this machine's.
    return datetime.combine(day, at, zone).astimezone(UTC)


def _days(today: date) -> Iterable[date]:
    # Two each way: a zone that crosses the date line skips a day.
    return (today + timedelta(days=days) for days in range(-2, 3))


def _months(today: date) -> Iterable[date]:
    first = today.replace(day=1)
    after = (first + timedelta(days=31)).replace(day=1)
    return ((first - timedelta(days=1)).replace(day=1), first, after, (after + timedelta(days=31)).replace(day=1))


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """How a budget stands in its period: dollars booked or run up, and what batches in flight may still cost at most.

    What is paid by the hour has run up what it has run, and may still cost what it does until it is stopped.
    `unbounded` names a batch in flight of which nobody can say what it may cost: nothing is sent beside it.
    """

    budget: Budget
    period: Period
    spent: Decimal
    in_flight: Decimal
    unbounded: str | None = None

    @property
    def cap(self) -> Decimal:
        """What may be spent: the amount up to the stop mark."""
        return self.budget.amount * self.budget.stop_at

    @property
    def left(self) -> Decimal:
        """What is neither spent nor in flight."""
        return Decimal(0) if self.unbounded else max(Decimal(0), self.cap - self.spent - self.in_flight)

    @property
    def share(self) -> Decimal:
        """What is spent of the amount."""
        return self.spent / self.budget.amount

    @property
    def mark(self) -> BudgetMark:
        """How it stands, in a word."""
        if not self.left:
            return BudgetMark.STOPPED
        return BudgetMark.WARNING if self.share >= self.budget.warn_at else BudgetMark.OK


def no_room(standing: BudgetStanding, wanted: Decimal) -> str | None:
    """Why a batch that may cost `wanted` dollars has to wait; None where it may be sent.

    Raises TooDear where it never fits.
    """
    if not wanted:
        return None
    if wanted > standing.cap:
        raise TooDear(
            f"this batch may cost up to {up_to(wanted)}, more than {_named(standing)} ever allows",
            hint="raise the budget, lower max_tokens, or make batches smaller (`limits` of the backend)",
            wanted=wanted,
            left=standing.cap,
        )
    if standing.unbounded:
        return _waits(standing)
    if standing.spent + standing.in_flight + wanted <= standing.cap:
        return None
    return (
        f"this batch may cost up to {up_to(wanted)}, and {_spent(standing)}; "
        f"it continues when batches settle for less, or when the budget renews at {standing.period.renews}"
    )


def no_time(standing: BudgetStanding, more: Decimal) -> str | None:
    """Why upstreams paid by the hour, which cost `more` dollars to stop, must not start; None where they may."""
    return _waits(standing) if standing.unbounded else used_up(standing, more)


def used_up(standing: BudgetStanding, more: Decimal = Decimal(0)) -> str | None:
    """Why what is paid by the hour has to stop now; None where it may go on."""
    if standing.spent + standing.in_flight + more < standing.cap:
        return None
    return f"budget {standing.budget.name} reached: {_spent(standing)}; it renews at {standing.period.renews}"


def warning(standing: BudgetStanding) -> str | None:
    """What to tell once the warning mark is passed."""
    if standing.share < standing.budget.warn_at:
        return None
    which = f"budget {standing.budget.name}, {standing.budget.period} until {standing.period.renews}"
    return f"{which}: {money(standing.spent)} of {_named(standing)} is spent ({standing.share:.0%})"


def warning_code(standing: BudgetStanding) -> str:
    """A budget and its period, for programs: by this it is known that a warning was told."""
    return f"{standing.budget.name}/{standing.budget.period}/{standing.period.renews}"


def _waits(standing: BudgetStanding) -> str:
    return f"budget {standing.budget.name}: {standing.unbounded}; this batch waits for its end"


def _named(standing: BudgetStanding) -> str:
    budget = standing.budget
    stop = f", stopped at {budget.stop_at:.0%}" if budget.stop_at != 1 else ""
    return f"the {amount(budget.amount)} of budget {budget.name} for the {budget.period}{stop}"


def _spent(standing: BudgetStanding) -> str:
    flying = f", up to {up_to(standing.in_flight)} more in flight" if standing.in_flight else ""
    return f"{money(standing.spent)} of {_named(standing)} is spent{flying}"
