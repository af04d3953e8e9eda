"""Plans of a job's rows at submission: routes, cost, chance and refusals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.counts import number_of
from orchestrator.core.money import amount
from orchestrator.core.money import money as in_dollars
from orchestrator.core.probability_words import chance_words
from orchestrator.policy.planner.capacity import Capacity
from orchestrator.policy.planner.cheaper_hours import price_over_time, starts
from orchestrator.policy.planner.checks import check
from orchestrator.policy.planner.explanations import clock, refusals_of, routes_of
from orchestrator.policy.planner.planning_problem import (
    after,
    batches_of,
    capacity_of,
    cost_of_later,
    deduct,
    finish_of,
    money,
    objection,
    reroute_of,
)
from orchestrator.policy.planner.search import Chosen, Position, best, holding
from orchestrator.policy.planner.types import Claim, Cost, Open, Option, Plan, PlanVerdict, Terms

SEARCH_LIMIT = timedelta(days=8)
"""Longest time from now to a suggested deadline. If no deadline within it is feasible, orch makes no suggestion."""
_MINUTE = timedelta(minutes=1)
_NEARLY = Decimal("0.98")
"""An amount of at least this share of the smallest feasible budget counts as feasible. The budget is known to 1 %."""


class _Work(Struct, frozen=True):
    """The rows to plan, and their usable options.

    `later` rows will be made from the answers, and cost `more` in total. `claims` are the possible needs of other
    jobs.
    """

    rows: int
    later: int
    claims: tuple[Claim, ...]
    usable: tuple[Option, ...]
    more: Cost
    now: datetime

    def capacity(self, terms: Terms) -> Capacity:
        return capacity_of(self.usable, terms, self.now, self.later, self.claims)

    def best(self, terms: Terms) -> Chosen | None:
        ours = self.capacity(terms)
        return best(self._start(ours), batches_of(self.usable), ours, deduct(terms, self.more))

    def holding(self, terms: Terms) -> Chosen | None:
        ours = self.capacity(terms)
        return holding(self._start(ours), batches_of(self.usable), ours, deduct(terms, self.more))

    def _start(self, ours: Capacity) -> Position:
        return Position(self.rows, 0, 0, 0.0, (), (0,) * len(ours.sync_options))


def plan(
    rows: int,
    options: Sequence[Option],
    terms: Terms,
    now: datetime,
    *,
    later: int = 0,
    claims: tuple[Claim, ...] = (),
    later_cost: Cost | None = None,
) -> Plan:
    """Return the cheapest plan that meets the terms, or else the likeliest plan within the budget.

    If no plan meets the terms, the result names the nearest feasible terms. `later` rows will be made from the
    answers, for `later_cost` in total (None: at the cheapest option's price). `claims` are the possible needs of
    other jobs. Rows wait for a cheaper hour if the plan still meets the terms. Raises ValueError for invalid figures.
    """
    check(options, terms, now, Open(rows, later=later, claims=claims))
    best = _plan_from(rows, price_over_time(options, rows), terms, now, later, claims, later_cost)
    for start, then in starts(options, terms, now):
        later_plan = _plan_from(rows, price_over_time(then, rows), terms, start, later, claims, later_cost)
        if (
            later_plan.routes
            and later_plan.verdict.holds
            and (not best.verdict.holds or later_plan.expected < best.expected)
        ):
            best = replace(later_plan, starts_at=start)
    return best


def covering(plan: Plan, dearest: float, rows: int, options: Sequence[Option], terms: Terms) -> Plan:
    """Return the plan with its "at most" raised to `dearest` times the expected cost.

    The raised "at most" exceeds neither the cost of all rows at the dearest option nor the budget.
    """
    costs = (option.cost.p95 for option in options if objection(option, terms) is None)
    most = min(money(float(plan.expected) * dearest), rows * max(costs, default=Decimal(0)))
    most = most if terms.budget is None else min(terms.budget, most)
    return replace(plan, at_most=max(plan.at_most, most))


def _plan_from(
    rows: int,
    options: Sequence[Option],
    terms: Terms,
    now: datetime,
    later: int,
    claims: tuple[Claim, ...],
    later_cost: Cost | None,
) -> Plan:
    """Return the plan for rows that are sent `now`."""
    usable = tuple(option for option in options if objection(option, terms) is None)
    more = cost_of_later(later, usable, terms, later_cost)
    work = _Work(rows, later, claims, usable, more, now)
    chosen, ours = work.best(terms), work.capacity(terms)
    refused = refusals_of(rows, options, terms, now, chosen, ours)
    if chosen is None:
        return Plan((), refused, None, Decimal(0), Decimal(0), 0.0, _verdict(work, terms, None))
    at_most = chosen.at_most + more.p95
    if terms.late_cost is None and not chosen.holds:
        # Rows may move to dearer options later, as far as the budget allows.
        at_most = max(at_most, rows * max(option.cost.p95 for option in usable) + more.p95)
        at_most = at_most if terms.budget is None else min(terms.budget, at_most)
    reroute = reroute_of(chosen.candidate, ours, now)
    return Plan(
        tuple(routes_of(chosen.candidate, ours, now, reroute)),
        refused,
        reroute,
        money(chosen.expected) + more.p50,
        at_most,
        chosen.chance,
        _verdict(work, terms, chosen),
        after(now, finish_of(chosen.candidate, ours, 0.5)),
        after(now, finish_of(chosen.candidate, ours, 0.95) + terms.margin),
    )


def _verdict(work: _Work, terms: Terms, chosen: Chosen | None) -> PlanVerdict:
    rows, now = work.rows, work.now
    if not rows:
        return PlanVerdict(True, "there is nothing to do")
    if not work.usable:
        return PlanVerdict(False, "no backend may run this job")
    if chosen and chosen.holds:
        return PlanVerdict(True, f"{chance_words(chosen.chance)} likely to be done by {clock(terms.deadline, now)}")
    if chosen and terms.late_cost is not None:
        return PlanVerdict(
            True, f"{chance_words(chosen.chance)} likely to be in time; a better chance costs more than being late"
        )
    budget = None if terms.budget is None else _smallest_budget(work, terms)
    deadline = _earliest_deadline(work, terms)
    is_refused_for_budget = terms.budget is not None and (chosen is None or budget is not None)
    free = work.best(replace(terms, budget=None, late_cost=None)) if is_refused_for_budget else None
    if chosen is None:
        reason = f"no backend has room for {number_of(rows, 'row')}"
        if free is not None:
            told = f"every way to run this costs more than the budget of {amount(terms.budget)}"
            reason = f"{told}: {_price(work, free, budget)}"
    elif free is not None:
        told = f"the budget of {amount(terms.budget)} is too small to be in time: {_price(work, free, budget)}"
        reason = f"{told}; with this budget, {chance_words(chosen.chance)} likely to be in time"
    else:
        reason = f"{chance_words(chosen.chance)} likely to be in time; the target is {terms.target * 100:.4g}%"
    return PlanVerdict(False, reason, deadline, budget)


def _price(work: _Work, free: Chosen, budget: Decimal | None) -> str:
    """Describe the cost of the rows in `free`, the best plan without a budget.

    If the cheapest backend costs less, its cost is described, too. `budget` is the smallest budget with which the
    deadline is feasible.
    """
    most = free.at_most + work.more.p95
    told = f"expected {in_dollars(money(free.expected) + work.more.p50)}, at most {in_dollars(most)}"
    cheap = min(work.usable, key=lambda option: option.cost.p95)
    cheapest = work.rows * cheap.cost.p95 + work.more.p95
    is_less = in_dollars(cheapest) != in_dollars(most) and cheapest < most
    if not is_less:
        return told
    late = ", too late" if budget is None or cheapest < budget * _NEARLY else ""
    return f"{told}; cheapest at {cheap.backend}, at most {in_dollars(cheapest)}{late}"


def _earliest_deadline(work: _Work, terms: Terms) -> datetime | None:
    """Bisect for the earliest deadline that is feasible within the budget, to the minute or 2 %.

    Returns None if even `SEARCH_LIMIT` is too short.
    """

    def holds(minutes: int) -> bool:
        return work.holding(replace(terms, deadline=work.now + minutes * _MINUTE, late_cost=None)) is not None

    top = int(SEARCH_LIMIT / _MINUTE)
    if not holds(top):
        return None
    bottom = max(0, int((terms.deadline - work.now) / _MINUTE))
    while top - bottom > max(1, bottom // 50):
        middle = (bottom + top) // 2
        if holds(middle):
            top = middle
        else:
            bottom = middle
    return work.now + top * _MINUTE


def _smallest_budget(work: _Work, terms: Terms) -> Decimal | None:
    """Bisect for the smallest budget with which the deadline is feasible, to a cent or 1 %.

    Returns None if no budget is enough.
    """

    def holds(budget: Decimal | None) -> Chosen | None:
        return work.holding(replace(terms, budget=budget, late_cost=None))

    free = holds(None)
    if free is None:
        return None
    bottom, top = terms.budget or Decimal(0), free.at_most + work.more.p95
    while top - bottom > max(Decimal("0.01"), bottom / 100):
        middle = (bottom + top) / 2
        chosen = holds(middle)
        if chosen:
            top = chosen.at_most + work.more.p95
        else:
            bottom = middle
    return top
