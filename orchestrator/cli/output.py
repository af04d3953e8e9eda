"""Output of commands, and options for it. Has few imports, for commands that need no store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from orchestrator.core.sanitize import escape_controls
from orchestrator.library.messages import say as say
from orchestrator.library.messages import width_of as width_of
from orchestrator.reports.text_tables import paragraph

Command = TypeVar("Command", bound=Callable[..., Any])
JOB = click.argument("job_name", metavar="JOB")
JOB_HELP = "JOB is an id or the start of one, or the name of a job or schedule, meaning its newest run."


def json_option(function: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")(function)


def quiet_option(function: Command) -> Command:
    return click.option("-q", "--quiet", is_flag=True, help="Show no progress.")(function)


def show(text: str, *, whole: bool = False) -> None:
    """Print a human-readable result on stdout. With `whole`, print the text unchanged."""
    if whole:
        sys.stdout.write(escape_controls(text))
    else:
        sys.stdout.write(paragraph(text, width_of(sys.stdout)) + "\n")


def print_json(value: Any) -> None:
    # Control characters become JSON escapes, so the value stays the same.
    sys.stdout.write(escape_controls(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")
