"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import wraps
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.context import Command
from orchestrator.jobspec import MAX_BUDGET
from orchestrator.model import FailOn
from orchestrator.pipeline.intake import Options


class Dollars(click.ParamType[Decimal]):
    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        try:
            amount = Decimal(str(value).lstrip("$"))
        except InvalidOperation:
            self.fail(f"{value!r} is no amount of dollars", param, ctx)
        if not amount.is_finite() or not 0 <= amount <= MAX_BUDGET:
            self.fail(f"{value!r} is no amount of dollars up to {MAX_BUDGET:,}", param, ctx)
        return amount


FILE = click.argument("file", type=click.Path(path_type=Path))


def job_options(function: Callable[..., int]) -> Callable[..., int]:
    """What the command line says of a job, as `options`."""

    @wraps(function)
    def command(
        deadline: str | None, budget: Decimal | None, backend: str | None, new: bool, verify: bool, **others: Any
    ) -> int:
        return function(options=Options(deadline, budget, backend, new, verify), **others)

    for option in (
        click.option("--verify", is_flag=True, help="Read every file, also those that did not move."),
        click.option("--new", is_flag=True, help="Another job, though one is unfinished or nothing changed."),
        click.option("--backend", metavar="NAME", help="This backend alone."),
        click.option("--budget", type=Dollars(), help="A hard cap in dollars."),
        click.option("--deadline", metavar="WHEN", help="8h, 90m, 06:00 or an ISO time."),
    ):
        command = option(command)
    return command


def fail_on_option(function: Command) -> Command:
    """`--fail-on`, as `fail_on`: a FailOn, or None where it was not given."""
    return click.option(
        "--fail-on",
        type=click.Choice(FailOn, case_sensitive=False),
        help="Which failed rows make the exit code 1: any; unacknowledged: but those of `orch acknowledge`; new: nor "
        "those that failed for the same reason in an earlier run.",
    )(function)
