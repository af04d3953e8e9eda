"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import wraps
from pathlib import Path
from typing import Any

import click

from orchestrator.jobspec import MAX_BUDGET
from orchestrator.pipeline.intake import Options

Command = Callable[..., int]
Decorator = Callable[[Command], Command]


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
FORCE = click.option("--force", "overwrite", is_flag=True, help="Overwrite a file that orch did not write.")
_TERMS = (
    click.option("--verify", is_flag=True, help="Read every file, also those that did not move."),
    click.option("--new", is_flag=True, help="Another job, though one is unfinished or nothing changed."),
    click.option("--backend", metavar="NAME", help="This backend alone."),
    click.option("--budget", type=Dollars(), help="A hard cap in dollars."),
    click.option("--deadline", metavar="WHEN", help="8h, 90m, 06:00 or an ISO time."),
)
_QUEUED = (
    FORCE,
    click.option("--after", metavar="JOB", help="Begin once that job has finished well: its id or its name."),
)
_NAMES = ("deadline", "budget", "backend", "new", "verify", "overwrite", "after")


def _as_options(options: Sequence[Decorator]) -> Decorator:
    """What the command line says of a job, as `options`."""

    def decorate(function: Command) -> Command:
        @wraps(function)
        def taking(**given: Any) -> int:
            terms = {name: given.pop(name) for name in _NAMES if name in given}
            return function(options=Options(**terms), **given)

        command: Command = taking
        for option in options:
            command = option(command)
        return command

    return decorate


plan_options = _as_options(_TERMS)
job_options = _as_options((*_QUEUED, *_TERMS))
