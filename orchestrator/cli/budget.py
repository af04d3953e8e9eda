"""`orch budget`: the state of orch.toml's budgets in the current night or month."""

from __future__ import annotations

import click

from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.clock import now
from orchestrator.core.money import amount, money, spent_words
from orchestrator.library.context import opened
from orchestrator.policy.budgets import BudgetStanding
from orchestrator.reports.listings import standing_json


@click.command()
@json_option
def budget(as_json: bool) -> int:
    """Show each budget in orch.toml: dollars spent, maximum for batches in flight, dollars left, next renewal."""
    from orchestrator.pipeline.budget import SharedBudgets

    with opened() as context:
        standings = SharedBudgets(context.store, context.config, now).standings()
        if as_json:
            print_json([standing_json(standing) for standing in standings])
        elif not standings:
            say("orch: no budgets; add one with `[[budgets]]` in orch.toml (`orch help budgets`)")
        for standing in () if as_json else standings:
            _show(standing)
    return 0


def _show(standing: BudgetStanding) -> None:
    terms, until = standing.budget, standing.period.renews
    whose = "all jobs" if terms.tag is None else f"jobs tagged {terms.tag}"
    share = f"{standing.share:.0%} of {amount(terms.amount)}"
    show(f"{terms.name}: {standing.mark}, {share} for the {terms.period} until {until}, {whose}")
    show(
        f"  {spent_words(standing.spent, standing.running)}, up to {money(standing.in_flight)} in flight, "
        f"{money(standing.left)} left"
        + (f" (nothing is sent above {terms.stop_at:.0%})" if terms.stop_at != 1 else "")
    )
    if standing.unbounded:
        show(f"  ! {standing.unbounded}")
