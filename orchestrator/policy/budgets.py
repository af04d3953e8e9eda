"""Budgets shared by several jobs: the money spent in a night or month, and the room for another batch.

In each period of a budget, booked costs plus the maximum cost of batches in flight never exceed its stop mark. A
batch in flight counts in the current period, even if it was sent earlier: it is booked when it is collected. So
nothing is carried over at the end of a period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.errors import RefusedError
from orchestrator.core.money import amount, money, up_to
from orchestrator.settings.config import Budget


class TooDear(RefusedError):
    """Raised for a batch that may cost `wanted` dollars if at most `left` can ever be spent.

    Smaller batches may fit.
    """

    def __init__(self, message: str, *, hint: str, wanted: Decimal, left: Decimal) -> None:
        super().__init__(message, hint=hint)
        self.wanted, self.left = wanted, left


class BudgetMark(StrEnum):
    """State of a budget."""

    OK = "ok"
    WARNING = "warning"  # more than its warning mark is spent
    STOPPED = "stopped"  # everything is spent or in flight


def counting(budgets: Iterable[Budget], tags: Mapping[str, str]) -> list[Budget]:
    """Return the budgets that apply to a job with these tags."""
    return [one for one in budgets if one.key_value is None or one.key_value in tags.items()]


class Period(Struct, frozen=True):
    """A period from `starts` to just before `ends`, in UTC. `renews` is the end in local time, as text."""

    starts: datetime
    ends: datetime
    renews: str


def period_at(budget: Budget, now: datetime, zone: tzinfo | None = None) -> Period:
    """Return the period of a budget that contains `now` (aware), in `zone` or this machine's time zone.

    If the clocks skip the start time, it moves forward by the length of the gap. If the clocks show the start time
    twice, the first time counts.
    """
    here = now.astimezone(zone)
    months = budget.period == "month"
    starts = sorted({_start(budget, day, zone) for day in (_months(here.date()) if months else _days(here.date()))})
    ends = min(at for at in starts if at > now)
    return Period(max(at for at in starts if at <= now), ends, f"{ends.astimezone(zone):%Y-%m-%d %H:%M}")


def _start(budget: Budget, day: date, zone: tzinfo | None) -> datetime:
    at = time() if budget.period == "month" else budget.night_starts
    # Without a zone, astimezone treats a naive time as local time.
    return datetime.combine(day, at, zone).astimezone(UTC)


def _days(today: date) -> Iterable[date]:
    # Two days each way: a zone that crosses the date line skips a day.
    return (today + timedelta(days=days) for days in range(-2, 3))


def _months(today: date) -> Iterable[date]:
    first = today.replace(day=1)
    after = (first + timedelta(days=31)).replace(day=1)
    return ((first - timedelta(days=1)).replace(day=1), first, after, (after + timedelta(days=31)).replace(day=1))


class BudgetStanding(Struct, frozen=True):
    """Use of a budget in its period.

    `spent` is dollars booked or accrued. `in_flight` is the most that batches in flight may still cost. Hourly costs
    count as spent once they have accrued; `running` is the part of `spent` that is not booked yet. The hourly cost
    until a stop counts as possible cost. `unbounded` names a batch in flight whose cost has no known bound: nothing
    is sent until it ends.
    """

    budget: Budget
    period: Period
    spent: Decimal
    in_flight: Decimal
    unbounded: str | None = None
    running: Decimal = Decimal(0)

    @property
    def cap(self) -> Decimal:
        """Dollars that may be spent: the amount up to the stop mark."""
        return self.budget.amount * self.budget.stop_at

    @property
    def left(self) -> Decimal:
        """Dollars that are neither spent nor in flight; 0 if a batch in flight is unbounded."""
        return Decimal(0) if self.unbounded else max(Decimal(0), self.cap - self.spent - self.in_flight)

    @property
    def share(self) -> Decimal:
        """Share of the amount that is spent; 1 is all of it."""
        return self.spent / self.budget.amount

    @property
    def mark(self) -> BudgetMark:
        """State of the budget."""
        if not self.left:
            return BudgetMark.STOPPED
        return BudgetMark.WARNING if self.share >= self.budget.warn_at else BudgetMark.OK


def no_room(standing: BudgetStanding, wanted: Decimal) -> str | None:
    """Return why a batch that may cost `wanted` dollars has to wait, or None. Raises TooDear if it never fits."""
    if not wanted:
        return None
    if wanted > standing.cap:
        raise TooDear(
            f"this batch may cost up to {up_to(wanted)}, more than {_budget_words(standing)} ever allows",
            hint="raise the budget, lower max_tokens, or make batches smaller (`limits` of the backend)",
            wanted=wanted,
            left=standing.cap,
        )
    if standing.unbounded:
        return _unbounded_words(standing)
    if standing.spent + standing.in_flight + wanted <= standing.cap:
        return None
    return (
        f"this batch may cost up to {up_to(wanted)}, and {_spent_words(standing)}; "
        f"it continues when batches settle for less, or when the budget renews at {standing.period.renews}"
    )


def no_time(standing: BudgetStanding, more: Decimal) -> str | None:
    """Return why upstreams paid by the hour must not start, or None.

    `more` is the dollars that they would cost from the decision to stop them until they have stopped.
    """
    return _unbounded_words(standing) if standing.unbounded else used_up(standing, more)


def used_up(standing: BudgetStanding, more: Decimal = Decimal(0)) -> str | None:
    """Return why upstreams paid by the hour must stop now, or None.

    `more` is dollars that would be spent in addition; 0 for upstreams that already run.
    """
    if standing.spent + standing.in_flight + more < standing.cap:
        return None
    return f"budget {standing.budget.name} reached: {_spent_words(standing)}; it renews at {standing.period.renews}"


def warning(standing: BudgetStanding) -> str | None:
    """Return a warning if the budget has passed its warning mark, else None."""
    if standing.share < standing.budget.warn_at:
        return None
    which = f"budget {standing.budget.name}, {standing.budget.period} until {standing.period.renews}"
    return f"{which}: {money(standing.spent)} of {_budget_words(standing)} is spent ({standing.share:.0%})"


def warning_code(standing: BudgetStanding) -> str:
    """Return the key that records a warning as reported: the budget and its period."""
    return f"{standing.budget.name}/{standing.budget.period}/{standing.period.renews}"


def _unbounded_words(standing: BudgetStanding) -> str:
    return f"budget {standing.budget.name}: {standing.unbounded}; this batch waits for its end"


def _budget_words(standing: BudgetStanding) -> str:
    budget = standing.budget
    stop = f", stopped at {budget.stop_at:.0%}" if budget.stop_at != 1 else ""
    return f"the {amount(budget.amount)} of budget {budget.name} for the {budget.period}{stop}"


def _spent_words(standing: BudgetStanding) -> str:
    flying = f", up to {up_to(standing.in_flight)} more in flight" if standing.in_flight else ""
    return f"{money(standing.spent)} of {_budget_words(standing)} is spent{flying}"
