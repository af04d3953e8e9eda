"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from msgspec import Struct

from orchestrator.core.addresses import is_http_url
from orchestrator.core.fail_on import FailOn
from orchestrator.core.money import amount_cure
from orchestrator.core.variable_names import variable_problem

Command = Callable[..., int]
Decorator = Callable[[Command], Command]


class Dollars(click.ParamType[Decimal]):
    name = "dollars"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        from orchestrator.settings.job_spec import MAX_BUDGET

        try:
            amount = Decimal(str(value).lstrip("$"))
        except InvalidOperation:
            cures = (amount_cure(f"{sign}{value}", "--budget {}") for sign in ("", "$"))
            cure = next(filter(None, cures), "write a number, such as 2.50")
            self.fail(f"{value!r} is not an amount of dollars; {cure}", param, ctx)
        if not amount.is_finite() or not 0 <= amount <= MAX_BUDGET:
            self.fail(f"{value!r} is not an amount of dollars up to {MAX_BUDGET:,}", param, ctx)
        return amount


class Address(click.ParamType[tuple[str, int]]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", str(value))
        if found is None or int(found[3]) > 65535:
            self.fail(f"{value!r} is not an address such as 127.0.0.1:8090 or [::1]:8090", param, ctx)
        return found[1] or found[2], int(found[3])


class VariableName(click.ParamType[str]):
    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if (problem := variable_problem(str(value))) is not None:
            self.fail(f"it {problem}", param, ctx)
        return str(value)


class Url(click.ParamType[str]):
    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_http_url(str(value)):
            spaces = "; remove the whitespace in it" if any(map(str.isspace, str(value))) else ""
            self.fail(f"{value!r} is not an http(s) URL such as http://127.0.0.1:8000/v1{spaces}", param, ctx)
        parts = urlsplit(str(value))
        if parts.username or parts.password:
            self.fail("a URL may not carry a password; name the key's variable with --api-key-env", param, ctx)
        return str(value).rstrip("/")


WEB_ADDRESS = "127.0.0.1:8091"


def web_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--web", type=Address(), is_flag=False, flag_value=WEB_ADDRESS, metavar="[HOST:PORT]",
        help=f"Serve the pages of this home, at {WEB_ADDRESS} or another address.",
    )(function)  # fmt: skip


def names_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--web-name", "names", metavar="NAME[:PORT]", multiple=True,
        help="A name under which a proxy serves the pages; may be given several times.",
    )(function)  # fmt: skip


def actions_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--web-actions", "acts", is_flag=True,
        help="The link also opens actions: cancel, retry, release, run a schedule, change deadline and budget.",
    )(function)  # fmt: skip


FILE = click.argument("file", type=click.Path(path_type=Path))
FORCE = click.option("--force", "overwrite", is_flag=True, help="Overwrite a file that orch did not write.")
_TERMS = (
    click.option("--verify", is_flag=True, help="Read every file, even if it has not changed."),
    click.option("--new", is_flag=True, help="Start a new job even if nothing has changed."),
    click.option("--reask", is_flag=True, help="Ask rows again if a model other than the one set now answered them."),
    click.option("--backend", metavar="NAME", help="Use this backend only."),
    click.option("--budget", type=Dollars(), help="A hard cap in dollars."),
    click.option("--deadline", metavar="WHEN", help="8h, 90m, 06:00 or an ISO time."),
)
_QUEUED = (
    FORCE,
    click.option(
        "--beside",
        "edited",
        flag_value="beside",
        help="If the file was edited and its last job is unfinished: let that job finish as well.",
    ),
    click.option(
        "--supersede",
        "edited",
        flag_value="supersede",
        help="If the file was edited and its last job is unfinished: take over what is in flight, cancel the rest.",
    ),
    click.option("--after", metavar="JOB", help="Start once that job has succeeded: its id or its name."),
)
_NAMES = ("deadline", "budget", "backend", "new", "reask", "verify", "scope", "overwrite", "after", "edited")

_SCOPE = (
    click.option("--task", "tasks", metavar="ID", multiple=True, help="Only this task; may be given several times."),
    click.option(
        "--only", metavar="DOC", multiple=True,
        help="Only this document: its name, the end of it, or a pattern such as '*.pdf'; may be given several times.",
    ),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents."),
)  # fmt: skip


def scope_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that limit a run to certain documents and tasks, as the argument `scope`."""

    @wraps(function)
    def command(limit: int | None, only: tuple[str, ...], tasks: tuple[str, ...], **others: Any) -> int:
        from orchestrator.pipeline.selection import Scope

        return function(scope=Scope(limit, only, tasks), **others)

    for option in _SCOPE:
        command = option(command)
    return command


def fail_on_option(function: Command) -> Command:
    """Add `--fail-on`, as the argument `fail_on`: a FailOn, or None if the option is absent."""
    return click.option(
        "--fail-on",
        type=click.Choice(FailOn, case_sensitive=False),
        help="Which rows set exit code 1: any failed one; unacknowledged: all but those of `orch acknowledge`; new: "
        "unacknowledged ones without the same failure in an earlier run; cut: unacknowledged ones, and answers that "
        "ended at max_tokens.",
    )(function)


def _as_options(options: Sequence[Decorator]) -> Decorator:
    def decorate(function: Command) -> Command:
        @scope_options
        @wraps(function)
        def taking(**given: Any) -> int:
            from orchestrator.pipeline.build.submission import Options

            terms = {name: given.pop(name) for name in _NAMES if name in given}
            if terms.get("edited") is not None:
                from orchestrator.pipeline.succession import Edited

                terms["edited"] = Edited(terms["edited"])
            return function(options=Options(**terms), **given)

        command: Command = taking
        for option in options:
            command = option(command)
        return command

    return decorate


plan_options = _as_options((FORCE, *_TERMS))
job_options = _as_options((*_QUEUED, *_TERMS))


class TableFlags(Struct, frozen=True):
    """Shape of a table from the command line. None and empty values mean the job file's setting."""

    wide: bool | None
    columns: tuple[str, ...]
    excel: bool


def table_options(function: Command) -> Command:
    @click.option("--wide/--long", "wide", default=None, help="A table row per document, or per row.")
    @click.option("--columns", metavar="NAME,…", help="The table's columns, in this order.")
    @click.option("--excel", is_flag=True, help="CSV for spreadsheets: read as UTF-8, and no cell is a formula.")
    @wraps(function)
    def command(*args: Any, wide: bool | None, columns: str | None, excel: bool, **options: Any) -> int:
        names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
        return function(*args, table=TableFlags(wide, names, excel), **options)

    return command
