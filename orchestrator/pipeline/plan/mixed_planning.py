"""Plan of a job if no single backend has all of its models: its rows are planned in lots.

A lot has the rows of aliases that the same backends can serve. The lots share the job's budget: the maximum cost of a
lot is not available to later lots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Self

from msgspec.structs import replace

from orchestrator.core.errors import RefusedError, RequestRefused
from orchestrator.core.shards import Shard
from orchestrator.pipeline.plan.orders import First, Orders
from orchestrator.pipeline.plan.planning import Planning
from orchestrator.pipeline.plan.routes import lots_of
from orchestrator.policy.planner import Cost, Outlook, Plan, PlanVerdict, Refusal, Route
from orchestrator.policy.planner.types import Reroute
from orchestrator.settings.model_lists import is_of
from orchestrator.store.records import OpenRows


def planning_of(*arguments: Any, **options: Any) -> Planning:
    """Return the planner's view of a job, in lots if needed; the arguments are those of `Planning`."""
    planning = MixedPlanning(*arguments, **options)
    return planning if planning.lots else Planning(*arguments, **options)


class MixedPlanning(Planning):
    """The planner's view of a job with several lots."""

    @cached_property
    def lots(self) -> list[Planning]:
        """The view of each lot; empty if a single backend has all of the job's models."""
        found, reserved = list[Planning](), self._reserved
        for aliases in lots_of(self._config, self._job):
            lot = Planning(
                self._store, self._config, self._job, self._now, self._left, canary=self._canary, down=self._down,
                memory=self._memory, only=aliases, reserved=reserved,
            )  # fmt: skip
            found.append(lot)
            if self._job.budget is not None and lot.work:
                reserved += lot.plan().at_most
        return found

    @property
    def _open_lots(self) -> list[Planning]:
        return [lot for lot in self.lots if lot.work] or self.lots[:1]

    def with_work(self, work: list[OpenRows]) -> Self:
        other = super().with_work(work)
        other.lots = [lot.with_work(work) for lot in self.lots]
        return other

    def part_of(self, shard: Shard) -> Planning:
        """Return the planner's view of the lot that contains a shard's rows."""
        return next((lot for lot in self.lots if is_of(shard.model, lot.only)), self.lots[0])

    def plan(self) -> Plan:
        return _joined([lot.plan() for lot in self._open_lots])

    def is_refused(self, plan: Plan) -> bool:
        """True if known facts show that a lot cannot keep the deadline or the budget."""
        return any(lot.is_refused(lot.plan()) for lot in self._open_lots)

    def outlook(self) -> Outlook | None:
        """Return the joint outlook of all lots, or None if no backend may take rows of any lot."""
        found = [outlook for lot in self._open_lots if (outlook := lot.outlook()) is not None]
        if not found:
            return None
        return Outlook(
            math.prod(one.chance for one in found),
            sum((one.expected for one in found), Decimal(0)),
            _earliest(one.reroute for one in found),
            _words(one.reason for one in found),
            any(one.waits for one in found),
        )

    def orders(self) -> Orders:
        """Return the orders of all lots.

        Raises RefusedError or RequestRefused if no backend takes a lot's rows and there is nothing else to do.
        """
        found, stuck = list[Orders](), None
        for lot in self._open_lots:
            try:
                found.append(lot.orders())
            except (RefusedError, RequestRefused) as error:
                stuck = stuck or error
        orders = _together(found) if found else None
        has_more = any(not one.state.is_final for one in self.shards)
        if stuck is not None and not (orders is not None and (orders.sends or orders.reroutes or has_more)):
            raise stuck
        assert orders is not None, "a job has a lot"
        return orders

    def first(self, by: datetime | None) -> First | str:
        """Return the orders for canary rows, or the reason why the canary would not end by `by`."""
        found = [lot.first(by) for lot in self._open_lots]
        if late := [one for one in found if isinstance(one, str)]:
            return late[0]
        parts = [one for one in found if isinstance(one, First)]
        return First(_together([one.orders for one in parts]), parts[0].foreseen if len(parts) == 1 else ())

    def has_other_than(self, *backends: str) -> bool:
        """True if a lot has another backend for rows given up by these backends."""
        return any(lot.has_other_than(*backends) for lot in self.lots)


def _together(found: Sequence[Orders]) -> Orders:
    acting = [one for one in found if one.reroutes or one.sends] or found
    return Orders(
        tuple(shard for one in found for shard in one.reroutes),
        tuple(send for one in found for send in one.sends),
        _words(one.reason for one in acting),
        min(one.next_look for one in found),
        min((one.gives_up_at for one in found if one.gives_up_at is not None), default=None),
    )


def _words(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))


def _earliest(reroutes: Iterable[Reroute | None]) -> Reroute | None:
    return min((one for one in reroutes if one is not None), key=lambda one: one.at, default=None)


def _joined(plans: Sequence[Plan]) -> Plan:
    routes: dict[str, Route] = {}
    for route in (route for plan in plans for route in plan.routes):
        routes[route.backend] = _both(routes[route.backend], route) if route.backend in routes else route
    refused: dict[str, Refusal] = {}
    for refusal in (one for plan in plans for one in plan.refused if one.backend not in routes):
        refused.setdefault(refusal.backend, refusal)
    starts = [plan.starts_at for plan in plans]
    return Plan(
        tuple(routes.values()),
        tuple(refused.values()),
        _earliest(plan.reroute for plan in plans),
        sum((plan.expected for plan in plans), Decimal(0)),
        sum((plan.at_most for plan in plans), Decimal(0)),
        math.prod(plan.chance for plan in plans),
        _verdict(plans),
        _last(plan.done_p50 for plan in plans),
        _last(plan.done_p95 for plan in plans),
        next((plan.probe for plan in plans if plan.probe is not None), None),
        tuple(row for plan in plans for row in plan.first_rows),
        None if None in starts else min((at for at in starts if at is not None), default=None),
    )


def _both(one: Route, other: Route) -> Route:
    rows = one.rows + other.rows
    cost = Cost(
        (one.cost.p50 * one.rows + other.cost.p50 * other.rows) / rows,
        (one.cost.p95 * one.rows + other.cost.p95 * other.rows) / rows,
    )
    return replace(
        one, rows=rows, cost=cost, done_p50=_last((one.done_p50, other.done_p50)),
        done_p95=_last((one.done_p95, other.done_p95)), chance=min(one.chance, other.chance),
    )  # fmt: skip


def _last(times: Iterable[datetime | None]) -> datetime | None:
    found = list(times)
    return None if None in found else max((at for at in found if at is not None), default=None)


def _verdict(plans: Sequence[Plan]) -> PlanVerdict:
    failing = [plan.verdict for plan in plans if not plan.verdict.holds]
    if not failing:
        return PlanVerdict(True, _words(plan.verdict.reason for plan in plans))
    deadlines = [one.deadline for one in failing]
    budgets = [plan.at_most if plan.verdict.holds else plan.verdict.budget for plan in plans]
    return PlanVerdict(
        False,
        _words(one.reason for one in failing),
        _last(deadlines),
        None if None in budgets else sum((one for one in budgets if one is not None), Decimal(0)),
    )
