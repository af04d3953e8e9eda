"""Plans as lines for a terminal, and as stable JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.core.clock import iso
from orchestrator.core.counts import number_of
from orchestrator.core.money import money
from orchestrator.core.probability_words import chance_words
from orchestrator.core.term_words import TermWords
from orchestrator.reports.text_tables import Column, Line, StyledText, sentence, table

if TYPE_CHECKING:
    from orchestrator.policy.planner import Cost, FirstRow, Plan, Refusal, Route


def plan_lines(
    plan: Plan, deadline: datetime | None, width: int | None, problems: Mapping[str, str] = MappingProxyType({}),
    words: TermWords = TermWords.OPTIONS,
) -> list[Line]:  # fmt: skip
    """Show accepted and rejected routes, and the total cost. If the plan does not hold, suggest changes that would
    make it hold.

    `problems` are current problems of backends. These backends get no time or chance.
    """
    chances = [] if deadline is None else [Column(f"P(by {clock(deadline)})")]
    columns = (
        Column(""),
        Column("route"),
        Column("rows", right=True),
        Column("cost (p50–p95)", rank=1),
        Column("done by (p50–p95)", rank=2),
        *chances,
        Column("reason", prose=True),
    )

    def cells(mark: str, one: Route | Refusal, rows: str, style: str = "") -> list[StyledText]:
        cost = "—" if one.cost is None else _span(one.cost)
        is_well = one.backend not in problems
        chance = chance_words(one.chance) if is_well and one.chance is not None else "—"
        until = _until(one.done_p50, one.done_p95) if is_well else "—"
        told = (mark, one.backend, rows, cost, until, *([] if deadline is None else [chance]), one.reason)
        return [StyledText(text, style) for text in told]

    rows = [cells("✓", route, f"{route.rows:,}") for route in plan.routes]
    rows += [cells("✗", refused, "—", "dim") for refused in plan.refused]
    lines = table(columns, rows, width)
    if plan.starts_at is not None:
        lines += sentence(f"rows wait until {clock(plan.starts_at)}, when they cost less", width)
    if plan.reroute is not None and deadline is not None:
        what = f"batches still running at {clock(plan.reroute.at)} go to {' and '.join(plan.reroute.to)}"
        lines += sentence(f"reroute: {what}; {chance_words(plan.reroute.needed)} likely to be needed", width)
    if plan.probe is not None:
        lines += sentence(
            f"probe: {number_of(plan.probe.rows, 'row')} to {plan.probe.backend}; {plan.probe.reason}", width
        )
    for backend in dict.fromkeys(one.backend for one in plan.first_rows):
        lines += sentence(_asked_first(backend, [one for one in plan.first_rows if one.backend == backend]), width)
    if plan.routes:
        told = f"expected {money(plan.expected)}, at most {money(plan.at_most)}"
        used = [route.backend for route in plan.routes if route.backend in problems]
        likely = f"no chance can be given: {' and '.join(used)} does not answer as it should"
        if not used:
            likely = f"{chance_words(plan.chance)} likely to be in time"
        told = told if deadline is None else f"{told}, {likely}"
        lines += sentence(told, width)
    lines += problem_lines(problems, width)
    if not plan.verdict.holds:
        lines += sentence(f"! {plan.verdict.reason}", width, "red")
        for term in plan.verdict.nearest(words):
            lines += sentence(f"  would hold: {term}", width)
    return lines


def problem_lines(problems: Mapping[str, str], width: int | None) -> list[Line]:
    """Return the current problems of backends as lines."""
    return [line for name, told in problems.items() for line in sentence(f"! {name}: {told}", width, "red")]


def _asked_first(backend: str, rows: Sequence[FirstRow]) -> str:
    costs = [one.at_most for one in rows]
    most = "without a bound" if None in costs else f"at most {money(sum(filter(None, costs), Decimal(0)))}"
    saved = sum((one.saves for one in rows if one.saves is not None), Decimal(0))
    saves = f"; the prompt cache that it writes saves about {money(saved)}" if saved else ""
    return f"asked first at {backend}: {number_of(len(rows), 'row')}, {most}{saves}"


def _span(cost: Cost) -> str:
    return money(cost.p50) if cost.p50 == cost.p95 else f"{money(cost.p50)}–{money(cost.p95).lstrip('$')}"


def _until(p50: datetime | None, p95: datetime | None) -> str:
    return "—" if p50 is None and p95 is None else f"{clock(p50)}–{clock(p95)}"


def clock(at: datetime | None) -> str:
    """Format a time of a plan as local weekday and time of day."""
    return "later" if at is None else at.astimezone().strftime("%a %H:%M")


def plan_json(found: Plan, problems: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the stable form of a plan, documented in docs/reference/json.md.

    Backends with current `problems` get no time or chance.
    """
    is_well = not any(route.backend in problems for route in found.routes)
    return {
        "routes": [
            {"backend": route.backend, "rows": route.rows, "cost_usd": _cost(route.cost), "reason": route.reason,
             **_times(route, problems)}
            for route in found.routes
        ],
        "refused": [
            {"backend": one.backend, "reason": one.reason, "cost_usd": _cost(one.cost),
             **_times(one, problems)}
            for one in found.refused
        ],
        "reroute": None if found.reroute is None else {
            "at": iso(found.reroute.at), "to": list(found.reroute.to), "needed": round(found.reroute.needed, 4),
        },
        "starts_at": iso(found.starts_at),
        "probe": None if found.probe is None else {
            "backend": found.probe.backend, "rows": found.probe.rows, "at_most_usd": f"{found.probe.at_most:f}",
            "reason": found.probe.reason,
        },
        "first_rows": [
            {"backend": one.backend, "model": one.model,
             "at_most_usd": None if one.at_most is None else f"{one.at_most:f}",
             "saves_usd": None if one.saves is None else f"{one.saves:f}"}
            for one in found.first_rows
        ],
        "expected_usd": f"{found.expected:f}",
        "at_most_usd": f"{found.at_most:f}",
        "chance": round(found.chance, 4) if is_well else None,
        "holds": found.verdict.holds,
        "reason": found.verdict.reason,
        "nearest": {
            "deadline": iso(found.verdict.deadline),
            "budget_usd": None if found.verdict.budget is None else f"{found.verdict.budget:f}",
        },
    }  # fmt: skip


def _times(one: Route | Refusal, problems: Mapping[str, str]) -> dict[str, str | float | None]:
    if one.backend in problems:
        return {"done_p50": None, "done_p95": None, "chance": None}
    chance = None if one.chance is None else round(one.chance, 4)
    return {"done_p50": iso(one.done_p50), "done_p95": iso(one.done_p95), "chance": chance}


def _cost(cost: Cost | None) -> dict[str, str] | None:
    return None if cost is None else {"p50": f"{cost.p50:f}", "p95": f"{cost.p95:f}"}
