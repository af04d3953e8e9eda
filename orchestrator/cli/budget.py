"""`orch budget`: how the budgets of orch.toml stand in the night or the month that is now."""

from __future__ import annotations

from typing import Any

import click

from orchestrator.cli.context import opened
from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.clock import now
from orchestrator.core.money import amount, money
from orchestrator.policy.budgets import BudgetStanding


@click.command()
@json_option
def budget(as_json: bool) -> int:
    """Show each budget in orch.toml: spent, at most still owed for batches in flight, left, and when it renews."""
    from orchestrator.pipeline.submit.budget import SharedBudgets

    with opened() as context:
        standings = SharedBudgets(context.store, context.config, now).standings()
        if as_json:
            print_json([standing_json(standing) for standing in standings])
        elif not standings:
            say("orch: no budgets; add one with `[[budgets]]` in orch.toml (docs/how-to/budgets.md)")
        for standing in () if as_json else standings:
            _show(standing)
    return 0


def standing_json(standing: BudgetStanding) -> dict[str, Any]:
    """The stable form of a budget; documented in docs/reference/json.md."""
    terms = standing.budget
    return {
        "name": terms.name,
        "tag": terms.tag,
        "period": terms.period,
        "starts_at": standing.period.starts.isoformat(timespec="seconds"),
        "renews_at": standing.period.ends.isoformat(timespec="seconds"),
        "amount_usd": f"{terms.amount.normalize():f}",
        "warn_at": float(terms.warn_at),
        "stop_at": float(terms.stop_at),
        "spent_usd": f"{standing.spent:f}",
        "in_flight_usd": None if standing.unbounded else f"{standing.in_flight:f}",
        "left_usd": f"{standing.left:f}",
        "share": round(float(standing.share), 4),
        "state": standing.mark.value,
        "problem": standing.unbounded,
    }


def _show(standing: BudgetStanding) -> None:
    terms, until = standing.budget, standing.period.renews
    whose = "all jobs" if terms.tag is None else f"jobs tagged {terms.tag}"
    share = f"{standing.share:.0%} of {amount(terms.amount)}"
    show(f"{terms.name}: {standing.mark}, {share} for the {terms.period} until {until}, {whose}")
    show(
        f"  {money(standing.spent)} spent, up to {money(standing.in_flight)} in flight, {money(standing.left)} left"
        + (f" (nothing is sent above {terms.stop_at:.0%})" if terms.stop_at != 1 else "")
    )
    if standing.unbounded:
        show(f"  ! {standing.unbounded}")
